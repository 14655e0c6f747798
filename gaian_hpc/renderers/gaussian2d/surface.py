"""The loss of 2D Gaussian Splatting that pulls normals of surfels and of the depth map together, and its gradient.

The normal N of the depth map at a pixel is that of the cross product of the two central differences of points
P(x, y) = d·((x − c_x)/f_x, (y − c_y)/f_y, 1), d = Σ w z / α, turned towards the camera. With n = Σ w n_i a pixel of
the interior of the view adds 1 − α·⟨n, N⟩, in which α stands still (Huang et al. 2024, equation 15, and its code).
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from numba.extending import register_jitable

from ...arrays import Patch

_ALPHA_MIN = 1e-6


def normal_loss(patch: Patch, planes: np.ndarray, origin: tuple[int, int],
                mask: np.ndarray | None) -> tuple[float, np.ndarray]:
    """Return the sum of the loss over a patch's pixels, and the gradient (5, h, w) of the view's sum at its pixels.

    Parameters
    ----------
    patch : Patch
    planes : (5, H, W) float32
        α, Σ w z and Σ w n of the patch and a margin of at least two pixels, clipped at the borders of the view.
    origin : (int, int)
        Pixel x, y of the view where ``planes`` begins.
    mask : (H, W) bool, optional
        Pixels that count.
    """
    view, h, w = patch.view, patch.height, patch.width
    camera = np.array([view.K[0, 0], view.K[1, 1], view.K[0, 2], view.K[1, 2], view.width, view.height], np.float64)
    keep = np.ones(planes.shape[1:], np.bool_) if mask is None else mask
    slopes = np.zeros((h + 2, w + 2, 6))
    total, v = np.zeros((h + 2, 1)), np.empty((5, h, w), np.float32)
    top, left = patch.y0 - origin[1], patch.x0 - origin[0]
    _normals(camera, planes, keep, origin[0], origin[1], left, top, slopes, total, v)
    _depths(camera, planes, origin[0], origin[1], left, top, slopes, v)
    return float(total.sum()), v


@register_jitable(error_model="numpy")
def _point(camera, planes, x0, y0, x, y):
    """Return the point of the depth map at pixel (x, y) of the region, or not a number where nothing is seen."""
    alpha = np.float64(planes[0, y, x])
    d = np.float64(planes[1, y, x]) / alpha if alpha > _ALPHA_MIN else np.nan
    return d * (x0 + x + 0.5 - camera[2]) / camera[0], d * (y0 + y + 0.5 - camera[3]) / camera[1], d


@njit(parallel=True, error_model="numpy", nogil=True, cache=True)
def _normals(camera, planes, keep, x0, y0, left, top, slopes, total, v):
    """Write the gradient by n, and to ``slopes`` (h + 2, w + 2, 6) those by the two differences of points."""
    h, w = v.shape[1], v.shape[2]
    for r in prange(h + 2):
        y = top + r - 1
        for c in range(w + 2):
            x = left + c - 1
            own = 0 < r <= h and 0 < c <= w
            nx = ny = nz = 0.0
            if 0 < x0 + x < camera[4] - 1 and 0 < y0 + y < camera[5] - 1 and keep[y, x]:
                ax, ay, az = _point(camera, planes, x0, y0, x + 1, y)
                bx, by, bz = _point(camera, planes, x0, y0, x - 1, y)
                ax, ay, az = ax - bx, ay - by, az - bz
                bx, by, bz = _point(camera, planes, x0, y0, x, y + 1)
                ex, ey, ez = _point(camera, planes, x0, y0, x, y - 1)
                bx, by, bz = bx - ex, by - ey, bz - ez
                nx, ny, nz = by * az - bz * ay, bz * ax - bx * az, bx * ay - by * ax
                length = np.sqrt(nx * nx + ny * ny + nz * nz)
                if length > 0.0:  # false where a neighbour sees nothing
                    nx, ny, nz = nx / length, ny / length, nz / length
                    alpha = np.float64(planes[0, y, x])
                    gx, gy, gz = (-alpha * np.float64(planes[2, y, x]), -alpha * np.float64(planes[3, y, x]),
                                  -alpha * np.float64(planes[4, y, x]))
                    along = gx * nx + gy * ny + gz * nz
                    if own:
                        total[r, 0] += 1.0 + along
                    gx, gy, gz = (gx - along * nx) / length, (gy - along * ny) / length, (gz - along * nz) / length
                    # of n = b × a: dL/da = g × b, dL/db = a × g
                    slopes[r, c, 0], slopes[r, c, 1] = gy * bz - gz * by, gz * bx - gx * bz
                    slopes[r, c, 2] = gx * by - gy * bx
                    slopes[r, c, 3], slopes[r, c, 4] = ay * gz - az * gy, az * gx - ax * gz
                    slopes[r, c, 5] = ax * gy - ay * gx
                else:
                    nx = ny = nz = 0.0
            if own:
                alpha = planes[0, y, x]
                v[2, r - 1, c - 1], v[3, r - 1, c - 1], v[4, r - 1, c - 1] = -alpha * nx, -alpha * ny, -alpha * nz


@njit(parallel=True, error_model="numpy", nogil=True, cache=True)
def _depths(camera, planes, x0, y0, left, top, slopes, v):
    """Write the gradient by α and Σ w z from those by differences of points."""
    h, w = v.shape[1], v.shape[2]
    for r in prange(h):
        for c in range(w):
            y, x = top + r, left + c
            at_x, at_y = (x0 + x + 0.5 - camera[2]) / camera[0], (y0 + y + 0.5 - camera[3]) / camera[1]
            v_d = 0.0
            for k in range(3):
                g = (slopes[r + 1, c, k] - slopes[r + 1, c + 2, k] + slopes[r, c + 1, 3 + k]
                     - slopes[r + 2, c + 1, 3 + k])
                v_d += g * at_x if k == 0 else (g * at_y if k == 1 else g)
            alpha = np.float64(planes[0, y, x])
            inside = alpha > _ALPHA_MIN
            v[1, r, c] = v_d / alpha if inside else 0.0
            v[0, r, c] = -v_d * np.float64(planes[1, y, x]) / (alpha * alpha) if inside else 0.0
