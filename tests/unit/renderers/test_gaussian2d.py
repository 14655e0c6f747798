"""gaussian2d on the cpu backend: golden files, central differences in float64, footprints, and its own losses."""

import numpy as np
import pytest

from gaian_hpc.arrays import ArrayTable, Cloud, Patch, View
from gaian_hpc.errors import SettingsError
from gaian_hpc.evaluation.views import depth_normals
from gaian_hpc.renderers.base import OutputGradients
from gaian_hpc.renderers.gaussian2d import Gaussian2D, cpu
from gaian_hpc.renderers.gaussian2d.surface import normal_loss
from gaian_hpc.renderers.projection import pack_camera
from tests.golden.report import check

FILES = ("2dgs_edgezoo_50x38", "2dgs_garden1500_96x72", "2dgs_overlap200_64x48", "2dgs_small8_32x32")
SHAPES = {"means2d": (2,), "inverses": (3, 3), "regions": (5,), "depths": (), "normals": (3,), "colors": (3,)}


@pytest.mark.parametrize("name", FILES)
def test_the_cpu_backend_agrees_with_a_golden_file(shared_dir, name):
    path = shared_dir / "golden" / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"no golden file {name}")
    report = check(path)
    assert report.ok, "\n".join(report.lines())
    assert len(report.comparisons) >= 26


def some_surfels(n=30, dtype=np.float64):
    """Return surfels before a camera at the origin."""
    rng = np.random.default_rng(0)
    values = {"means": rng.normal(size=(n, 3)) * [1.0, 0.8, 0.5] + [0, 0, 4], "quats": rng.normal(size=(n, 4)),
              "scales": rng.uniform(0.05, 0.5, (n, 2)), "opacities": rng.uniform(0.3, 0.95, n),
              "sh": 0.3 * rng.normal(size=(n, 16, 3))}
    return ArrayTable({name: x.astype(dtype) for name, x in values.items()})


def a_view():
    return View(np.eye(4, dtype=np.float32), np.float32([[40, 0, 30], [0, 42, 22], [0, 0, 1]]), 60, 44)


def test_every_gradient_of_a_splat_equals_the_central_difference():
    rng, points, camera = np.random.default_rng(1), some_surfels(), pack_camera(a_view())
    n, names = points.n_rows, ("means2d", "inverses", "depths", "normals", "colors")
    weights = {name: rng.normal(size=(n, *SHAPES[name])) for name in names}

    def splats(values):
        out = {name: np.empty((n, *shape)) for name, shape in SHAPES.items()}
        cpu.project(camera, np.arange(n), values["means"], values["quats"], values["scales"], values["opacities"],
                    values["sh"], 3, *out.values())
        return out

    def loss(values):
        out = splats(values)
        return float(sum((weights[name] * out[name]).sum() for name in names))

    gradients = {name: np.zeros(points[name].shape) for name in ("means", "quats", "scales", "sh")}
    cpu.project_vjp(camera, np.arange(n), points["means"], points["quats"], points["scales"], points["sh"], 3,
                    splats(points)["colors"], *weights.values(), *gradients.values())
    for name, gradient in gradients.items():
        for i in range(n):  # one edge-on surfel would hide all others
            direction = np.zeros(gradient.shape)
            direction[i] = rng.normal(size=gradient.shape[1:])
            ahead, behind = ({**points, name: points[name] + s * 1e-6 * direction} for s in (1, -1))
            expected, size = (loss(ahead) - loss(behind)) / 2e-6, np.linalg.norm(gradient[i])
            assert size > 0 and (gradient * direction).sum() == pytest.approx(expected, abs=1e-4 * size), (name, i)


def test_nothing_is_drawn_outside_of_footprints_and_patches_make_the_whole():
    renderer, view = Gaussian2D(maps=True), a_view()
    points = some_surfels(200, np.float32)
    ids = renderer.cull(view, points)
    splats = renderer.splat(view, points, ids)
    boxes = renderer.footprints(view, splats)
    y, x = np.mgrid[:44, :60] + 0.5
    for i in range(len(ids)):
        alone = renderer.render(Patch(view, 0, 0, 60, 44), splats.take(np.array([i]))).alpha
        outside = (x < boxes[i, 0]) | (x > boxes[i, 2]) | (y < boxes[i, 1]) | (y > boxes[i, 3])
        assert not alone[outside].any()
        w = splats["inverses"][i].astype(float)
        px, py = x - splats["means2d"][i, 0], y - splats["means2d"][i, 1]
        u, v, r = (w[k, 0] * px + w[k, 1] * py + w[k, 2] for k in range(3))
        exponent = np.minimum((u / r) ** 2 + (v / r) ** 2, 2 * (px**2 + py**2))
        raw = splats["opacities"][i] * np.exp(-0.5 * exponent)
        expected = np.where(raw >= 1 / 255, np.minimum(raw, 0.99), 0)
        clear = np.abs(raw * 255 - 1) > 1e-3
        assert alone[clear] == pytest.approx(expected[clear], abs=1e-5)
    unseen = np.setdiff1d(np.arange(200), ids)
    assert not renderer.render(Patch(view, 0, 0, 60, 44), renderer.splat(view, points, unseen)).alpha.any()
    whole = renderer.render(Patch(view, 0, 0, 60, 44), splats)
    part = renderer.render(Patch(view, 16, 32, 48, 44), splats)
    assert (part.color == whole.color[:, 32:44, 16:48]).all()
    for name, plane in part.maps.items():
        assert (plane == whole.maps[name][..., 32:44, 16:48]).all(), name


def test_a_surfel_that_reaches_behind_the_camera_is_drawn_and_one_seen_edge_on_keeps_the_width_of_a_pixel():
    renderer, view = Gaussian2D(maps=True), a_view()
    half = np.sqrt(0.5)
    points = ArrayTable({"means": np.float32([[0, 0.5, 1.0], [0.01, 0, 4.0]]),  # a floor, and a wall along the axis
                         "quats": np.float32([[half, half, 0, 0], [half, 0, half, 0]]),
                         "scales": np.float32([[5, 5], [0.3, 0.3]]), "opacities": np.float32([0.9, 0.9]),
                         "sh": np.zeros((2, 16, 3), np.float32)})
    ids = renderer.cull(view, points)
    assert ids.tolist() == [0, 1]
    splats = renderer.splat(view, points, ids)
    floor, wall = (renderer.render(Patch(view, 0, 0, 60, 44), splats.take(np.array([i]))) for i in (0, 1))
    assert floor.alpha[30:].min() > 0.3
    with np.errstate(divide="ignore", invalid="ignore"):
        depths = floor.maps["depth"] / floor.alpha
    assert depths[43, 30] == pytest.approx(0.5 * 42 / 21.5, rel=1e-4)  # y·f_y over rows below the axis
    assert wall.alpha[22, 30] > 0.5 and np.isfinite(wall.maps["depth"]).all()
    v = renderer.render_vjp(Patch(view, 0, 0, 60, 44), splats, renderer.render(Patch(view, 0, 0, 60, 44), splats),
                            OutputGradients(None, None, {"depth": np.ones((44, 60), np.float32)}))
    assert all(np.isfinite(x).all() for x in v.values())


def planes_of_a_bumpy_wall(rng, view):
    y, x = np.mgrid[:view.height, :view.width]
    alpha = rng.uniform(0.5, 0.99, y.shape)
    depth = (4 + 0.02 * x + 0.3 * np.sin(y / 5) + 0.05 * rng.normal(size=y.shape)) * alpha
    alpha[5:8, 5:8] = 0.0
    return np.stack([alpha, depth, *(rng.normal(size=(3, *y.shape)) - [[[0]], [[0]], [[2]]])])


def test_the_loss_of_normals_has_the_gradient_of_central_differences_and_patches_add_up():
    rng, view = np.random.default_rng(2), a_view()
    planes = planes_of_a_bumpy_wall(rng, view)
    mask = np.ones(planes.shape[1:], bool)
    mask[20:25, 30:40] = False
    whole = Patch(view, 0, 0, 60, 44)
    total, v = normal_loss(whole, planes, (0, 0), mask)
    for k in range(1, 5):
        direction = rng.normal(size=planes.shape) * (np.arange(5) == k)[:, None, None]
        ahead, behind = (normal_loss(whole, planes + s * 1e-6 * direction, (0, 0), mask)[0] for s in (1, -1))
        assert (v * direction).sum() == pytest.approx((ahead - behind) / 2e-6, rel=2e-4), k
    # α enters through the depth only: where weight · depth stays, only the ratio changes
    expected = -v[1] * planes[1] / np.maximum(planes[0], 1e-30) * (planes[0] > 0)
    assert v[0] == pytest.approx(expected, abs=1e-5 * np.abs(expected).max())
    parts = 0.0
    for x0, y0, x1, y1 in ((0, 0, 32, 16), (32, 0, 60, 16), (0, 16, 32, 44), (32, 16, 60, 44)):
        left, top = max(x0 - 10, 0), max(y0 - 10, 0)
        window = (slice(top, y1 + 10), slice(left, x1 + 10))
        part, v_part = normal_loss(Patch(view, x0, y0, x1, y1), planes[:, *window], (left, top), mask[window])
        assert (v_part == v[:, y0:y1, x0:x1]).all()
        parts += part
    assert parts == pytest.approx(total)


def test_the_normals_of_a_plane_are_its_own_and_agreement_costs_nothing():
    view, normal = a_view(), np.array([0.3, -0.2, -0.9])
    normal /= np.linalg.norm(normal)
    y, x = np.mgrid[:44, :60] + 0.5
    rays = np.stack([(x - 30) / 40, (y - 22) / 42, np.ones(x.shape)])
    depth = -3.0 / np.einsum("k,kyx->yx", normal, rays)
    found = depth_normals(view, depth)
    assert found[:, 1:-1, 1:-1] == pytest.approx(np.broadcast_to(normal[:, None, None], (3, 42, 58)), abs=1e-6)
    planes = np.stack([np.ones(x.shape), depth, *np.broadcast_to(normal[:, None, None], rays.shape)])
    assert normal_loss(Patch(view, 0, 0, 60, 44), planes, (0, 0), None)[0] == pytest.approx(0, abs=1e-9)


def test_losses_count_from_their_steps_on_and_start_directions_are_spread():
    renderer = Gaussian2D(Gaussian2D.Options(normal_from=100, distortion_weight=10.0, distortion_from=50))
    assert renderer.at_step(50).weights == (0, 0) and not renderer.at_step(50).loss_maps
    assert renderer.at_step(51).weights == (0, 10.0) and renderer.at_step(101).weights == (0.05, 10.0)
    assert [f.name for f in renderer.at_step(101).loss_maps] == ["alpha", "depth", "normals"]
    cloud = Cloud(np.zeros((500, 3), np.float32), np.full((500, 3), 0.5, np.float32), np.ones(500, np.float32),
                  np.arange(500), 3)
    quats = next(a for a in renderer.attributes if a.name == "quats").init(cloud)
    assert np.abs(quats.mean(axis=0)).max() < 0.2 and np.linalg.norm(quats, axis=1).min() > 0.05


def test_settings_that_make_no_sense_are_refused():
    for name, value in (("depth", "none"), ("normal_weight", -1.0), ("distortion_from", -1), ("opacity", 1.0)):
        with pytest.raises(SettingsError, match=f"renderer.{name} is"):
            Gaussian2D.Options(**{name: value})
