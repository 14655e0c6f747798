"""The photometric loss of 3DGS, (1 − w)·L1 + w·(1 − SSIM), and its gradient, patch by patch.

The loss of a view is the mean over all its pixels and channels; a patch contributes its own pixels' share, so that
patches add up to the whole image. SSIM's 11×11 window crosses patch borders: a patch comes with a margin of ghost
pixels, 5 for its own SSIM values and 5 more because its neighbours' values depend on its pixels (Wang et al. 2004).

Cost: 8 filter passes forward (two directions of x, y, x² + y², xy: SSIM's denominator needs the two variances only
as a sum) and 6 backward, 11 fused multiply-adds each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit, prange

from ..arrays import Patch
from ..renderers.compositing.lanes import fma

RADIUS = 5
GHOST = 2 * RADIUS
C1 = np.float32(0.01**2)
C2 = np.float32(0.03**2)
_BAND = 16  # rows a thread filters at a time: the intermediate rows of a band stay in its cache


def _window() -> np.ndarray:
    g = np.exp(-((np.arange(2 * RADIUS + 1) - RADIUS) ** 2) / (2 * 1.5**2))
    return (g / g.sum()).astype(np.float32)


WINDOW = _window()
_W0, _W1, _W2, _W3, _W4, _W5 = (np.float32(w) for w in WINDOW[: RADIUS + 1])
_TWO = np.float32(2.0)
_ZERO = np.float32(0.0)


@dataclass(frozen=True, slots=True)
class Region:
    """A patch and its ghost margin inside the view: slices of the view, and the patch's place in them."""

    rows: slice
    columns: slice
    top: int
    left: int

    @classmethod
    def of(cls, patch: Patch) -> Region:
        """Return the region of ``patch``, clipped at the borders of its view."""
        return cls.around(patch.x0, patch.y0, patch.x1, patch.y1, patch.view.width, patch.view.height)

    @classmethod
    def around(cls, x0: int, y0: int, x1: int, y1: int, width: int, height: int) -> Region:
        """Return the region of the rectangle [x0, x1) × [y0, y1) of a picture of ``width`` × ``height`` pixels."""
        top, left = max(y0 - GHOST, 0), max(x0 - GHOST, 0)
        bottom, right = min(y1 + GHOST, height), min(x1 + GHOST, width)
        return cls(slice(top, bottom), slice(left, right), y0 - top, x0 - left)


@dataclass(frozen=True, slots=True)
class PatchLoss:
    """Sums of a patch over its pixels and channels, and the gradient of the view's loss.

    Attributes
    ----------
    l1, ssim : float
        Sum of |image − target|, sum of SSIM.
    v_image : (3, h, w) float32
        dL/d(image) at the patch's pixels, L the mean loss of the whole view.
    """

    l1: float
    ssim: float
    v_image: np.ndarray


def photometric(image: np.ndarray, target: np.ndarray, patch: Patch, ssim_weight: float,
                mask: np.ndarray | None = None) -> PatchLoss:
    """Return a patch's part of the loss of its view.

    Parameters
    ----------
    image, target : (3, H, W) float32
        The view, of which only the patch's :class:`Region` is read.
    patch : Patch
    ssim_weight : float in [0, 1]
    mask : (H, W) bool, optional
        Pixels that count; elsewhere both pictures are taken as black and no gradient flows.
    """
    region = Region.of(patch)
    x = np.ascontiguousarray(image[:, region.rows, region.columns])
    y = np.ascontiguousarray(target[:, region.rows, region.columns])
    return region_loss(x, y, patch, ssim_weight, None if mask is None else mask[region.rows, region.columns])


def region_loss(x: np.ndarray, y: np.ndarray, patch: Patch, ssim_weight: float,
                mask: np.ndarray | None = None) -> PatchLoss:
    """Return a patch's part of the loss of its view, of which only the patch's :class:`Region` is there.

    Parameters
    ----------
    x, y : (3, h, w) float32, contiguous
        Render and target in the region.
    patch : Patch
    ssim_weight : float in [0, 1]
    mask : (h, w) bool, optional
        As in :func:`photometric`.
    """
    region = Region.of(patch)
    if mask is not None:
        x, y = x * mask, y * mask
    bottom, right = region.top + patch.height, region.left + patch.width
    n = 3.0 * patch.view.width * patch.view.height
    maps, ssim = _ssim_maps(x, y, region.top, bottom, region.left, right)
    v_image = np.empty((3, patch.height, patch.width), np.float32)
    l1 = np.zeros((3, patch.height))
    _loss_gradient(x, y, maps, region.top, region.left, np.float32((1 - ssim_weight) / n), np.float32(ssim_weight / n),
                   v_image, l1)
    if mask is not None:
        v_image *= mask[region.top:bottom, region.left:right]
    return PatchLoss(float(l1.sum()), float(ssim.sum()), v_image)


def ssim_map(image: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return SSIM per pixel and channel, (3, H, W) float32, with zero padding."""
    out = np.empty(image.shape, np.float32)
    _ssim_values(np.ascontiguousarray(image), np.ascontiguousarray(target), out)
    return out


def _ssim_maps(x: np.ndarray, y: np.ndarray, top: int, bottom: int, left: int, right: int):
    """Return derivative maps (3, 3, h, w) on the patch widened by RADIUS (padded to that with zeros), and row sums."""
    height, width = bottom - top + 2 * RADIUS, right - left + 2 * RADIUS
    maps = np.zeros((3, 3, height, width), np.float32)
    sums = np.zeros((3, height))
    _ssim_forward(x, y, top - RADIUS, left - RADIUS, bottom - top, right - left, maps, sums)
    return maps, sums


@njit(parallel=True, error_model="numpy", nogil=True, cache=True)
def _ssim_forward(x, y, row0, column0, height, width, maps, sums):
    """Write dSSIM/d(mean of x), d(mean of x²), d(mean of xy) at map pixels inside the region; sum SSIM over the patch.

    Map pixel (0, 0) lies at (row0, column0) of the region, which may be outside of it.
    """
    n_channels, map_height, map_width = maps.shape[1], maps.shape[2], maps.shape[3]
    n_bands = (map_height + _BAND - 1) // _BAND
    for job in prange(n_channels * n_bands):
        c, band = job // n_bands, job % n_bands
        first, last = band * _BAND, min((band + 1) * _BAND, map_height)
        n_rows = last - first + 2 * RADIUS
        padded = np.zeros((4, map_width + 2 * RADIUS), np.float32)
        rows = np.zeros((n_rows, 4, map_width), np.float32)
        for r in range(n_rows):
            at = row0 + first - RADIUS + r
            if at < 0 or at >= x.shape[1]:
                continue  # outside of the view: zero
            _pad_products(x[c, at], y[c, at], column0 - RADIUS, padded)
            for k in range(4):
                _filter_row(padded[k], rows[r, k])
        stats = np.empty((4, map_width), np.float32)
        values = np.empty(map_width, np.float32)
        low, high = max(-column0, 0), min(x.shape[2] - column0, map_width)
        for r in range(first, last):
            if row0 + r < 0 or row0 + r >= x.shape[1]:
                continue
            for k in range(4):
                _filter_rows(rows, r - first, k, stats[k])
            _ssim_derivatives(stats, values, maps[0, c, r], maps[1, c, r], maps[2, c, r])
            maps[:, c, r, :low] = _ZERO
            maps[:, c, r, high:] = _ZERO
            if RADIUS <= r < RADIUS + height:
                total = 0.0
                for j in range(RADIUS, RADIUS + width):
                    total += values[j]
                sums[c, r] = total


@njit(parallel=True, error_model="numpy", nogil=True, cache=True)
def _loss_gradient(x, y, maps, top, left, l1_scale, ssim_scale, v_image, l1):
    """Write the gradient at the patch's pixels and each row's sum of absolute differences."""
    n_channels, height, width = v_image.shape
    n_bands = (height + _BAND - 1) // _BAND
    for job in prange(n_channels * n_bands):
        c, band = job // n_bands, job % n_bands
        first, last = band * _BAND, min((band + 1) * _BAND, height)
        rows = np.empty((last - first + 2 * RADIUS, 3, width), np.float32)
        for r in range(last - first + 2 * RADIUS):
            for k in range(3):
                _filter_row(maps[k, c, first + r], rows[r, k])
        stats = np.empty((3, width), np.float32)
        for r in range(first, last):
            for k in range(3):
                _filter_rows(rows, r - first, k, stats[k])
            total = 0.0
            for j in range(width):
                a, b = x[c, top + r, left + j], y[c, top + r, left + j]
                total += abs(a - b)
                sign = np.float32(a > b) - np.float32(a < b)
                v_ssim = fma(_TWO * a, stats[1, j], fma(b, stats[2, j], stats[0, j]))
                v_image[c, r, j] = l1_scale * sign - ssim_scale * v_ssim
            l1[c, r] = total


@njit(parallel=True, error_model="numpy", nogil=True, cache=True)
def _ssim_values(x, y, out):
    n_channels, height, width = out.shape
    for job in prange(n_channels * height):
        c, r = job // height, job % height
        padded = np.zeros((4, width + 2 * RADIUS), np.float32)
        rows = np.zeros((2 * RADIUS + 1, 4, width), np.float32)
        for k in range(2 * RADIUS + 1):
            at = r - RADIUS + k
            if 0 <= at < height:
                _pad_products(x[c, at], y[c, at], -RADIUS, padded)
                for q in range(4):
                    _filter_row(padded[q], rows[k, q])
        stats = np.empty((4, width), np.float32)
        unused = np.empty((3, width), np.float32)
        for q in range(4):
            _filter_rows(rows, 0, q, stats[q])
        _ssim_derivatives(stats, out[c, r], unused[0], unused[1], unused[2])


@njit(error_model="numpy", cache=True)
def _pad_products(x, y, column, padded):
    """Write x, y, x² + y², xy from ``column`` on (zero outside of the row) to the four rows of ``padded``."""
    low, high = max(-column, 0), min(len(x) - column, padded.shape[1])
    padded[:, :low] = _ZERO
    padded[:, high:] = _ZERO
    for j in range(low, high):
        a, b = x[j + column], y[j + column]
        padded[0, j] = a
        padded[1, j] = b
        padded[2, j] = fma(a, a, b * b)
        padded[3, j] = a * b


@njit(error_model="numpy", cache=True)
def _filter_row(source, out):
    """Filter a row that is longer than ``out`` by two radii."""
    for j in range(len(out)):
        s = _W5 * source[j + 5]
        s = fma(_W4, source[j + 4] + source[j + 6], s)
        s = fma(_W3, source[j + 3] + source[j + 7], s)
        s = fma(_W2, source[j + 2] + source[j + 8], s)
        s = fma(_W1, source[j + 1] + source[j + 9], s)
        out[j] = fma(_W0, source[j] + source[j + 10], s)


@njit(error_model="numpy", cache=True)
def _filter_rows(rows, first, k, out):
    """Filter down the columns of rows[first … first + 10, k]."""
    for j in range(len(out)):
        s = _W5 * rows[first + 5, k, j]
        s = fma(_W4, rows[first + 4, k, j] + rows[first + 6, k, j], s)
        s = fma(_W3, rows[first + 3, k, j] + rows[first + 7, k, j], s)
        s = fma(_W2, rows[first + 2, k, j] + rows[first + 8, k, j], s)
        s = fma(_W1, rows[first + 1, k, j] + rows[first + 9, k, j], s)
        out[j] = fma(_W0, rows[first, k, j] + rows[first + 10, k, j], s)


@njit(error_model="numpy", cache=True)
def _ssim_derivatives(stats, values, d_mean, d_square, d_product):
    """SSIM = A1·A2/(B1·B2) and its derivatives by the window means of x, x² and xy.

    A1 = 2 μx μy + C1, A2 = 2 σxy + C2, B1 = μx² + μy² + C1, B2 = σx² + σy² + C2.
    """
    for j in range(len(values)):
        mx, my = stats[0, j], stats[1, j]
        mxx, mxy = mx * mx, mx * my
        norm = fma(my, my, mxx)
        a1 = fma(_TWO, mxy, C1)
        a2 = fma(_TWO, stats[3, j] - mxy, C2)
        b1 = norm + C1
        b2 = stats[2, j] - norm + C2
        i1, i2 = np.float32(1.0) / b1, np.float32(1.0) / b2
        s = a1 * i1 * a2 * i2
        values[j] = s
        d_mean[j] = _TWO * (my * (a2 - a1) * i1 * i2 - mx * s * (i1 - i2))
        d_square[j] = -s * i2
        d_product[j] = _TWO * a1 * i1 * i2
