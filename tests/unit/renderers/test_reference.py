"""The float64 oracle against known answers and golden vectors, its derivatives against central differences."""

import numpy as np
import pytest

from gaian_hpc.arrays import ArrayTable, Patch, View
from gaian_hpc.renderers.base import OutputGradients
from gaian_hpc.renderers.reference import ReferenceGaussian3D, central_difference, sh_basis
from tests.golden import synthetic
from tests.golden.gaussian3d import POINT_ARRAYS, view_of
from tests.golden.report import check

EXACT_FILES = ("3dgs_edgezoo_50x38", "3dgs_garden2000_128x96", "3dgs_overlap150_deg1_61x45", "3dgs_overlap200_64x48",
               "3dgs_projection300_80x60", "3dgs_small8_32x32", "sh_deg0to3", "ssim_random_40x33", "ssim_smooth_64x48")
FRONTAL = View(np.eye(4, dtype=np.float32), np.float32([[20, 0, 8], [0, 20, 8], [0, 0, 1]]), 16, 16)


def one_point(**changed: object) -> ArrayTable:
    """Return a grey point whose centre projects onto the centre of pixel (8, 8) at depth 2."""
    arrays = {"means": [[0.05, 0.05, 2]], "quats": [[1, 0, 0, 0]], "scales": [[0.1, 0.1, 0.1]], "opacities": [0.5],
              "sh": np.zeros((1, 1, 3))}
    return ArrayTable({name: np.asarray(x, np.float32) for name, x in (arrays | changed).items()})


def rendered(points: ArrayTable, view: View = FRONTAL, **options: object):
    """Return the splats and the picture of the oracle with SH degree 0."""
    renderer = ReferenceGaussian3D(ReferenceGaussian3D.Options(sh_degree=0, **options))
    splats = renderer.splat(view, points, renderer.cull(view, points))
    return splats, renderer.render(Patch(view, 0, 0, view.width, view.height), splats)


@pytest.mark.parametrize("name", EXACT_FILES)
def test_the_oracle_reproduces_a_golden_file_to_rounding(shared_dir, name):
    path = shared_dir / "golden" / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"no golden file {name}")
    report = check(path, "reference")
    assert report.ok, "\n".join(report.lines())


def test_a_pixel_under_the_centre_of_a_single_point_has_its_opacity_and_color():
    _, out = rendered(one_point())
    assert out.alpha[8, 8] == pytest.approx(0.5, abs=1e-6)
    assert out.color[:, 8, 8] == pytest.approx([0.25] * 3, abs=1e-6)
    assert out.maps["depth"][8, 8] == pytest.approx(1.0, abs=1e-6)


def test_a_pixel_one_standard_deviation_away_has_the_falloff_of_a_gaussian():
    # 0.1 units at depth 2 and a focal length of 20 px are 1 px; without blur the next pixel is one sigma away. The
    # Jacobian of the perspective at 0.05/2 off the axis widens the covariance by (1 + 0.025²).
    _, out = rendered(one_point(), eps2d=0.0)
    assert out.alpha[8, 9] == pytest.approx(0.5 * np.exp(-0.5), rel=1e-3)


def test_two_points_in_one_line_are_added_front_to_back_whatever_their_row_order():
    near, far = one_point(sh=np.full((1, 1, 3), 1.0)), one_point(means=[[0.1, 0.1, 4]], opacities=[0.8])
    for order in ((near, far), (far, near)):
        points = ArrayTable({name: np.concatenate([p[name] for p in order]) for name in near})
        _, out = rendered(points)
        assert out.alpha[8, 8] == pytest.approx(1 - 0.5 * 0.2, abs=1e-6)
        bright = 0.5 + 0.28209479177387814
        assert out.color[0, 8, 8] == pytest.approx(0.5 * bright + 0.5 * 0.8 * 0.5, abs=1e-6)


def test_an_opaque_point_lets_one_percent_through():
    assert rendered(one_point(opacities=[1]))[1].alpha[8, 8] == pytest.approx(0.99, abs=1e-12)


def test_the_point_that_would_use_up_the_light_is_left_out_and_ends_the_pixel():
    opacities = np.float32([0.98, 0.98, 0.98, 0.01])  # 1 → 0.02 → 4e-4 → 8e-6, which is below the limit of 1e-4
    points = ArrayTable({k: np.repeat(x, 4, axis=0) for k, x in one_point().items()} | {"opacities": opacities})
    _, out = rendered(points)
    assert out.alpha[8, 8] == pytest.approx(1 - 4e-4, abs=1e-6)
    assert out.maps["n_contrib"][8, 8] == 2


def test_antialiasing_dims_a_point_by_the_density_that_the_blur_takes():
    splats, _ = rendered(one_point(), antialiased=True)
    blurred, _ = rendered(one_point())
    variance = 1 / 1.3  # of a 1 px wide Gaussian before and after the blur, per axis
    assert splats["opacities"][0] / blurred["opacities"][0] == pytest.approx(variance, rel=1e-3)


@pytest.mark.parametrize("mean", [[0, 0, -2], [0, 0, 0], [0, 0, 0.01], [100, 0, 2]])
def test_a_point_behind_at_or_beside_the_view_is_culled(mean):
    assert len(rendered(one_point(means=[mean]))[0]["depths"]) == 0


def test_the_spherical_harmonics_are_orthonormal_on_the_sphere():
    nodes, weights = np.polynomial.legendre.leggauss(8)
    phi = np.arange(16) * 2 * np.pi / 16
    z, around = np.repeat(nodes, 16), np.tile(phi, 8)
    radius = np.sqrt(1 - z**2)
    basis = sh_basis(np.stack([radius * np.cos(around), radius * np.sin(around), z], axis=1), 3)
    gram = (basis * np.repeat(weights, 16)[:, None] * 2 * np.pi / 16).T @ basis
    np.testing.assert_allclose(gram, np.eye(16), atol=1e-12)


@pytest.mark.parametrize("antialiased", [False, True])
@pytest.mark.parametrize("degree", [0, 1, 2, 3])
@pytest.mark.parametrize("name", POINT_ARRAYS)
def test_the_oracles_gradient_equals_a_central_difference(name, degree, antialiased):
    case = synthetic.make_case(synthetic.scene(20 + degree, n=12, width=20, height=17, degree=degree, scale=0.25))
    view = view_of(case)
    points = ArrayTable({k: case.double(k) for k in POINT_ARRAYS})
    renderer = ReferenceGaussian3D(ReferenceGaussian3D.Options(degree, antialiased))
    weights = OutputGradients(case.double("v_image").transpose(2, 0, 1), case.double("v_alpha"),
                              {"depth": case.double("v_depth")})
    ids = renderer.cull(view, points)
    splats, patch = renderer.splat(view, points, ids), Patch(view, 0, 0, view.width, view.height)
    v_splats = renderer.render_vjp(patch, splats, renderer.render(patch, splats), weights)
    gradient = renderer.splat_vjp(view, points, ids, splats, v_splats)[name]
    direction = np.random.default_rng(degree).normal(size=points[name].shape)

    def loss(x: np.ndarray) -> float:
        return renderer.loss(view, ArrayTable(dict(points) | {name: x}), weights)

    expected = central_difference(loss, points[name], direction)
    assert abs(expected) > 1e-3
    assert np.sum(gradient * direction[ids]) == pytest.approx(expected, rel=1e-6)
