"""A step's loss, gradients and statistics do not depend on its patches, and a unit's are the mean of its views'."""

import dataclasses

import numpy as np
import pytest

from gaian_hpc.arrays import View
from gaian_hpc.data.images import PictureCache
from gaian_hpc.data.scene import load_scene
from gaian_hpc.points.store import PointStore
from gaian_hpc.renderers.base import build_renderer
from gaian_hpc.renderers.gaussian3d import Options
from gaian_hpc.timing import PhaseTimer
from gaian_hpc.training.densify import make_density
from gaian_hpc.training.optimizer import Adam
from gaian_hpc.training.start import start_points
from gaian_hpc.training.step import SynchronousExecutor
from tests.unit.runs import make_settings

STEP = 9  # SH degree 1 with sh_every = 8
VIEWS = (1, 4, 6)


class Recorder:
    """Stands for the optimizer: keeps what it is given and moves nothing."""

    def update(self, store, rows, v_rows, step):
        self.rows, self.v_rows = rows, {name: x.copy() for name, x in v_rows.items()}

    def learning_rate(self, name, step):
        return 0.0


@pytest.fixture(scope="module")
def scene(city):
    return load_scene(city)


@pytest.fixture(scope="module")
def pictures(scene):
    with PictureCache(scene, 16 << 20, 0) as cache:
        yield cache


@pytest.fixture
def unit(scene, pictures):
    """Return a function that runs one unit from the start points and returns report, recorder and store."""
    def run(views, changes=None, options=None, store=None, optimizer=None, decoded=pictures, step=STEP):
        settings = make_settings({"densify.strategy": "none", **(changes or {})})
        renderer = build_renderer("gaussian3d", Options(**{"sh_every": 8, **(options or {})}), "cpu",
                                  absgrad=settings.densify.absgrad)
        store = store or grown(start_points(scene, settings, renderer.attributes))
        density = make_density(settings.densify, 100, scene.extent, 0, len(views))
        density.prepare(store)
        recorder = optimizer or Recorder()
        executor = SynchronousExecutor(renderer, store, recorder, density, decoded, settings, PhaseTimer())
        report = executor.run(step, [scene.views[v] if isinstance(v, int) else v for v in views])
        return report, recorder, store
    return run


def grown(store):
    """Make the points larger, of any shape and turned, so that most cross the borders of tiles and patches."""
    rng = np.random.default_rng(0)
    raw = {name: x.copy() for name, x in store.raw.items()}
    raw["scales"] += rng.uniform(-0.5, 1.0, raw["scales"].shape).astype(np.float32)
    raw["quats"] = rng.standard_normal(raw["quats"].shape).astype(np.float32)
    raw["opacities"] += rng.uniform(0, 4, raw["opacities"].shape).astype(np.float32)
    raw["sh"][:, 1:] = rng.normal(0, 0.1, raw["sh"][:, 1:].shape)
    return PointStore(store.attributes, raw, store.ids, store.next_id)


def assert_close(found, expected, tolerance):
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        np.testing.assert_allclose(found[name], x, rtol=0, atol=tolerance * np.abs(x).max(), err_msg=name)


def on_rows(recorder, n):
    """Return a recorder's gradients on all ``n`` points."""
    out = {name: np.zeros((n, *x.shape[1:]), np.float64) for name, x in recorder.v_rows.items()}
    for name, x in recorder.v_rows.items():
        out[name][recorder.rows] = x
    return out


def away_from(view: View) -> View:
    """Return a camera at the same place that looks the other way."""
    turn = np.diag(np.float32([-1, 1, -1, 1]))
    return dataclasses.replace(view, viewmat=turn @ view.viewmat)


@pytest.mark.parametrize("patch_size", [16, 32, 48])
@pytest.mark.parametrize("changes, options", [({}, {}), ({"data.background": "random"}, {"antialiased": True})])
def test_patches_give_the_loss_and_gradients_of_the_whole_view(unit, patch_size, changes, options):
    whole, expected, _ = unit(VIEWS[:1], changes, options)
    report, recorder, _ = unit(VIEWS[:1], {**changes, "patch_size": patch_size}, options)
    assert report.loss == pytest.approx(whole.loss, rel=1e-6)
    assert (report.l1, report.ssim) == pytest.approx((whole.l1, whole.ssim), rel=1e-6)
    assert (recorder.rows == expected.rows).all() and len(recorder.rows) > 50
    assert_close(recorder.v_rows, expected.v_rows, 1e-5)


@pytest.mark.parametrize("absgrad", [False, True])
def test_patches_give_the_statistics_of_the_whole_view(unit, absgrad):
    changes = {"densify.strategy": "default", "densify.absgrad": absgrad}
    _, _, whole = unit(VIEWS[:1], changes)
    _, _, store = unit(VIEWS[:1], {**changes, "patch_size": 16})
    assert whole.statistics["grad_sum"].any()
    assert_close(store.statistics, whole.statistics, 1e-5)


def test_the_gradient_of_a_unit_is_the_mean_of_those_of_its_views(unit):
    singles = [unit([v]) for v in VIEWS]
    report, recorder, store = unit(VIEWS)
    mean = {name: sum(on_rows(r, store.n)[name] for _, r, _ in singles) / 3 for name in recorder.v_rows}
    assert_close(on_rows(recorder, store.n), mean, 1e-5)
    assert (np.diff(recorder.rows) > 0).all()
    assert set(recorder.rows) == set(np.concatenate([r.rows for _, r, _ in singles]))
    for name in ("loss", "l1", "ssim"):
        assert getattr(report, name) == pytest.approx(np.mean([getattr(s, name) for s, _, _ in singles]), rel=1e-6)
    assert report.n_scope == len(recorder.rows)


@pytest.mark.parametrize("absgrad", [False, True])
def test_statistics_of_a_unit_are_the_sum_of_those_of_its_views_taken_alone(unit, absgrad):
    changes = {"densify.strategy": "default", "densify.absgrad": absgrad}
    singles = [unit([v], changes)[2].statistics for v in VIEWS]
    statistics = unit(VIEWS, changes)[2].statistics
    assert_close(statistics, {name: sum(s[name] for s in singles) for name in statistics}, 1e-5)
    assert statistics["count"].max() == len(VIEWS)


@pytest.mark.parametrize("patch_size", [16, 512])
@pytest.mark.parametrize("strategy", ["none", "default", "mcmc"])
def test_a_view_that_sees_no_point_leaves_the_points_as_they_are(unit, scene, pictures, patch_size, strategy):
    adam = Adam(build_renderer("gaussian3d", Options(), "cpu").attributes, make_settings({}).optimizer, 1.0, 100)
    before = unit(VIEWS[:1])[2]
    changes = {"patch_size": patch_size, "densify.strategy": strategy, "densify.noise_lr": 0.0}
    report, _, store = unit([away_from(scene.views[1])], changes, optimizer=adam)
    assert report.n_scope == 0
    assert report.l1 == pytest.approx(pictures.get(1).rgb.mean() / 255, rel=1e-5)
    assert all(x.tobytes() == before.raw[name].tobytes() for name, x in store.raw.items())
    assert not any(x.any() for x in store.statistics.values())


def test_a_view_that_sees_no_point_halves_the_gradient_of_its_unit(unit, scene):
    _, alone, _ = unit([1])
    _, both, _ = unit([away_from(scene.views[4]), 1])
    assert (both.rows == alone.rows).all()
    assert_close(both.v_rows, {name: x / 2 for name, x in alone.v_rows.items()}, 1e-6)


@pytest.mark.parametrize("patch_size", [16, 512])
def test_one_point_is_trained(unit, scene, patch_size):
    full = unit([1])[2]
    row = [int(unit([1])[1].rows[3])]
    store = PointStore(full.attributes, {name: x[row] for name, x in full.raw.items()}, np.arange(1), 1)
    report, recorder, _ = unit([1], {"patch_size": patch_size}, store=store)
    assert report.n_scope == 1 and recorder.rows.tolist() == [0]
    assert all(np.isfinite(x).all() and x.shape[0] == 1 for x in recorder.v_rows.values())
    assert recorder.v_rows["opacities"].any()


def test_pictures_of_a_unit_may_differ_in_size(unit, scene, pictures):
    class Cropped:
        """View 4 loses its right and lower edge."""

        def get(self, index):
            picture = pictures.get(index)
            if index != 4:
                return picture
            return dataclasses.replace(picture, rgb=np.ascontiguousarray(picture.rgb[:, :30, :37]))

    small = dataclasses.replace(scene.views[4], width=37, height=30)
    singles = [unit([v], decoded=Cropped()) for v in (1, small)]
    report, recorder, store = unit([1, small], {"patch_size": 32}, decoded=Cropped())
    mean = {name: sum(on_rows(r, store.n)[name] for _, r, _ in singles) / 2 for name in recorder.v_rows}
    assert_close(on_rows(recorder, store.n), mean, 1e-5)
    assert report.loss == pytest.approx((singles[0][0].loss + singles[1][0].loss) / 2, rel=1e-6)


def test_pixels_outside_a_mask_do_not_matter(unit, scene, pictures):
    class Masked:
        def __init__(self, value):
            self.value = value

        def get(self, index):
            picture = pictures.get(index)
            rgb, mask = picture.rgb.copy(), np.ones(picture.rgb.shape[1:], bool)
            mask[:, :40] = False
            rgb[:, ~mask] = self.value
            return dataclasses.replace(picture, rgb=rgb, mask=mask)

    report, recorder, _ = unit([1], decoded=Masked(0))
    again, recorder_again, _ = unit([1], decoded=Masked(200))
    unmasked = unit([1])[1].v_rows
    assert again == report
    assert all(x.tobytes() == recorder_again.v_rows[name].tobytes() for name, x in recorder.v_rows.items())
    assert np.abs(recorder.v_rows["means"] - unmasked["means"]).max() > 0.1 * np.abs(unmasked["means"]).max()


def test_the_background_is_part_of_both_pictures(unit):
    black, white = (unit([1], {"data.background": b})[0] for b in ("black", "white"))
    assert abs(white.l1 - black.l1) > 1e-3
