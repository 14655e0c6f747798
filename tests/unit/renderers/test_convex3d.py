"""convex3d on the cpu backend: golden files, central differences in float64, footprints and splits."""

import numpy as np
import pytest

from gaian_hpc.arrays import ArrayTable, Cloud, Patch, View
from gaian_hpc.errors import SettingsError
from gaian_hpc.renderers.convex3d import Convex3D, cpu, lattice
from gaian_hpc.renderers.projection import pack_camera
from tests.golden.report import check

FILES = ("convex_edgezoo_49x35", "convex_sharp60_60x44", "convex_small6_32x32", "convex_soft50_64x48")
NAMES = ("points", "delta", "sigma", "sh")


@pytest.mark.parametrize("name", FILES)
def test_the_cpu_backend_agrees_with_a_golden_file(shared_dir, name):
    path = shared_dir / "golden" / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"no golden file {name}")
    report = check(path)
    assert report.ok, "\n".join(report.lines())
    assert len(report.comparisons) >= 16


def some_convexes(n=30, k=6, dtype=np.float64):
    """Return convexes before a camera at the origin."""
    rng = np.random.default_rng(0)
    middle = rng.normal(size=(n, 1, 3)) * [1.0, 0.8, 0.5] + [0, 0, 4]
    values = {"points": middle + 0.4 * rng.normal(size=(n, k, 3)), "delta": rng.uniform(0.05, 0.3, n),
              "sigma": rng.uniform(0.05, 0.3, n), "opacities": rng.uniform(0.3, 0.95, n),
              "sh": 0.3 * rng.normal(size=(n, 16, 3))}
    return ArrayTable({name: x.astype(dtype) for name, x in values.items()})


def a_view():
    return View(np.eye(4, dtype=np.float32), np.float32([[40, 0, 30], [0, 42, 22], [0, 0, 1]]), 60, 44)


@pytest.mark.parametrize("k", [4, 6])
@pytest.mark.parametrize("unit", [False, True])
def test_every_gradient_of_a_splat_equals_the_central_difference(unit, k):
    rng, points, camera = np.random.default_rng(1), some_convexes(k=k), pack_camera(a_view())
    n = points.n_rows
    shapes = {"centers2d": (2,), "edges": (6, 3), "sharpness": (), "depths": (), "colors": (3,), "extents": (4,)}
    weights = {name: rng.normal(size=(n, *shapes[name])) for name in ("edges", "sharpness", "depths", "colors")}

    def splats(values, about=None):
        out = {name: np.empty((n, *shape)) for name, shape in shapes.items()}
        cpu.project(camera, np.arange(n), values["points"], values["delta"], values["sigma"], values["opacities"],
                    values["sh"], 3, unit, *out.values())
        if about is not None:  # planes about a centre that stays
            out["edges"][:, :, 2] += np.einsum("njk,nk->nj", out["edges"][:, :, :2], about - out["centers2d"])
        return out

    whole = splats(points)

    def loss(values):
        out = splats(values, whole["centers2d"])
        kept = out["edges"][:, :, 2] > 0.5 * cpu.ABSENT
        total = (weights["edges"] * out["edges"] * kept[:, :, None]).sum()
        return float(total + sum((weights[name] * out[name]).sum() for name in ("sharpness", "depths", "colors")))

    gradients = {name: np.zeros(points[name].shape) for name in NAMES}
    cpu.project_vjp(camera, np.arange(n), points["points"], points["delta"], points["sigma"], points["sh"], 3, unit,
                    True, whole["colors"], *weights.values(), *gradients.values())
    for name, gradient in gradients.items():
        direction = rng.normal(size=gradient.shape)
        ahead, behind = ({**points, name: points[name] + s * 1e-6 * direction} for s in (1, -1))
        expected = (loss(ahead) - loss(behind)) / 2e-6
        size = np.linalg.norm(gradient) * np.sqrt(gradient.size)
        assert size > 0 and (gradient * direction).sum() == pytest.approx(expected, abs=1e-6 * size), name


def test_nothing_is_drawn_outside_of_footprints_and_patches_make_the_whole():
    renderer, view = Convex3D(), a_view()
    points = some_convexes(dtype=np.float32)
    ids = renderer.cull(view, points)
    splats = renderer.splat(view, points, ids)
    boxes = renderer.footprints(view, splats)
    y, x = np.mgrid[:44, :60] + 0.5
    for i in range(len(ids)):
        alone = renderer.render(Patch(view, 0, 0, 60, 44), splats.take(np.array([i]))).alpha
        outside = (x < boxes[i, 0]) | (x > boxes[i, 2]) | (y < boxes[i, 1]) | (y > boxes[i, 3])
        assert not alone[outside].any()
        planes = splats["edges"][i].astype(float)
        phi = np.log(np.exp(planes[:, 0, None, None] * (x - splats["centers2d"][i, 0])
                            + planes[:, 1, None, None] * (y - splats["centers2d"][i, 1])
                            + planes[:, 2, None, None]).sum(axis=0))
        raw = splats["opacities"][i] / (1 + np.exp(np.minimum(splats["sharpness"][i] * phi, 80)))
        expected = np.where(raw >= 1 / 255, np.minimum(raw, 0.99), 0)
        clear = np.abs(raw * 255 - 1) > 1e-3
        assert alone[clear] == pytest.approx(expected[clear], abs=2e-6)
    whole = renderer.render(Patch(view, 0, 0, 60, 44), splats)
    part = renderer.render(Patch(view, 16, 32, 48, 44), splats)
    assert (part.color == whole.color[:, 32:44, 16:48]).all()


def test_start_convexes_lie_around_their_points_and_children_inside_their_parents():
    renderer, rng = Convex3D(), np.random.default_rng(0)
    cloud = Cloud(rng.normal(size=(7, 3)).astype(np.float32), np.full((7, 3), 0.5, np.float32),
                  np.full(7, 0.3, np.float32), np.arange(7))
    raw = {a.name: a.init(cloud) for a in renderer.attributes}
    assert np.linalg.norm(lattice(6), axis=1) == pytest.approx(np.ones(6))
    points = ArrayTable({**raw, "delta": np.exp(raw["delta"])})
    assert renderer.centers(points) == pytest.approx(cloud.positions, abs=0.1)
    offsets = renderer.split_offsets(points, np.zeros((7, 3)), 1.6)["points"]
    child = ArrayTable({**points, "points": (points["points"] + offsets).astype(np.float32)})
    assert renderer.sizes(child) == pytest.approx(renderer.sizes(points) / 1.6, rel=1e-5)
    assert renderer.centers(child) == pytest.approx(renderer.centers(points), abs=1e-6)


def test_settings_that_make_no_sense_are_refused():
    for name, value in (("n_points", 3), ("delta", 0.0), ("sigma", -1.0), ("opacity", 1.0)):
        with pytest.raises(SettingsError, match=f"renderer.{name} is"):
            Convex3D.Options(**{name: value})
