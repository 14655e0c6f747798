"""gaussian4d on the cpu backend: golden files, central differences in float64, slices, and training."""

import numpy as np
import pytest

from gaian_hpc.arrays import ArrayTable, View
from gaian_hpc.data.scene import load_scene
from gaian_hpc.errors import DataError, SettingsError
from gaian_hpc.renderers.gaussian3d import Gaussian3D
from gaian_hpc.renderers.gaussian4d import GEOMETRY, Gaussian4D, cpu
from gaian_hpc.renderers.projection import pack_camera
from tests.golden.report import check

FILES = ("4dgs_edgezoo_50x38", "4dgs_norot_80_48x48", "4dgs_overlap150_60x44", "4dgs_sht2_100_60x44",
         "4dgs_small10_32x32")
OUTPUTS = {"means2d": (2,), "conics": (3,), "depths": (), "colors": (3,), "opacities": (), "radii": (2,)}
MODES = {"turning": {}, "fixed": {"rotate_time": False}, "conditional": {"direction": "conditional"},
         "harmonics": {"sh_degree_t": 2, "duration": 1.3, "blur_t": 0.05}}


@pytest.mark.parametrize("name", FILES)
def test_the_cpu_backend_agrees_with_a_golden_file(shared_dir, name):
    path = shared_dir / "golden" / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"no golden file {name}")
    report = check(path)
    assert report.ok, "\n".join(report.lines())
    assert len(report.comparisons) >= 12


def some_points(renderer, n=40, dtype=np.float64, seed=0):
    """Return points before a camera at the origin, some of them clamped or at the edge."""
    rng = np.random.default_rng(seed)
    shapes = {a.name: (n, *a.shape) for a in renderer.attributes}
    values = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    values["means"] = values["means"] * [1.0, 1.0, 0.5] + [0, 0, 4]
    values["times"] = rng.uniform(0, 1, n)
    values["scales"], values["scales_t"] = rng.uniform(0.05, 0.4, (n, 3)), rng.uniform(0.2, 0.6, n)
    values["opacities"] = rng.uniform(0.2, 0.9, n)
    values["sh"] *= 0.2
    return ArrayTable({name: x.astype(dtype) for name, x in values.items()})


def a_view(time=0.4):
    return View(np.eye(4, dtype=np.float32), np.float32([[40, 0, 30], [0, 42, 22], [0, 0, 1]]), 60, 44, time=time)


@pytest.mark.parametrize("mode", MODES)
def test_every_gradient_of_a_splat_equals_the_central_difference(mode):
    renderer, rng = Gaussian4D(Gaussian4D.Options(**MODES[mode])), np.random.default_rng(1)
    points, o, camera = some_points(renderer), renderer.options, pack_camera(a_view())
    n = points.n_rows
    weights = {name: rng.normal(size=(n, *shape)) for name, shape in OUTPUTS.items() if name != "radii"}
    tail = (renderer.degree, renderer.degree_t, o.duration, o.eps2d, o.blur_t, o.rotate_time,
            o.direction == "conditional")

    def splats(values):
        out = {name: np.empty((n, *shape)) for name, shape in OUTPUTS.items()}
        cpu.project(camera, 0.4, np.arange(n), *(values[name] for name in (*GEOMETRY, "sh")), *tail, *out.values())
        return out

    def loss(values):
        out = splats(values)
        return sum(float((w * out[name]).sum()) for name, w in weights.items())

    gradients = {a.name: np.zeros((n, *a.shape)) for a in renderer.attributes}
    cpu.project_vjp(camera, 0.4, np.arange(n), *(points[name] for name in (*GEOMETRY, "sh")), *tail,
                    splats(points)["colors"], *(weights[name] for name in OUTPUTS if name != "radii"),
                    *(gradients[name] for name in (*GEOMETRY, "sh")))
    for name, gradient in gradients.items():
        direction = rng.normal(size=gradient.shape)
        h = 1e-6
        ahead, behind = ({**points, name: points[name] + s * h * direction} for s in (1, -1))
        expected = (loss(ahead) - loss(behind)) / (2 * h)
        size = np.linalg.norm(gradient) * np.sqrt(gradient.size) + 1e-12
        assert (gradient * direction).sum() == pytest.approx(expected, abs=1e-6 * size), name
        assert np.any(gradient) or (name == "quats_r" and mode == "fixed")


@pytest.mark.parametrize("mode", ["turning", "fixed", "harmonics"])
def test_points_written_as_3d_gaussians_at_a_time_look_the_same_then(mode):
    renderer = Gaussian4D(Gaussian4D.Options(**MODES[mode], depth=True))
    points, view = some_points(renderer, dtype=np.float32, seed=3), a_view(0.7)
    ids = renderer.cull(view, points)
    expected = renderer.splat(view, points, ids)
    raw = renderer.at_time(points, 0.7)
    still = Gaussian3D(Gaussian3D.Options(depth=True))
    values = ArrayTable({**raw, "scales": np.exp(raw["scales"]), "opacities": 1 / (1 + np.exp(-raw["opacities"]))})
    got = still.splat(view, values, still.cull(view, values))
    assert 5 < len(ids) == got.n_rows
    for name in ("means2d", "depths", "opacities", "conics"):
        assert got[name] == pytest.approx(expected[name], rel=2e-3, abs=1e-3), name
    if mode == "fixed":  # seen from the same place; otherwise colours look along the moved mean
        assert got["colors"] == pytest.approx(expected["colors"], abs=1e-4)


def test_a_point_is_left_out_where_it_weighs_nothing_in_time():
    renderer = Gaussian4D(Gaussian4D.Options())
    points = some_points(renderer, dtype=np.float32)
    points = ArrayTable({**points, "times": np.zeros(40, np.float32), "scales_t": np.full(40, 0.01, np.float32)})
    assert len(renderer.cull(a_view(0.0), points)) > 20
    assert len(renderer.cull(a_view(1.0), points)) == 0


def test_children_of_a_split_are_samples_of_their_parent_in_space_and_time():
    renderer = Gaussian4D(Gaussian4D.Options())
    one = some_points(renderer, n=1, dtype=np.float32)
    many = ArrayTable({name: np.repeat(x, 20000, axis=0) for name, x in one.items()})
    draws = np.random.default_rng(0).normal(size=(20000, 4))
    offsets = renderer.split_offsets(many, draws, 1.6)
    found = np.cov(np.concatenate([offsets["means"], offsets["times"][:, None]], axis=1).T)
    matrix = np.empty(16)
    left, right = (cpu.unit(one[name][0].astype(np.float64))[0] for name in ("quats_l", "quats_r"))
    cpu.rotation4(left, right, matrix)
    m = matrix.reshape(4, 4) * np.append(one["scales"][0], one["scales_t"][0])
    assert found == pytest.approx(m @ m.T, abs=0.03 * np.abs(m @ m.T).max())


def test_a_scene_without_times_is_refused_by_name(tmp_path):
    from gaian_hpc.data.synthetic import write_city
    from gaian_hpc.settings import Settings
    from gaian_hpc.training.trainer import Trainer

    scene = load_scene(write_city(tmp_path / "city", n_views=4, width=32, height=24, n_points=100, spacing=8.0))
    with pytest.raises(DataError, match=r"'gaussian4d' needs the time of every view; add times\.json"):
        Trainer(scene, tmp_path / "run", Settings(method="gaussian4d"), Gaussian4D.Options())


def test_settings_that_make_no_sense_are_refused():
    for name, value in (("sh_degree_t", 3), ("duration", 0.0), ("direction", "sideways"), ("scale_t", -1.0)):
        with pytest.raises(SettingsError, match=f"renderer.{name} is"):
            Gaussian4D.Options(**{name: value})
