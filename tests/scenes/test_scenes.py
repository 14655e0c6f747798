"""Real scenes: they load with the numbers their README gives, train to a known quality and render finite pictures."""

import numba
import numpy as np
import pytest

from gaian_hpc.arrays import ArrayTable, Cloud, View
from gaian_hpc.backends.threads import use_threads
from gaian_hpc.checkpoint.ply import GaussianStart, load_start
from gaian_hpc.checkpoint.summary import digest
from gaian_hpc.config import settings_from_toml
from gaian_hpc.data.cache import PictureCache
from gaian_hpc.data.scene import load_scene
from gaian_hpc.evaluation.views import evaluate_views, mean_scores, render_view
from gaian_hpc.points.init import point_spacing
from gaian_hpc.points.store import PointStore
from gaian_hpc.renderers.base import build_renderer
from gaian_hpc.renderers.gaussian3d import Options
from gaian_hpc.training.start import open_scene
from gaian_hpc.training.trainer import Trainer

pytestmark = pytest.mark.scenes

# Name: views, width, height, points, mean track, test views (every 8th).
SCENES = {"fox": (50, 337, 600, 6500, 6.98, 7), "sceaux_castle": (11, 640, 472, 7862, 4.72, 2),
          "caliterra": (75, 560, 419, 6000, 7.30, 10), "brighton_beach": (18, 560, 314, 4307, 4.15, 3),
          "shelf_hand_dynamic": (86, 512, 382, 2588, 10.26, 11)}


@pytest.fixture
def data(shared_dir):
    """Return a function that gives the path of a piece of real data, or skips where it is absent."""
    def find(name):
        path = shared_dir / "data" / name
        if not path.exists():
            pytest.skip(f"no real data at {path}")
        return path
    return find


@pytest.mark.parametrize("name", SCENES)
def test_a_scene_loads_with_the_numbers_of_its_readme(data, name):
    n_views, width, height, n_points, track, n_test = SCENES[name]
    scene = load_scene(data(name))
    assert scene.kind == "colmap" and len(scene.views) == n_views
    assert {(v.width, v.height) for v in scene.views} == {(width, height)}
    assert len(scene.points.positions) == n_points and np.isfinite(scene.points.positions).all()
    # Tracks hold views, the README counts observations: a view may have two of one point.
    assert 0.95 * track < len(scene.tracks.track_view_idx) / n_points <= track + 0.005
    names = [v.name for v in scene.views]
    assert names == sorted(names)
    assert [names[i] for i in scene.test_idx] == names[::8] and len(scene.test_idx) == n_test
    assert sorted([*scene.train_idx, *scene.test_idx]) == list(range(n_views))
    assert (scene.times is not None) == (name == "shelf_hand_dynamic")


@pytest.mark.parametrize("name", SCENES)
def test_points_of_a_scene_project_into_the_views_that_saw_them(data, name):
    scene = load_scene(data(name))
    n_seen = np.diff(scene.tracks.track_offsets)
    points = np.repeat(scene.points.positions.astype(np.float64), n_seen, axis=0)
    viewmats, Ks = (np.stack([getattr(v, key) for v in scene.views])[scene.tracks.track_view_idx]
                    for key in ("viewmat", "K"))
    camera = np.einsum("nij,nj->ni", viewmats[:, :3, :3].astype(np.float64), points) + viewmats[:, :3, 3]
    assert (camera[:, 2] > 0).all()
    pixels = camera[:, :2] / camera[:, 2:] * Ks[:, [0, 1], [0, 1]] + Ks[:, :2, 2]
    inside = ((pixels > -3) & (pixels < np.array([scene.views[0].width, scene.views[0].height]) + 3)).all(axis=1)
    assert inside.mean() > 0.999


def train_fox(path, run, threads):
    settings, options = settings_from_toml(f"steps = 60\nthreads = {threads}\n[data]\nfactor = 4\ncache_mb = 64\n")
    use_threads(threads)
    trainer = Trainer(open_scene(path, settings.data), run, settings, options)
    trainer.run()
    return trainer


def test_fox_at_a_quarter_of_its_size_reaches_its_quality_in_sixty_steps(data, tmp_path):
    trainer = train_fox(data("fox"), tmp_path / "run", 1)
    scene = trainer.scene
    with PictureCache(scene, 64 << 20, 0) as pictures:
        psnr, ssim = mean_scores(evaluate_views(trainer.renderer.at_step(60), trainer.store.values,
                                                [scene.views[i] for i in scene.test_idx], pictures))
    assert psnr > 20.0  # measured: 20.8 dB
    assert ssim > 0.69  # measured: 0.716
    assert trainer.store.bytes_per_point() <= 1024


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="this process may use one core only")
def test_fox_trains_to_the_same_bits_on_one_and_two_threads(data, tmp_path):
    digests = []
    for threads in (1, 2):
        train_fox(data("fox"), tmp_path / str(threads), threads)
        digests.append(digest(tmp_path / str(threads)))
    assert digests[0] == digests[1]


@pytest.fixture(scope="module")
def garden(shared_dir):
    """Return the cameras of the garden and its points as they would start training."""
    path = shared_dir / "data" / "garden_npz" / "test_garden.npz"
    if not path.exists():
        pytest.skip(f"no real data at {path}")
    arrays = np.load(path)
    size = int(arrays["width"]), int(arrays["height"])
    views = [View(arrays["viewmats"][i], arrays["Ks"][i], *size, index=i) for i in range(3)]
    means = arrays["means3d"]
    cloud = Cloud(means, arrays["colors"].astype(np.float32) / 255, point_spacing(means, 1.0), np.arange(len(means)))
    attributes = build_renderer("gaussian3d", Options(), "cpu").attributes
    return views, PointStore(attributes, {a.name: a.init(cloud) for a in attributes}, cloud.ids, len(means))


@pytest.mark.parametrize("index", range(3))
def test_the_garden_is_culled_to_the_points_before_the_camera_and_renders_finite(garden, index):
    views, store = garden
    view, points = views[index], store.values
    renderer = build_renderer("gaussian3d", Options(), "cpu")
    rows = renderer.cull(view, points)
    camera = points["means"].astype(np.float64) @ view.viewmat[:3, :3].T + view.viewmat[:3, 3]
    assert (camera[rows, 2] > 0).all() and (np.diff(rows) > 0).all()
    with np.errstate(divide="ignore", invalid="ignore"):
        pixels = camera[:, :2] / camera[:, 2:] * view.K[[0, 1], [0, 1]] + view.K[:2, 2]
    central = (camera[:, 2] > 0.1) & (pixels > 2).all(axis=1) & (pixels < [view.width - 2, view.height - 2]).all(axis=1)
    assert central.sum() > 10_000
    assert np.isin(np.flatnonzero(central), rows).mean() > 0.99
    assert len(rows) < 0.99 * store.n
    image = render_view(renderer, points, view, np.zeros(3, np.float32))
    assert np.isfinite(image).all() and 0.1 < image.mean() < 0.9 and image.std() > 0.05


def test_the_trained_file_is_read_as_gaussians_of_degree_three_and_renders_finite(data):
    start = load_start(data("trained_3dgs_ply") / "point_cloud.ply")
    assert isinstance(start, GaussianStart)
    raw = start.raw
    assert raw["means"].shape == (9080, 3) and raw["sh"].shape == (9080, 16, 3)
    renderer = build_renderer("gaussian3d", Options(), "cpu")
    store = PointStore(renderer.attributes, raw, np.arange(9080), 9080)
    viewmat = np.eye(4, dtype=np.float32)
    viewmat[:3, 3] = -np.median(raw["means"], axis=0) + [0, 0, 30]
    view = View(viewmat, np.float32([[100, 0, 64], [0, 100, 48], [0, 0, 1]]), 128, 96)
    rows = renderer.cull(view, ArrayTable(dict(store.values)))
    image = render_view(renderer, store.values, view, np.ones(3, np.float32))
    assert len(rows) > 100 and np.isfinite(image).all() and image.std() > 0.01
