"""The tile compositor on CPU cores, written once for every method (design §3).

``make_compositor`` takes a method's scalar functions and returns the forward and backward kernels over 16×16 tiles:

- ``load(table, s) -> p`` reads splat s into a tuple of scalars;
- ``span(p, x0, x1) -> (y0, y1)`` bounds the heights at which the splat's alpha can reach 1/255 over an interval of x;
- ``alpha(p, px, py) -> a`` is the opacity of the splat at a pixel centre, before the clamp at 0.99 and the cut at
  1/255;
- ``moments(p, px, py, g) -> tuple`` are the terms whose sums over pixels give the gradient of ``p``, for
  g = a · dL/da.

A splat is evaluated on the rows of its span only. Each tile keeps its pixels in planes of one scratch buffer
(transmittance, last contributor, channels …), so that LLVM sees constant distances between them and vectorises the
loop over pixels without alias checks: a row of 16 is one vector of AVX-512. Backward writes the sums
of each (tile, splat) pair to a slot of its own; they are added per splat in tile order, whatever thread
made them (design §6).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numba import njit, prange, uintp
from numba.extending import register_jitable

from .lanes import PIXELS, add, add_planes, dot, fma, load_planes, load_row, prefetch, scale, store_row

ALPHA_MAX = np.float32(0.99)
ALPHA_MIN = np.float32(1.0 / 255.0)
TRANSMITTANCE_MIN = np.float32(1e-4)

_AHEAD = 3  # splats of a tile whose rows are fetched ahead: one takes about as long as a miss of the second cache

_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)
_HALF = np.float32(0.5)


@dataclass(frozen=True, slots=True)
class Compositor:
    """The kernels of one method for one number of channels.

    Attributes
    ----------
    forward : callable
        Takes the tile lists, the patch's origin in the view, and the table (M, G + C) of geometry and features of the
        splats; writes
        planes (C, h, w), transmittance (h, w) and last (h, w), the rank of the last contributor.
    backward : callable
        Takes the same, v_planes (C, h, w), v_alpha (h, w) and what forward wrote; writes sums (I, moments + C).
    n_moments, n_channels : int
        Columns of ``sums``: moments first, then one per channel.
    """

    forward: Callable
    backward: Callable
    n_moments: int
    n_channels: int


def make_compositor(load, span, alpha, moments, n_geometry: int, n_moments: int, n_channels: int,
                    stamp: int) -> Compositor:
    """Build the kernels for a method's ``load``, ``span``, ``alpha`` and ``moments`` (all ``register_jitable``).

    Parameters
    ----------
    n_geometry, n_moments, n_channels : int
        Columns of the table that ``load`` reads, length of the tuple of ``moments``, columns of features behind them.
    stamp : int
        Changes whenever the source of the method's functions does; part of the key of numba's disk cache.
    """
    channels = (_ZERO,) * n_channels
    no_moments = (_ZERO,) * n_moments

    @njit(parallel=True, error_model="numpy", nogil=True, cache=True)
    def forward(shares, offsets, items, n_x, x_origin, y_origin, table, planes, transmittance, last):
        _ = stamp
        height, width = transmittance.shape
        for share in prange(len(shares) - 1):
            for tile in range(shares[share], shares[share + 1]):
                x0 = (tile % n_x) * 16
                y0 = (tile // n_x) * 16
                buf = _scratch(4 + n_channels)
                _pixel_centres(buf, x_origin + x0, y_origin + y0)
                for i in range(PIXELS):
                    buf[_T + uintp(i)] = _ONE
                first = offsets[tile]
                for k in range(first, offsets[tile + 1]):
                    s = items[k]
                    p = load(table, s)
                    f = load_row(table, s, n_geometry, channels)
                    rank = np.float32(k - first + 1)
                    start, count = _row_pixels(span, p, x_origin + x0, y_origin + y0)
                    for n in range(count):
                        i = uintp(n) + start
                        a = min(alpha(p, buf[i], buf[_Y + i]), ALPHA_MAX)
                        t = buf[_T + i]  # negative once the pixel has stopped
                        t_next = t * (_ONE - a)
                        hit = a >= ALPHA_MIN
                        keep = hit & (t_next > TRANSMITTANCE_MIN)
                        stopped = -abs(t) if hit else t
                        buf[_T + i] = t_next if keep else stopped
                        buf[_LAST + i] = rank if keep else buf[_LAST + i]
                        w = a * t if keep else _ZERO
                        add_planes(buf, i + _CHANNELS, w, f)
                    if (k - first) % 16 == 15 and _all_stopped(buf):
                        break
                for i in range(PIXELS):
                    y, x = y0 + (i >> 4), x0 + (i & 15)
                    if y < height and x < width:
                        transmittance[y, x] = abs(buf[_T + uintp(i)])
                        last[y, x] = np.int32(buf[_LAST + uintp(i)])
                        for c in range(n_channels):
                            planes[c, y, x] = buf[_CHANNELS + uintp(c * PIXELS + i)]

    @njit(parallel=True, error_model="numpy", nogil=True, cache=True)
    def backward(shares, offsets, items, slots, n_x, x_origin, y_origin, table, v_planes, v_alpha,
                 transmittance, last, sums):
        _ = stamp
        for share in prange(len(shares) - 1):
            for tile in range(shares[share], shares[share + 1]):
                x0 = (tile % n_x) * 16
                y0 = (tile // n_x) * 16
                buf = _scratch(5 + n_channels)
                _pixel_centres(buf, x_origin + x0, y_origin + y0)
                depth = _load_tile(buf, x0, y0, v_planes, v_alpha, transmittance, last, n_channels)
                first = offsets[tile]
                for k in range(first + depth, offsets[tile + 1]):  # behind the last contribution
                    for c in range(n_moments + n_channels):
                        sums[slots[k], c] = _ZERO
                for back in range(depth):
                    rank = depth - 1 - back
                    prefetch(table, items[first + max(rank - _AHEAD, 0)])
                    s = items[first + rank]
                    p = load(table, s)
                    f = load_row(table, s, n_geometry, channels)
                    reached = np.float32(rank)
                    m = no_moments
                    v_f = channels
                    start, count = _row_pixels(span, p, x_origin + x0, y_origin + y0)
                    for n in range(count):
                        i = uintp(n) + start
                        px, py = buf[i], buf[_Y + i]
                        raw = alpha(p, px, py)
                        a = min(raw, ALPHA_MAX)
                        a = a if (a >= ALPHA_MIN) & (buf[_LAST + i] > reached) else _ZERO
                        inverse = _ONE / (_ONE - a)
                        t = buf[_T + i] * inverse  # transmittance in front of this splat
                        w = a * t
                        v = load_planes(buf, i + _V_CHANNELS, channels)
                        q = dot(v, f)
                        behind = buf[_BEHIND + i]
                        g = a * (t * q - behind * inverse) if raw <= ALPHA_MAX else _ZERO
                        buf[_BEHIND + i] = fma(w, q, behind)
                        buf[_T + i] = t
                        m = add(m, moments(p, px, py, g))
                        v_f = add(v_f, scale(w, v))
                    store_row(sums, slots[first + rank], 0, m)
                    store_row(sums, slots[first + rank], n_moments, v_f)

    return Compositor(forward, backward, n_moments, n_channels)


@register_jitable(error_model="numpy")
def _scratch(n_planes):
    """Return zeroed planes on a cache-line boundary, so that no vector of 16 straddles two lines."""
    buf = np.zeros(n_planes * PIXELS + 16, np.float32)
    skip = (-(buf.ctypes.data >> 2)) & 15
    return buf[skip:skip + n_planes * PIXELS]


@register_jitable(error_model="numpy")
def _row_pixels(span, p, x, y):
    """Return the first pixel and the number of pixels of the tile rows that a splat can reach."""
    left = np.float32(x) + _HALF
    top, bottom = span(p, left, left + np.float32(15.0))
    low = max(np.ceil(top - np.float32(y) - _HALF), _ZERO)
    high = min(np.floor(bottom - np.float32(y) + _HALF), np.float32(16.0))
    if not low < high:
        return uintp(0), uintp(0)
    return uintp(np.int64(low) * 16), uintp((np.int64(high) - np.int64(low)) * 16)


# Planes of the scratch buffer (x is plane 0); ``behind`` = Σ w q of splats behind, less what the alpha output asks for.
_Y = uintp(PIXELS)
_T = uintp(2 * PIXELS)
_LAST = uintp(3 * PIXELS)
_CHANNELS = uintp(4 * PIXELS)
_BEHIND = uintp(4 * PIXELS)
_V_CHANNELS = uintp(5 * PIXELS)


@register_jitable(error_model="numpy")
def _pixel_centres(buf, x0, y0):
    for i in range(PIXELS):
        buf[uintp(i)] = np.float32(x0 + (i & 15)) + _HALF
        buf[_Y + uintp(i)] = np.float32(y0 + (i >> 4)) + _HALF


@register_jitable(error_model="numpy")
def _all_stopped(buf):
    t = -_ONE
    for i in range(PIXELS):
        t = max(t, buf[_T + uintp(i)])
    return t <= _ZERO


@register_jitable(error_model="numpy")
def _load_tile(buf, x0, y0, v_planes, v_alpha, transmittance, last, n_channels):
    height, width = transmittance.shape
    depth = 0
    for i in range(PIXELS):
        y, x = y0 + (i >> 4), x0 + (i & 15)
        if y < height and x < width:
            t = transmittance[y, x]
            buf[_T + uintp(i)] = t
            buf[_LAST + uintp(i)] = np.float32(last[y, x])
            depth = max(depth, last[y, x])
            # d(1 - T)/da_i = T/(1 - a_i) has the form of a splat behind everything
            buf[_BEHIND + uintp(i)] = -v_alpha[y, x] * t
            for c in range(n_channels):
                buf[_V_CHANNELS + uintp(c * PIXELS + i)] = v_planes[c, y, x]
    return depth


@njit(parallel=True, error_model="numpy", nogil=True, cache=True)
def sum_slots(starts, sums, out):
    """Add rows starts[s] … starts[s + 1] of ``sums`` (I, k) float32 per splat, in tile order, into ``out`` (M, k)."""
    for s in prange(len(starts) - 1):
        for c in range(sums.shape[1]):
            out[s, c] = _ZERO
        for k in range(starts[s], starts[s + 1]):
            for c in range(sums.shape[1]):
                out[s, c] += sums[k, c]
