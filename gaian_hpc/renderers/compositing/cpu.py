"""The tile compositor on CPU cores, written once for every method (design §3).

``make_compositor`` takes a method's scalar functions and returns the forward and backward kernels over 16×16 tiles:

- ``load(table, s) -> p`` reads splat s into a tuple of scalars;
- ``span(p, x0, x1) -> (y0, y1)`` bounds the heights at which the splat's alpha can reach 1/255 over an interval of x;
- ``alpha(p, px, py) -> a`` is the opacity of the splat at a pixel centre, before the clamp at 0.99 and the cut at
  1/255;
- ``features(p, f, px, py) -> c`` are the channels to blend there, from the splat's own features ``f``;
- ``terms(p, f, px, py, g, w, v) -> tuple`` are the terms whose sums over pixels give the gradients of ``p`` and, behind
  them, of ``f``, for g = a · dL/da, the weight w and v = dL/d(channels).

Methods whose features do not depend on the pixel use :func:`constant_features` and :func:`terms_of`.

A splat is evaluated on the rows of its span only. Each tile keeps its pixels in planes of one scratch buffer
(transmittance, last contributor, channels …), so that LLVM sees constant distances between them and vectorises the
loop over pixels without alias checks: a row of 16 is one vector of AVX-512. Backward writes the sums
of each (tile, splat) pair to a slot of its own; they are added per splat in tile order, whatever thread
made them (design §6).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit, prange, uintp
from numba.extending import register_jitable

from ...arrays import Patch
from .binning import TileLists, aligned_rows, make_binner
from .lanes import PIXELS, add, add_planes, dot, fma, load_planes, load_row, prefetch, scale, store_row

ALPHA_MAX = np.float32(0.99)
ALPHA_MIN = np.float32(1.0 / 255.0)
TRANSMITTANCE_MIN = np.float32(1e-4)

_AHEAD = 3  # splats of a tile whose rows are fetched ahead: one takes about as long as a miss of the second cache

_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)
_HALF = np.float32(0.5)
_TWO = np.float32(2.0)


@dataclass(frozen=True, slots=True)
class Composited:
    """A patch as its method's splats make it, and what its gradients need.

    Attributes
    ----------
    planes : (P, h, w) float32
        The channels and, where a depth channel was named, its median and its distortion.
    transmittance : (h, w) float32
        What is left of the light.
    last : (h, w) int32
        Rank of the last contributor of the tile's list.
    """

    patch: Patch
    lists: TileLists
    table: np.ndarray
    planes: np.ndarray
    transmittance: np.ndarray
    last: np.ndarray


@dataclass(frozen=True, slots=True)
class Compositor:
    """The kernels of one method for one number of channels.

    Attributes
    ----------
    n_columns : int
        Of the table of splats: geometry, then features.
    n_moments, n_features, n_planes : int
    """

    forward: Callable
    backward: Callable
    bin_splats: Callable
    n_columns: int
    n_moments: int
    n_features: int
    n_planes: int

    def table(self, n: int) -> np.ndarray:
        """Return an uninitialised table of ``n`` splats, whose rows begin at cache lines."""
        return aligned_rows(n, -(-self.n_columns // 16) * 16)

    def composite(self, patch: Patch, depths: np.ndarray, boxes: np.ndarray, table: np.ndarray) -> Composited:
        """Blend splats over a patch.

        Parameters
        ----------
        patch : Patch
        depths : (M,) float32
        boxes : (M, 4) float32
            x0, y0, x1, y1 in pixels of the view, conservative.
        table : (M, ≥ n_columns) float32
            Geometry as the method's ``load`` reads it, and features.
        """
        lists = self.bin_splats(patch, depths, boxes, table)
        size = (patch.height, patch.width)
        out = Composited(patch, lists, table, np.empty((self.n_planes, *size), np.float32), np.empty(size, np.float32),
                         np.empty(size, np.int32))
        self.forward(lists.shares, lists.offsets, lists.items, lists.n_x, patch.x0, patch.y0, table, out.planes,
                     out.transmittance, out.last)
        return out

    def gradients(self, c: Composited, v_planes: Sequence[tuple[int, np.ndarray | None]],
                  v_alpha: np.ndarray | None) -> np.ndarray:
        """Return what each splat's terms add up to, (M, n_moments + n_features) float32.

        Parameters
        ----------
        c : Composited
        v_planes : sequence of (k, (k, h, w) or (h, w) float32)
            Gradients of groups of k planes; ``None`` is zero. That of a median has no effect.
        v_alpha : (h, w) float32, optional
        """
        size = c.last.shape
        v = np.zeros((self.n_planes, *size), np.float32)
        at = 0
        for k, part in v_planes:
            if part is not None:
                v[at:at + k] = part
            at += k
        v_alpha = np.zeros(size, np.float32) if v_alpha is None else np.ascontiguousarray(v_alpha)
        lists, width = c.lists, self.n_moments + self.n_features
        per_pair = np.empty((len(lists.items), width), np.float32)
        self.backward(lists.shares, lists.offsets, lists.items, lists.slots, lists.n_x, c.patch.x0, c.patch.y0, c.table,
                      c.planes, v, v_alpha, c.transmittance, c.last, per_pair)
        sums = np.empty((len(c.table), width), np.float32)
        sum_slots(lists.starts, per_pair, sums)
        return sums


@register_jitable(error_model="numpy", forceinline=True)
def constant_features(p, f, px, py):
    """Return the features as they are, whatever the pixel."""
    return f


def terms_of(moments):
    """Return ``terms`` of a method with constant features from ``moments(p, px, py, g)``, those of its geometry."""

    @register_jitable(error_model="numpy", forceinline=True)
    def terms(p, f, px, py, g, w, v):
        return moments(p, px, py, g) + scale(w, v)

    return terms


def make_compositor(load, span, alpha, features, terms, *, n_geometry: int, n_moments: int, n_features: int,
                    n_channels: int, stamp: int, depth_channel: int = -1,
                    with_distortion: bool = False) -> Compositor:
    """Build the kernels for a method's functions (all ``register_jitable``).

    Parameters
    ----------
    n_geometry, n_features : int
        Columns of the table that ``load`` reads, and columns of features behind them.
    n_moments : int
        Terms of the geometry; those of the features follow.
    n_channels : int
        Length of the tuple of ``features``.
    stamp : int
        Changes whenever the source of the method's functions does; part of the key of numba's disk cache.
    depth_channel : int
        A channel of depths z, of which one more plane is made, the median: the depth of the last contribution in front
        of which more than half of the light is left, 0 where there is none. −1 for none.
    with_distortion : bool
        Make a plane behind it, 2 Σ_i w_i Σ_{j<i} w_j (z_i − z_j): the distortion of depths that ascend (Barron et al.
        2022, equation 15).
    """
    no_features = (_ZERO,) * n_features
    no_channels = (_ZERO,) * n_channels
    no_terms = (_ZERO,) * (n_moments + n_features)
    with_median = depth_channel >= 0
    n_planes = n_channels + with_median + with_distortion
    depth_plane = uintp((4 + max(depth_channel, 0)) * PIXELS)
    median, distortion = uintp((4 + n_channels) * PIXELS), uintp((5 + n_channels) * PIXELS)
    v_distortion, further, ends = (uintp((5 + n_planes + k) * PIXELS) for k in (-1, 0, 1))
    at_depth = tuple(np.float32(c == depth_channel) for c in range(n_channels))
    n_backward = 5 + n_planes + (2 if with_distortion else 0)

    @njit(parallel=True, error_model="numpy", nogil=True, cache=True)
    def forward(shares, offsets, items, n_x, x_origin, y_origin, table, planes, transmittance, last):
        _ = stamp
        height, width = transmittance.shape
        for share in prange(len(shares) - 1):
            for tile in range(shares[share], shares[share + 1]):
                x0 = (tile % n_x) * 16
                y0 = (tile // n_x) * 16
                buf = _scratch(4 + n_planes)
                _pixel_centres(buf, x_origin + x0, y_origin + y0)
                for i in range(PIXELS):
                    buf[_T + uintp(i)] = _ONE
                first = offsets[tile]
                for k in range(first, offsets[tile + 1]):
                    s = items[k]
                    p = load(table, s)
                    f = load_row(table, s, n_geometry, no_features)
                    rank = np.float32(k - first + 1)
                    start, count = _row_pixels(span, p, x_origin + x0, y_origin + y0)
                    for n in range(count):
                        i = uintp(n) + start
                        px, py = buf[i], buf[_Y + i]
                        a = min(alpha(p, px, py), ALPHA_MAX)
                        c = features(p, f, px, py)
                        t = buf[_T + i]  # negative once the pixel has stopped
                        t_next = t * (_ONE - a)
                        hit = a >= ALPHA_MIN
                        keep = hit & (t_next > TRANSMITTANCE_MIN)
                        stopped = -abs(t) if hit else t
                        buf[_T + i] = t_next if keep else stopped
                        buf[_LAST + i] = rank if keep else buf[_LAST + i]
                        w = a * t if keep else _ZERO
                        if with_distortion:
                            apart = c[depth_channel] * (_ONE - t) - buf[depth_plane + i]
                            buf[distortion + i] = fma(w, apart + apart, buf[distortion + i])
                        if with_median:
                            buf[median + i] = c[depth_channel] if keep & (t > _HALF) else buf[median + i]
                        add_planes(buf, i + _CHANNELS, w, c)
                    if (k - first) % 16 == 15 and _all_stopped(buf):
                        break
                for i in range(PIXELS):
                    y, x = y0 + (i >> 4), x0 + (i & 15)
                    if y < height and x < width:
                        transmittance[y, x] = abs(buf[_T + uintp(i)])
                        last[y, x] = np.int32(buf[_LAST + uintp(i)])
                        for c in range(n_planes):
                            planes[c, y, x] = buf[_CHANNELS + uintp(c * PIXELS + i)]

    @njit(parallel=True, error_model="numpy", nogil=True, cache=True)
    def backward(shares, offsets, items, slots, n_x, x_origin, y_origin, table, planes, v_planes, v_alpha,
                 transmittance, last, sums):
        _ = stamp
        for share in prange(len(shares) - 1):
            for tile in range(shares[share], shares[share + 1]):
                x0 = (tile % n_x) * 16
                y0 = (tile // n_x) * 16
                buf = _scratch(n_backward)
                _pixel_centres(buf, x_origin + x0, y_origin + y0)
                depth = _load_tile(buf, x0, y0, v_planes, v_alpha, transmittance, last, n_planes)
                if with_distortion:
                    _load_depths(buf, x0, y0, planes[depth_channel], transmittance, further, ends)
                first = offsets[tile]
                for k in range(first + depth, offsets[tile + 1]):  # behind the last contribution
                    for c in range(n_moments + n_features):
                        sums[slots[k], c] = _ZERO
                for back in range(depth):
                    rank = depth - 1 - back
                    prefetch(table, items[first + max(rank - _AHEAD, 0)])
                    s = items[first + rank]
                    p = load(table, s)
                    f = load_row(table, s, n_geometry, no_features)
                    reached = np.float32(rank)
                    m = no_terms
                    start, count = _row_pixels(span, p, x_origin + x0, y_origin + y0)
                    for n in range(count):
                        i = uintp(n) + start
                        px, py = buf[i], buf[_Y + i]
                        raw = alpha(p, px, py)
                        c = features(p, f, px, py)
                        a = min(raw, ALPHA_MAX)
                        a = a if (a >= ALPHA_MIN) & (buf[_LAST + i] > reached) else _ZERO
                        inverse = _ONE / (_ONE - a)
                        t = buf[_T + i] * inverse  # transmittance in front of this splat
                        w = a * t
                        v = load_planes(buf, i + _V_CHANNELS, no_channels)
                        q = dot(v, c)
                        if with_distortion:
                            wz = w * c[depth_channel]
                            beyond = buf[further + i]  # Σ w z behind this splat, less that of it and in front of it
                            apart = buf[ends + i] - (t + buf[_T + i])  # weight in front less weight behind
                            twice = _TWO * buf[v_distortion + i]
                            q = fma(twice, fma(c[depth_channel], apart, beyond + wz), q)
                            v = add(v, scale(twice * apart, at_depth))
                            buf[further + i] = fma(_TWO, wz, beyond)
                        behind = buf[_BEHIND + i]
                        g = a * (t * q - behind * inverse) if raw <= ALPHA_MAX else _ZERO
                        buf[_BEHIND + i] = fma(w, q, behind)
                        buf[_T + i] = t
                        m = add(m, terms(p, f, px, py, g, w, v))
                    store_row(sums, slots[first + rank], 0, m)

    return Compositor(forward, backward, make_binner(load, span, stamp), n_geometry + n_features, n_moments, n_features,
                      n_planes)


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


@register_jitable(error_model="numpy")
def _load_depths(buf, x0, y0, depths, transmittance, further, ends):
    """Set up what distortion needs: −Σ w z of all splats, and one plus the final transmittance."""
    height, width = transmittance.shape
    for i in range(PIXELS):
        y, x = y0 + (i >> 4), x0 + (i & 15)
        if y < height and x < width:
            buf[further + uintp(i)] = -depths[y, x]
            buf[ends + uintp(i)] = _ONE + transmittance[y, x]


@njit(parallel=True, error_model="numpy", nogil=True, cache=True)
def sum_slots(starts, sums, out):
    """Add rows starts[s] … starts[s + 1] of ``sums`` (I, k) float32 per splat, in tile order, into ``out`` (M, k)."""
    for s in prange(len(starts) - 1):
        for c in range(sums.shape[1]):
            out[s, c] = _ZERO
        for k in range(starts[s], starts[s + 1]):
            for c in range(sums.shape[1]):
                out[s, c] += sums[k, c]
