"""Derivatives of gaussian3d on the cpu backend against central differences of the float64 oracle, and edge cases."""

from dataclasses import replace

import numpy as np
import pytest

from gaian_hpc.arrays import ArrayTable, Patch
from gaian_hpc.renderers.base import OutputGradients
from gaian_hpc.renderers.gaussian3d import Gaussian3D
from gaian_hpc.renderers.reference import ReferenceGaussian3D, central_difference
from tests.golden import gaussian3d, synthetic
from tests.golden.gaussian3d import POINT_ARRAYS, scatter, view_of
from tests.golden.report import implementation_of

SPLAT_GRADIENTS = ("means2d", "conics", "depths", "colors", "opacities")


def small_case(seed, **settings):
    """Return a case of few points that cover much of a small picture."""
    settings = {"n": 15, "width": 24, "height": 19, "scale": 0.25} | settings
    return synthetic.make_case(synthetic.scene(seed, **settings))


def points_in(case):
    """Return the case's points, float32."""
    return ArrayTable({name: case[name] for name in POINT_ARRAYS})


def gradients_of(renderer, case, *, rows=slice(None)):
    """Return the cpu backend's ids, v_splats and v_points of a case's weights."""
    view, points = view_of(case), points_in(case).take(rows)
    patch = Patch(view, 0, 0, view.width, view.height)
    ids = renderer.cull(view, points)
    splats = renderer.splat(view, points, ids)
    weights = OutputGradients(np.ascontiguousarray(case["v_image"].transpose(2, 0, 1)), case["v_alpha"],
                              {"depth": case["v_depth"]})
    v_splats = renderer.render_vjp(patch, splats, renderer.render(patch, splats), weights)
    return ids, v_splats, renderer.splat_vjp(view, points, ids, splats, v_splats)


def oracle_loss(case, degree, antialiased, name, x):
    """Return the float64 loss of a case in which one array of the points is replaced."""
    arrays = {k: case.double(k) for k in POINT_ARRAYS} | {name: x}
    weights = OutputGradients(case.double("v_image").transpose(2, 0, 1), case.double("v_alpha"),
                              {"depth": case.double("v_depth")})
    oracle = ReferenceGaussian3D(ReferenceGaussian3D.Options(degree, antialiased))
    return oracle.loss(view_of(case), ArrayTable(arrays), weights)


@pytest.mark.parametrize("antialiased", [False, True])
@pytest.mark.parametrize("degree", [0, 1, 2, 3])
@pytest.mark.parametrize("name", POINT_ARRAYS)
def test_a_point_gradient_equals_the_oracles_central_difference(name, degree, antialiased):
    case = small_case(40 + degree, degree=degree)
    renderer = Gaussian3D(Gaussian3D.Options(sh_degree=degree, antialiased=antialiased, depth=True))
    ids, _, v_points = gradients_of(renderer, case)
    x = case.double(name)
    gradient = scatter(len(x), ids, v_points[name])
    rng = np.random.default_rng(degree)
    for _ in range(3):
        direction = rng.normal(size=x.shape)
        expected = central_difference(lambda x: oracle_loss(case, degree, antialiased, name, x), x, direction)
        # The sum may cancel, its rounding follows the size of its terms.
        terms = np.linalg.norm(gradient) * np.sqrt(direction.size)
        assert np.sum(gradient * direction) == pytest.approx(expected, abs=2e-5 * terms)
        assert terms > 0.1


@pytest.mark.parametrize("active", [0, 1, 2])
def test_a_lower_active_degree_gives_the_gradients_of_its_bands_only(active):
    case = small_case(50, degree=3)
    renderer = Gaussian3D(Gaussian3D.Options(sh_degree=3, depth=True)).at_degree(active)
    ids, _, v_points = gradients_of(renderer, case)
    assert v_points["sh"].shape[1:] == ((active + 1) ** 2, 3)
    means, direction = case.double("means"), np.random.default_rng(1).normal(size=case["means"].shape)
    expected = central_difference(lambda x: oracle_loss(case, active, False, "means", x), means, direction)
    gradient = scatter(len(direction), ids, v_points["means"])
    assert np.sum(gradient * direction) == pytest.approx(expected, abs=1e-4 * np.linalg.norm(gradient))


@pytest.mark.parametrize("name", SPLAT_GRADIENTS)
def test_a_splat_gradient_equals_a_central_difference_of_the_compositing_alone(name):
    case = small_case(60)
    view, points, oracle = view_of(case), points_in(case), ReferenceGaussian3D(ReferenceGaussian3D.Options(2))
    ids, v_splats, _ = gradients_of(Gaussian3D(Gaussian3D.Options(sh_degree=2, depth=True)), case)
    splats, patch = oracle.splat(view, points, ids), Patch(view, 0, 0, view.width, view.height)

    def loss(x):
        out = oracle.render(patch, ArrayTable(dict(splats) | {name: x}))
        return (np.sum(out.color * case.double("v_image").transpose(2, 0, 1)) + np.sum(out.alpha * case["v_alpha"])
                + np.sum(out.maps["depth"] * case["v_depth"]))

    direction = np.random.default_rng(2).normal(size=splats[name].shape)
    expected = central_difference(loss, splats[name], direction, 1e-7 if name == "conics" else 1e-6)
    terms = np.linalg.norm(v_splats[name]) * np.sqrt(direction.size)
    assert np.sum(v_splats[name] * direction) == pytest.approx(expected, abs=2e-5 * terms)


def test_the_absolute_gradient_sums_magnitudes_per_pixel():
    case = small_case(61, width=14, height=11)
    ids, v_splats, _ = gradients_of(Gaussian3D(Gaussian3D.Options(sh_degree=2, depth=True), absgrad=True), case)
    total = np.zeros((len(ids), 2))
    for y, x in np.ndindex(case["v_alpha"].shape):
        weights = {k: np.zeros_like(case[k]) for k in ("v_image", "v_alpha", "v_depth")}
        for k, w in weights.items():
            w[y, x] = case[k][y, x]
        one = replace(case, arrays=case.arrays | weights)
        total += np.abs(gradients_of(Gaussian3D(Gaussian3D.Options(sh_degree=2, depth=True)), one)[1]["means2d"])
    np.testing.assert_allclose(v_splats["absgrad"], total, rtol=1e-4, atol=1e-5 * total.max())
    assert (v_splats["absgrad"] > np.abs(v_splats["means2d"]) + 1e-3 * total.max()).any()


def test_the_variants_for_training_equal_the_one_with_all_outputs():
    case = small_case(62)
    case = replace(case, arrays=case.arrays | {"v_depth": np.zeros_like(case["v_depth"])})
    _, full_splats, full_points = gradients_of(Gaussian3D(Gaussian3D.Options(2, depth=True), absgrad=True), case)
    for absgrad in (False, True):
        _, v_splats, v_points = gradients_of(Gaussian3D(Gaussian3D.Options(2), absgrad=absgrad), case)
        assert ("absgrad" in v_splats) == absgrad
        for name in POINT_ARRAYS:
            scale = np.abs(full_points[name]).max()
            np.testing.assert_allclose(v_points[name], full_points[name], rtol=0, atol=2e-6 * scale, err_msg=name)
        np.testing.assert_allclose(v_splats["colors"], full_splats["colors"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("side", [16, 32])
def test_patches_add_up_to_the_whole_picture_and_its_gradients(side):
    case = small_case(63, width=50, height=41, n=40)
    view, points = view_of(case), points_in(case)
    renderer = Gaussian3D(Gaussian3D.Options(sh_degree=2, depth=True))
    ids, whole_gradients, _ = gradients_of(renderer, case)
    splats = renderer.splat(view, points, ids)
    whole = renderer.render(Patch(view, 0, 0, view.width, view.height), splats)
    total = {name: np.zeros(whole_gradients[name].shape) for name in SPLAT_GRADIENTS}
    for y0 in range(0, view.height, side):
        for x0 in range(0, view.width, side):
            patch = Patch(view, x0, y0, min(x0 + side, view.width), min(y0 + side, view.height))
            part = (slice(y0, patch.y1), slice(x0, patch.x1))
            out = renderer.render(patch, splats)
            np.testing.assert_array_equal(out.color, whole.color[(slice(None), *part)])
            np.testing.assert_array_equal(out.alpha, whole.alpha[part])
            v = OutputGradients(np.ascontiguousarray(case["v_image"][part].transpose(2, 0, 1)),
                                np.ascontiguousarray(case["v_alpha"][part]),
                                {"depth": np.ascontiguousarray(case["v_depth"][part])})
            v_splats = renderer.render_vjp(patch, splats, out, v)
            for name in SPLAT_GRADIENTS:
                total[name] += v_splats[name]
    for name in SPLAT_GRADIENTS:
        np.testing.assert_allclose(total[name], whole_gradients[name], rtol=0, err_msg=name,
                                   atol=2e-6 * np.abs(total[name]).max())


def test_a_gradient_that_is_not_given_is_zero():
    case = small_case(64)
    zeros = {"v_alpha": np.zeros_like(case["v_alpha"]), "v_depth": np.zeros_like(case["v_depth"])}
    renderer = Gaussian3D(Gaussian3D.Options(2, depth=True))
    _, expected, _ = gradients_of(renderer, replace(case, arrays=case.arrays | zeros))
    view, points = view_of(case), points_in(case)
    patch = Patch(view, 0, 0, view.width, view.height)
    splats = renderer.splat(view, points, renderer.cull(view, points))
    v_color = np.ascontiguousarray(case["v_image"].transpose(2, 0, 1))
    found = renderer.render_vjp(patch, splats, renderer.render(patch, splats), OutputGradients(v_color))
    for name in SPLAT_GRADIENTS:
        np.testing.assert_array_equal(found[name], expected[name])


def placed(arrays, row, pixel, depth, scales, opacity=0.9):
    """Put the centre of a row's point exactly where it projects to ``pixel`` (x, y) at ``depth``."""
    K, viewmat = arrays["K"].astype(np.float64), arrays["viewmat"].astype(np.float64)
    x = depth * (pixel[0] - K[0, 2]) / K[0, 0]
    y = depth * (pixel[1] - K[1, 2]) / K[1, 1]
    arrays["means"][row] = viewmat[:3, :3].T @ (np.array([x, y, depth]) - viewmat[:3, 3])
    arrays["scales"][row], arrays["opacities"][row] = scales, opacity


EDGE_POINTS = {
    "behind the camera": dict(pixel=(10, 10), depth=-3.0, scales=1.0),
    "just before the near plane": dict(pixel=(10, 10), depth=0.0099, scales=0.01),
    "just after the near plane": dict(pixel=(12.3, 9.1), depth=0.0102, scales=0.0005),
    "huge": dict(pixel=(12, 9), depth=4.0, scales=50.0),
    "behind everything and huge": dict(pixel=(12, 9), depth=900.0, scales=300.0),
    "a needle": dict(pixel=(12, 9), depth=4.0, scales=(3.0, 0.001, 0.001)),
    "a pancake": dict(pixel=(12, 9), depth=4.0, scales=(1.0, 1.0, 1e-5)),
    "smaller than a pixel on a pixel's centre": dict(pixel=(12.5, 9.5), depth=4.0, scales=1e-5),
    "smaller than a pixel on a pixel's corner": dict(pixel=(12, 9), depth=4.0, scales=1e-5),
    "an opacity below 1/255": dict(pixel=(12, 9), depth=4.0, scales=0.3, opacity=0.0039),
    "an opacity of zero": dict(pixel=(12, 9), depth=4.0, scales=0.3, opacity=0.0),
    "an opacity just above 1/255": dict(pixel=(12.5, 9.5), depth=4.0, scales=0.3, opacity=0.00394),
    "an opacity of one": dict(pixel=(12, 9), depth=4.0, scales=0.3, opacity=1.0),
    "on the left border": dict(pixel=(0, 9), depth=4.0, scales=0.2),
    "on the right border": dict(pixel=(24, 9), depth=4.0, scales=0.2),
    "on the top border": dict(pixel=(12, 0), depth=4.0, scales=0.2),
    "on a corner": dict(pixel=(24, 19), depth=4.0, scales=0.2),
    "outside, reaching in": dict(pixel=(-4, 9), depth=4.0, scales=0.4),
    "outside, not reaching in": dict(pixel=(-40, 9), depth=4.0, scales=0.1),
    "outside the widened view, reaching in": dict(pixel=(-40, 9), depth=1.0, scales=1.5),
}


@pytest.mark.parametrize("edge", EDGE_POINTS.values(), ids=EDGE_POINTS)
@pytest.mark.parametrize("others", [True, False], ids=["among others", "alone"])
def test_an_edge_point_gives_the_oracles_picture_and_gradients(edge, others):
    arrays = synthetic.scene(70, n=12 if others else 1, width=24, height=19, scale=0.25)
    placed(arrays, 0, **edge)
    case = synthetic.make_case(arrays)
    measured = gaussian3d.measure_scene(case, implementation_of("cpu"))
    costs = gaussian3d.costs_of(case, gaussian3d.measure_scene, 3)
    missed = [c for c in gaussian3d.compare_all(case, measured, costs, exact=False) if not c.ok]
    assert not missed


@pytest.mark.parametrize("n", [0, 5])
def test_without_a_visible_point_the_picture_is_empty_and_so_are_the_gradients(n):
    arrays = synthetic.scene(71, n=5, width=24, height=19, far=0.02)
    case = synthetic.make_case(arrays)
    renderer = Gaussian3D(Gaussian3D.Options(2, depth=True), absgrad=True)
    ids, v_splats, v_points = gradients_of(renderer, case, rows=slice(n))
    assert len(ids) == 0 and v_splats.n_rows == 0 and v_points.n_rows == 0
    view = view_of(case)
    splats = renderer.splat(view, points_in(case).take(slice(n)), ids)
    out = renderer.render(Patch(view, 0, 0, view.width, view.height), splats)
    assert not out.color.any() and not out.alpha.any() and not out.maps["depth"].any()


def test_equal_depths_are_composited_in_the_order_of_rows():
    arrays = synthetic.scene(72, n=4, width=24, height=19, degree=0)
    for row in range(4):
        placed(arrays, row, (12, 9), 4.0, 0.3, 0.7)
    arrays["sh"][:, 0] = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]]
    case = synthetic.make_case(arrays)
    view, points, renderer = view_of(case), points_in(case), Gaussian3D(Gaussian3D.Options(0))
    assert points.n_rows == 4
    splats = renderer.splat(view, points, renderer.cull(view, points))
    color = renderer.render(Patch(view, 0, 0, view.width, view.height), splats).color[:, 9, 12]
    assert color[0] > color[1] > color[2]
    swapped = splats.take(np.array([2, 1, 0, 3]))
    color = renderer.render(Patch(view, 0, 0, view.width, view.height), swapped).color[:, 9, 12]
    assert color[2] > color[1] > color[0]
