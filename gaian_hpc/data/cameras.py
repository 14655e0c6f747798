"""Camera models: from rays to pixels, and the pinhole camera that shows the same picture without distortion."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..errors import DataError

MAX_PICTURE_SIDE = 1 << 20
MIN_SLOPE = 0.25  # undistortion stretches no pixel over more than four: 60 degrees off axis for an ideal fisheye
MAX_RADIUS = 4.0  # tan 76 degrees, the widest ray that is ever looked at
BORDER_SAMPLES = 33
MAP_CHUNK = 1 << 15

Distort = Callable[[np.ndarray, np.ndarray, Sequence[float]], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, slots=True)
class Camera:
    """Intrinsics of a lens: a ray (x/z, y/z) is distorted by ``model`` and then scaled and shifted to pixels.

    Attributes
    ----------
    model : str
        A key of ``MODELS``.
    width, height : int, pixels
        Picture size that the other values belong to.
    fx, fy, cx, cy : float, pixels
        The centre of the top-left pixel is (0.5, 0.5).
    coeffs : tuple of float
        Distortion coefficients in COLMAP's order.
    crop_radius : float, pixels
        Pixels farther than this from the principal point show no scene (the rim of a fisheye picture).
    """

    model: str
    width: int
    height: int
    fx: float
    fy: float
    cx: float
    cy: float
    coeffs: tuple[float, ...] = ()
    crop_radius: float = math.inf

    @property
    def is_pinhole(self) -> bool:
        """Whether the picture can be used as it is."""
        return not MODELS[self.model].fisheye and not any(self.coeffs)

    def scaled(self, width: int, height: int) -> Camera:
        """Return the camera of the same picture resized to ``width`` × ``height`` pixels, per axis."""
        sx, sy = width / self.width, height / self.height
        return replace(self, width=width, height=height, fx=self.fx * sx, fy=self.fy * sy, cx=self.cx * sx,
                       cy=self.cy * sy, crop_radius=self.crop_radius * min(sx, sy))


@dataclass(frozen=True, slots=True)
class LensModel:
    """One row of the model table: COLMAP's number (-1: none), focal lengths, coefficients and the distortion."""

    id: int
    n_focal: int
    n_coeffs: int
    distort: Distort
    fisheye: bool = False

    @property
    def n_params(self) -> int:
        """Number of parameters in a COLMAP file."""
        return self.n_focal + 2 + self.n_coeffs


@dataclass(frozen=True, slots=True)
class Undistortion:
    """The pinhole picture of a distorted camera: same focal lengths and pixel grid, cut to [x0, x0 + width) × …"""

    camera: Camera
    x0: int
    y0: int
    width: int
    height: int

    @property
    def pinhole(self) -> Camera:
        """The camera of the undistorted picture."""
        c = self.camera
        return Camera("PINHOLE", self.width, self.height, c.fx, c.fy, c.cx - self.x0, c.cy - self.y0)


def camera_from_params(model: str, width: int, height: int, params: Sequence[float], where: str) -> Camera:
    """Build and check a camera from COLMAP's parameter list.

    Raises
    ------
    DataError
        If the model is unknown, the count is wrong, or a value cannot belong to a camera; ``where`` names the file
        and the camera.
    """
    lens = MODELS.get(model)
    if lens is None:
        known = ", ".join(name for name, row in MODELS.items() if row.id >= 0)
        raise DataError(f"{where}: camera model {model!r} is not supported (supported: {known}); "
                        "undistort the scene with COLMAP's image_undistorter")
    if len(params) != lens.n_params:
        raise DataError(f"{where}: {model} has {len(params)} parameters where {lens.n_params} are needed; "
                        "export the model again")
    focal, rest = params[:lens.n_focal], params[lens.n_focal:]
    camera = Camera(model, int(width), int(height), float(focal[0]), float(focal[-1]), float(rest[0]),
                    float(rest[1]), tuple(float(x) for x in rest[2:]))
    return check_camera(camera, where)


def check_camera(camera: Camera, where: str) -> Camera:
    """Return ``camera`` if its values can belong to a camera, else raise a DataError that begins with ``where``."""
    if not (1 <= camera.width <= MAX_PICTURE_SIDE and 1 <= camera.height <= MAX_PICTURE_SIDE):
        raise DataError(f"{where}: picture size {camera.width} x {camera.height} is out of range "
                        f"(1 to {MAX_PICTURE_SIDE}); export the model again")
    values = (camera.fx, camera.fy, camera.cx, camera.cy, *camera.coeffs)
    if not all(math.isfinite(x) and abs(x) < 1e12 for x in values):
        raise DataError(f"{where}: intrinsics {values} are not all finite; calibrate the camera again")
    if min(camera.fx, camera.fy) < 1e-6 * max(camera.width, camera.height):
        raise DataError(f"{where}: focal length {camera.fx:g}, {camera.fy:g} must be positive; "
                        "calibrate the camera again")
    return camera


def project(camera: Camera, u: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels where rays (u, v, 1) of the camera frame appear in the distorted picture.

    Parameters
    ----------
    u, v : array, float
        x/z and y/z, of one shape.
    """
    du, dv = MODELS[camera.model].distort(u, v, camera.coeffs)
    return camera.fx * du + camera.cx, camera.fy * dv + camera.cy


def plan_undistortion(camera: Camera, where: str) -> Undistortion:
    """Choose the largest rectangle of the pinhole picture whose pixels all lie in the distorted one.

    The search scales the rectangle through the four axis intersections and then grows each side; it assumes
    that the valid region is star-shaped around the principal point, which holds where distortion is monotonic. Rays are
    limited to where a source pixel is stretched over at most ``1 / MIN_SLOPE`` pixels.

    Raises
    ------
    DataError
        If less than one pixel is left, as for a principal point outside the picture; begins with ``where``.
    """
    valid = _valid_rays(camera)
    if not valid(np.zeros(1), np.zeros(1))[0]:
        raise DataError(f"{where}: the principal point ({camera.cx:g}, {camera.cy:g}) of a distorted camera must lie "
                        f"inside its {camera.width} x {camera.height} picture; undistort the scene with COLMAP")
    left, right, top, bottom = _inscribed(valid)
    slack = 1e-3  # pixels; keeps an edge that bisection found a hair too early
    x0, x1 = math.ceil(camera.cx - left * camera.fx - slack), math.floor(camera.cx + right * camera.fx + slack)
    y0, y1 = math.ceil(camera.cy - top * camera.fy - slack), math.floor(camera.cy + bottom * camera.fy + slack)
    if x1 <= x0 or y1 <= y0:
        raise DataError(f"{where}: distortion {camera.coeffs} of {camera.model} leaves no undistorted picture; "
                        "calibrate the camera again")
    return Undistortion(camera, x0, y0, x1 - x0, y1 - y0)


def undistortion_map(plan: Undistortion) -> tuple[np.ndarray, np.ndarray]:
    """Return where each pixel of the undistorted picture lies in the distorted one.

    Returns
    -------
    map_x, map_y : (height, width) float32
        In OpenCV's pixel frame, where the centre of the top-left pixel is (0, 0).
    """
    camera = plan.camera
    map_x, map_y = (np.empty((plan.height, plan.width), np.float32) for _ in range(2))
    u = (np.arange(plan.width) + 0.5 + plan.x0 - camera.cx) / camera.fx
    v = (np.arange(plan.height) + 0.5 + plan.y0 - camera.cy) / camera.fy
    rows = max(1, MAP_CHUNK // plan.width)  # temporaries stay in the cache
    for y in range(0, plan.height, rows):
        block = np.broadcast_arrays(u[None, :], v[y:y + rows, None])
        x_px, y_px = project(camera, *block)
        map_x[y:y + rows] = x_px - 0.5
        map_y[y:y + rows] = y_px - 0.5
    return map_x, map_y


class MapCache:
    """Undistortion maps of the cameras used last, bounded in bytes; at least one is kept. Thread-safe."""

    def __init__(self, max_bytes: int):
        self._max_bytes = max_bytes
        self._maps: OrderedDict[Undistortion, tuple[np.ndarray, np.ndarray]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, plan: Undistortion) -> tuple[np.ndarray, np.ndarray]:
        """Return the maps of ``plan``, computing them at the first use."""
        with self._lock:
            if plan not in self._maps:
                self._maps[plan] = undistortion_map(plan)
            self._maps.move_to_end(plan)
            while len(self._maps) > 1 and sum(2 * m[0].nbytes for m in self._maps.values()) > self._max_bytes:
                self._maps.popitem(last=False)
            return self._maps[plan]


def remap(pixels: np.ndarray, maps: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Resample uint8 ``pixels`` (H, W) or (H, W, C) at ``maps`` (bilinear)."""
    import cv2

    cv2.setNumThreads(1)  # decoding threads run beside the renderer's
    return cv2.remap(pixels, *maps, interpolation=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)


def _valid_rays(camera: Camera) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return the test whether rays (u, v) show the scene in the distorted picture."""
    limit = _radius_limit(camera)

    def valid(u: np.ndarray, v: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            x, y = project(camera, u, v)
            inside = (x >= 0) & (x <= camera.width) & (y >= 0) & (y <= camera.height)
            return inside & (np.hypot(u, v) <= limit) & (np.hypot(x - camera.cx, y - camera.cy) <= camera.crop_radius)

    return valid


def _radius_limit(camera: Camera) -> float:
    """Return the radius up to which the distortion grows by at least ``MIN_SLOPE`` in every direction."""
    corner = math.hypot(max(camera.cx, camera.width - camera.cx) / camera.fx,
                        max(camera.cy, camera.height - camera.cy) / camera.fy)
    radii = np.linspace(0.0, min(MAX_RADIUS, corner / MIN_SLOPE), 1025)
    angles = np.arange(16)[:, None] * (math.pi / 8)
    with np.errstate(all="ignore"):
        du, dv = MODELS[camera.model].distort(np.cos(angles) * radii, np.sin(angles) * radii, camera.coeffs)
        slope = np.diff(np.cos(angles) * du + np.sin(angles) * dv, axis=1) / np.diff(radii)
    bad = ~(slope >= MIN_SLOPE).all(axis=0)  # NaN is bad
    return float(radii[np.argmax(bad)]) if bad.any() else float(radii[-1])


def _inscribed(valid: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    """Return the extents left, right, top, bottom (positive, in ray units) of a large valid rectangle."""
    axes = np.array([[-1, 0], [1, 0], [0, -1], [0, 1]], np.float64)
    reach = _bisect(lambda t: valid(axes[:, 0] * t, axes[:, 1] * t), np.zeros(4), np.full(4, MAX_RADIUS), 50)
    side = np.linspace(-1.0, 1.0, BORDER_SAMPLES)
    a = np.concatenate([side, side, np.full_like(side, -1), np.full_like(side, 1)])
    b = np.concatenate([np.full_like(side, -1), np.full_like(side, 1), side, side])

    def fits(extents: np.ndarray) -> np.ndarray:  # [n, 4] -> [n]
        left, right, top, bottom = extents.T[:, :, None]
        return valid(np.where(a < 0, a * left, a * right), np.where(b < 0, b * top, b * bottom)).all(axis=1)

    if fits(reach[None])[0]:
        return reach
    wide = np.linspace(1 / 16, 1.0, 16)  # share of the horizontal reach; for each, the largest vertical share
    tall = _bisect(lambda s: fits(reach * np.stack([wide, wide, s, s], axis=1)), np.zeros(16), np.ones(16), 24)
    best = int(np.argmax(wide * tall))
    extents = reach * np.array([wide[best], wide[best], tall[best], tall[best]])
    for i in range(4):
        grown = np.repeat(extents[None], 1, axis=0)

        def grow(t: np.ndarray, i: int = i, grown: np.ndarray = grown) -> np.ndarray:
            grown[:, i] = t
            return fits(grown)

        extents[i] = _bisect(grow, extents[i:i + 1], reach[i:i + 1], 24)[0]
    return extents


def _bisect(test: Callable[[np.ndarray], np.ndarray], low: np.ndarray, high: np.ndarray, n: int) -> np.ndarray:
    """Return the largest values in [low, high] that pass ``test``, elementwise; ``low`` is taken to pass."""
    low = np.where(test(high), high, low)
    for _ in range(n):
        mid = 0.5 * (low + high)
        good = test(mid)
        low, high = np.where(good, mid, low), np.where(good, high, mid)
    return low


def _identity(u: np.ndarray, v: np.ndarray, c: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    return u, v


def _radial(u: np.ndarray, v: np.ndarray, c: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    scale = 1.0 + _polynomial(u * u + v * v, c)
    return u * scale, v * scale


def _brown(u: np.ndarray, v: np.ndarray, c: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Brown-Conrady with the radial terms k1 k2 k3 k4 before (k1 k2) and after the tangential ones p1 p2."""
    k1, k2, p1, p2, *more = c
    r2 = u * u + v * v
    scale = 1.0 + _polynomial(r2, (k1, k2, *more))
    return _tangential(u, v, r2, scale, p1, p2)


def _rational(u: np.ndarray, v: np.ndarray, c: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    k1, k2, p1, p2, k3, k4, k5, k6 = c
    r2 = u * u + v * v
    scale = (1.0 + _polynomial(r2, (k1, k2, k3))) / (1.0 + _polynomial(r2, (k4, k5, k6)))
    return _tangential(u, v, r2, scale, p1, p2)


def _tangential(u: np.ndarray, v: np.ndarray, r2: np.ndarray, scale: np.ndarray, p1: float, p2: float
                ) -> tuple[np.ndarray, np.ndarray]:
    uv = 2.0 * u * v
    return u * scale + p1 * uv + p2 * (r2 + 2.0 * u * u), v * scale + p2 * uv + p1 * (r2 + 2.0 * v * v)


def _field_of_view(u: np.ndarray, v: np.ndarray, c: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Devernay and Faugeras 2001, eq. 13: the distorted radius is atan(2 r tan(w / 2)) / w."""
    omega = c[0]
    r2 = u * u + v * v
    if abs(omega) < 1e-2:
        scale = 1.0 + omega * omega * (1.0 / 12.0 - r2 / 3.0)  # its series, where the quotient loses digits
    else:
        slope = 2.0 * math.tan(omega / 2.0)
        r = np.maximum(np.sqrt(r2), 1e-12)
        scale = np.arctan(r * slope) / (r * omega)
    return u * scale, v * scale


def _fisheye(u: np.ndarray, v: np.ndarray, c: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Equidistant projection with a polynomial in the angle to the axis (Kannala and Brandt 2006)."""
    r = np.maximum(np.hypot(u, v), 1e-12)
    theta = np.arctan(r)
    scale = theta * (1.0 + _polynomial(theta * theta, c)) / r
    return u * scale, v * scale


def _thin_prism(u: np.ndarray, v: np.ndarray, c: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    k1, k2, p1, p2, k3, k4, sx, sy = c
    u, v = _fisheye(u, v, ())
    r2 = u * u + v * v
    du, dv = _tangential(u, v, r2, 1.0 + _polynomial(r2, (k1, k2, k3, k4)), p1, p2)
    return du + sx * r2, dv + sy * r2


def _polynomial(x: np.ndarray, coeffs: Sequence[float]) -> np.ndarray:
    """Return c0 x + c1 x² + …"""
    total = np.zeros_like(x)
    for k in reversed(coeffs):
        total = (total + k) * x
    return total


MODELS: dict[str, LensModel] = {
    "SIMPLE_PINHOLE": LensModel(0, 1, 0, _identity),
    "PINHOLE": LensModel(1, 2, 0, _identity),
    "SIMPLE_RADIAL": LensModel(2, 1, 1, _radial),
    "RADIAL": LensModel(3, 1, 2, _radial),
    "OPENCV": LensModel(4, 2, 4, _brown),
    "OPENCV_FISHEYE": LensModel(5, 2, 4, _fisheye, fisheye=True),
    "FULL_OPENCV": LensModel(6, 2, 8, _rational),
    "FOV": LensModel(7, 2, 1, _field_of_view),
    "SIMPLE_RADIAL_FISHEYE": LensModel(8, 1, 1, _fisheye, fisheye=True),
    "RADIAL_FISHEYE": LensModel(9, 1, 2, _fisheye, fisheye=True),
    "THIN_PRISM_FISHEYE": LensModel(10, 2, 8, _thin_prism, fisheye=True),
    "OPENCV_RADIAL4": LensModel(-1, 2, 6, _brown),
}
MODEL_NAMES: dict[int, str] = {row.id: name for name, row in MODELS.items() if row.id >= 0}
