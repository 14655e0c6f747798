"""Camera models against OpenCV's, and undistorted pictures against pinhole projections of drawn points."""

import math

import cv2
import numpy as np
import pytest
from PIL import Image

from gaian_hpc.data.cameras import (
    MODELS,
    Camera,
    MapCache,
    camera_from_params,
    plan_undistortion,
    project,
    undistortion_map,
)
from gaian_hpc.data.images import load_picture
from gaian_hpc.data.scene import load_scene
from gaian_hpc.errors import DataError
from tests.unit.data.colmap_files import ring_model, write_binary

W, H = 400, 300
DISTORTED = {
    "SIMPLE_RADIAL": (300.0, 200.0, 150.0, -0.12),
    "RADIAL": (300.0, 205.5, 148.0, 0.15, 0.05),
    "OPENCV": (300.0, 310.0, 198.0, 152.0, -0.2, 0.05, 0.004, -0.003),
    "OPENCV_FISHEYE": (200.0, 203.0, 201.0, 149.0, 0.02, -0.01, 0.003, 0.001),
    "FULL_OPENCV": (300.0, 305.0, 199.0, 151.0, 0.3, 0.1, 0.001, -0.002, 0.02, 0.35, 0.12, 0.01),
    "FOV": (250.0, 255.0, 200.0, 150.0, 0.9),
    "SIMPLE_RADIAL_FISHEYE": (160.0, 200.0, 150.0, 0.03),
    "RADIAL_FISHEYE": (220.0, 200.0, 150.0, 0.03, -0.02),
    "THIN_PRISM_FISHEYE": (220.0, 222.0, 200.0, 150.0, 0.02, 0.01, 0.002, -0.001, 0.004, -0.002, 0.003, -0.004),
}


def rays(n=200, reach=0.8):
    random = np.random.default_rng(1)
    return random.uniform(-reach, reach, n), random.uniform(-reach, reach, n)


def opencv_pixels(u, v, K, coeffs, fisheye=False):
    points = np.stack([u, v, np.ones_like(u)], axis=1)[:, None]
    zero = np.zeros(3)
    function = cv2.fisheye.projectPoints if fisheye else cv2.projectPoints
    args = (points, zero, zero, K, np.array(coeffs, np.float64))
    return function(*args)[0][:, 0]


def matrix(camera):
    return np.array([[camera.fx, 0, camera.cx], [0, camera.fy, camera.cy], [0, 0, 1]])


@pytest.mark.parametrize("model, order", [
    ("SIMPLE_RADIAL", lambda k: (k[0], 0, 0, 0)), ("RADIAL", lambda k: (k[0], k[1], 0, 0)), ("OPENCV", lambda k: k),
    ("FULL_OPENCV", lambda k: k)])
def test_perspective_models_agree_with_opencv(model, order):
    camera = camera_from_params(model, W, H, DISTORTED[model], "x")
    u, v = rays()
    expected = opencv_pixels(u, v, matrix(camera), order(camera.coeffs))
    np.testing.assert_allclose(np.stack(project(camera, u, v), axis=1), expected, atol=1e-9)


@pytest.mark.parametrize("model", ["OPENCV_FISHEYE", "SIMPLE_RADIAL_FISHEYE", "RADIAL_FISHEYE"])
def test_fisheye_models_agree_with_opencv(model):
    camera = camera_from_params(model, W, H, DISTORTED[model], "x")
    u, v = rays(reach=3.0)
    coeffs = (*camera.coeffs, 0, 0, 0)[:4]
    expected = opencv_pixels(u, v, matrix(camera), coeffs, fisheye=True)
    np.testing.assert_allclose(np.stack(project(camera, u, v), axis=1), expected, atol=1e-9)


def test_thin_prism_fisheye_is_opencvs_thin_prism_model_on_equidistant_rays():
    params = (*DISTORTED["THIN_PRISM_FISHEYE"][:9], 0.0, 0.003, -0.004)  # OpenCV has no term r^8
    camera = camera_from_params("THIN_PRISM_FISHEYE", W, H, params, "x")
    u, v = rays(reach=1.5)
    r = np.hypot(u, v)
    k1, k2, p1, p2, k3, _, sx, sy = camera.coeffs
    coeffs = (k1, k2, p1, p2, k3, 0, 0, 0, sx, 0, sy, 0)
    expected = opencv_pixels(u * np.arctan(r) / r, v * np.arctan(r) / r, matrix(camera), coeffs)
    np.testing.assert_allclose(np.stack(project(camera, u, v), axis=1), expected, atol=1e-9)


def test_thin_prism_fisheye_has_a_term_in_the_eighth_power():
    camera = Camera("THIN_PRISM_FISHEYE", W, H, 1, 1, 0, 0, (0, 0, 0, 0, 0, 2.0, 0, 0))
    angle = 0.7
    x, _ = project(camera, np.array([math.tan(angle)]), np.zeros(1))
    assert x[0] == pytest.approx(angle * (1 + 2.0 * angle**8))


@pytest.mark.parametrize("omega", [0.9, 0.0101, 0.0099, 1e-5])
def test_fov_model_maps_the_radius_to_the_arc_tangent_of_devernay_and_faugeras(omega):
    camera = Camera("FOV", W, H, 1, 1, 0, 0, (omega,))
    x, y = project(camera, np.array([0.3]), np.array([0.4]))
    assert math.tan(math.hypot(x[0], y[0]) * omega) == pytest.approx(2 * 0.5 * math.tan(omega / 2), rel=1e-7)
    assert y[0] / x[0] == pytest.approx(0.4 / 0.3)


def test_all_eleven_colmap_models_are_known_with_their_numbers_of_parameters():
    counts = {row.id: row.n_params for row in MODELS.values() if row.id >= 0}
    assert counts == {0: 3, 1: 4, 2: 4, 3: 5, 4: 8, 5: 8, 6: 12, 7: 5, 8: 4, 9: 5, 10: 12}


def draw(pixels_x, pixels_y, width=W, height=H):
    """Return a grey picture with a soft blob at each pixel position (centre of the first pixel at 0.5)."""
    y, x = np.mgrid[:height, :width] + 0.5
    picture = np.zeros((height, width))
    for px, py in zip(pixels_x, pixels_y, strict=True):
        picture += 250 * np.exp(-((x - px) ** 2 + (y - py) ** 2) / (2 * 1.8**2))
    return picture.clip(0, 255).astype(np.uint8)


def centroid(grey, x, y, reach=9):
    x0, y0 = int(x) - reach, int(y) - reach
    window = grey[max(y0, 0):y0 + 2 * reach + 1, max(x0, 0):x0 + 2 * reach + 1].astype(float)
    rows, columns = np.mgrid[:window.shape[0], :window.shape[1]]
    return (np.array([(columns * window).sum(), (rows * window).sum()]) / window.sum()
            + np.array([max(x0, 0), max(y0, 0)]) + 0.5)


@pytest.mark.parametrize("factor", [1, 2])
@pytest.mark.parametrize("model", DISTORTED)
def test_points_appear_at_their_pinhole_projection_in_the_undistorted_picture(model, factor, tmp_path):
    params = DISTORTED[model]
    camera = camera_from_params(model, W, H, params, "x")
    u, v = np.meshgrid(np.linspace(-0.9, 0.9, 9), np.linspace(-0.7, 0.7, 7))
    px, py = project(camera, u.ravel(), v.ravel())
    scene_model = ring_model(2, camera=(model, W, H, params))
    write_binary(scene_model, tmp_path / "sparse/0")
    (tmp_path / "images").mkdir()
    for image in scene_model.images.values():
        Image.fromarray(draw(px, py)).save(tmp_path / "images" / image[3])
    scene = load_scene(tmp_path, factor=factor)
    view, picture = scene.views[0], load_picture(scene.pictures[0])
    assert picture.rgb.shape == (3, view.height, view.width)
    x = view.K[0, 0] * u.ravel() + view.K[0, 2]
    y = view.K[1, 1] * v.ravel() + view.K[1, 2]
    margin = 10
    shown = (x > margin) & (x < view.width - margin) & (y > margin) & (y < view.height - margin)
    assert shown.sum() >= 12
    for i in np.flatnonzero(shown):
        error = centroid(picture.rgb[1], x[i], y[i], reach=9 if factor == 1 else 6) - (x[i], y[i])
        assert np.hypot(*error) < 0.5, (u.ravel()[i], v.ravel()[i])


@pytest.mark.parametrize("model", DISTORTED)
def test_the_undistorted_rectangle_touches_the_border_of_the_picture_but_never_leaves_it(model):
    camera = camera_from_params(model, W, H, DISTORTED[model], "x")
    plan = plan_undistortion(camera, "x")
    map_x, map_y = undistortion_map(plan)
    assert map_x.min() > -1 and map_x.max() < W and map_y.min() > -1 and map_y.max() < H
    gaps = (map_x.min() + 0.5, W - 0.5 - map_x.max(), map_y.min() + 0.5, H - 0.5 - map_y.max())
    assert min(gaps) < 2.0 or MODELS[model].fisheye
    covered = (map_x.max() - map_x.min()) * (map_y.max() - map_y.min()) / (W * H)
    assert covered > (0.35 if MODELS[model].fisheye else 0.8)


def test_a_very_wide_fisheye_is_cut_to_what_a_pinhole_can_show():
    camera = Camera("OPENCV_FISHEYE", 1000, 1000, 318.0, 318.0, 500.0, 500.0, (0.0, 0.0, 0.0, 0.0))  # 180 degrees
    plan = plan_undistortion(camera, "x")
    half_diagonal = math.hypot(plan.width, plan.height) / 2 / 318.0
    assert math.degrees(math.atan(half_diagonal)) == pytest.approx(60.0, abs=1.0)


def test_a_fisheye_crop_radius_bounds_the_undistorted_picture():
    camera = Camera("OPENCV_FISHEYE", 1000, 1000, 500.0, 500.0, 500.0, 500.0, (0.0, 0.0, 0.0, 0.0), crop_radius=250.0)
    plan = plan_undistortion(camera, "x")
    corner = math.hypot(plan.width, plan.height) / 2 / 500.0
    assert corner <= math.tan(250.0 / 500.0) + 0.01
    assert corner > 0.9 * math.tan(250.0 / 500.0)


def test_distortion_of_zero_keeps_the_picture_as_it_is():
    assert camera_from_params("OPENCV", W, H, (300.0, 300.0, 200.0, 150.0, 0.0, 0.0, 0.0, 0.0), "x").is_pinhole
    plan = plan_undistortion(camera_from_params("SIMPLE_RADIAL", W, H, (300.0, 200.0, 150.0, 1e-12), "x"), "x")
    assert (plan.x0, plan.y0, plan.width, plan.height) == (0, 0, W, H)


def test_an_off_centre_principal_point_stays_at_its_pixel():
    camera = camera_from_params("SIMPLE_RADIAL", W, H, (300.0, 90.5, 230.5, -0.1), "x")
    plan = plan_undistortion(camera, "x")
    map_x, map_y = undistortion_map(plan)
    column, row = int(plan.pinhole.cx - 0.5), int(plan.pinhole.cy - 0.5)
    assert (map_x[row, column], map_y[row, column]) == pytest.approx((90.0, 230.0), abs=1e-4)


@pytest.mark.parametrize("params, text", [
    ((300.0, 200.0, 150.0, math.nan), "not all finite"),
    ((-300.0, 200.0, 150.0, 0.1), "must be positive"),
    ((0.0, 200.0, 150.0, 0.1), "must be positive"),
    ((300.0, 200.0, 150.0), "3 parameters where 4"),
])
def test_intrinsics_that_no_camera_has_are_refused_by_name(params, text):
    with pytest.raises(DataError, match=f"cameras.txt: camera 7.*{text}"):
        camera_from_params("SIMPLE_RADIAL", W, H, params, "cameras.txt: camera 7")


@pytest.mark.parametrize("camera, text", [
    (Camera("SIMPLE_RADIAL", W, H, 300.0, 300.0, 900.0, 150.0, (0.1,)), "principal point"),
    (Camera("SIMPLE_RADIAL", W, H, 300.0, 300.0, 200.0, 150.0, (-1e9,)), "leaves no undistorted picture"),
])
def test_distortion_that_leaves_no_picture_is_refused_by_name(camera, text):
    with pytest.raises(DataError, match=f"a.jpg.*{text}"):
        plan_undistortion(camera, "a.jpg")


def test_maps_are_computed_once_and_dropped_beyond_their_bound():
    plans = [plan_undistortion(Camera("SIMPLE_RADIAL", 64, 48, 50.0 + i, 50.0, 32.0, 24.0, (-0.1,)), "x")
             for i in range(3)]
    one = 8 * plans[0].width * plans[0].height
    cache = MapCache(int(2.5 * one))
    first = cache.get(plans[0])
    assert cache.get(plans[0]) is first
    cache.get(plans[1])
    cache.get(plans[2])
    assert cache.get(plans[0]) is not first
