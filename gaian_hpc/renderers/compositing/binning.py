"""Tile lists: which splats meet which 16×16 tiles of a patch, front to back.

Splats are sorted once by (depth, id) and then dealt to tiles in that order, so that no key per intersection is sorted.
Counts and offsets are 64-bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import get_num_threads, njit, prange
from numba.extending import register_jitable

from ...arrays import TILE_SIZE, Patch

_RADIX_BITS = 11


@dataclass(frozen=True, slots=True)
class TileLists:
    """Splats per tile and tiles per splat of one patch.

    Attributes
    ----------
    shares : (threads + 1,) int64
        Thread t takes tiles shares[t] … shares[t + 1]: neighbours, whose splats are then still in its cache.
    offsets : (T + 1,) int64
        Tile t owns entries offsets[t] … offsets[t + 1].
    items : (I,) int32
        Splat rows, front to back within each tile.
    slots : (I,) int64
        Row of each intersection in a table grouped by splat, tiles column by column.
    starts : (M + 1,) int64
        Splat s owns rows starts[s] … starts[s + 1] of that table.
    n_x : int
        Tiles per row of the patch.
    """

    shares: np.ndarray
    offsets: np.ndarray
    items: np.ndarray
    slots: np.ndarray
    starts: np.ndarray
    n_x: int


def make_binner(load, span, stamp: int):
    """Build ``bin_splats`` for a method's ``span(p, x0, x1) -> (y0, y1)`` (register_jitable).

    A convex splat meets a tile exactly if its span over the tile's columns meets the tile's rows.
    """

    @register_jitable(error_model="numpy")
    def tile_rows(p, x, y, n_y):
        """Return the half-open range of tile rows that a splat meets in the tile column at ``x``."""
        left = np.float32(x) + np.float32(0.5)
        top, bottom = span(p, left, left + np.float32(15.0))
        low = np.ceil(top - np.float32(y) - np.float32(0.5))  # rows of pixel centres
        high = np.floor(bottom - np.float32(y) - np.float32(0.5))
        if not low <= high or high < 0 or low >= 16 * n_y:
            return 0, 0
        return np.int64(max(low, 0)) >> 4, (np.int64(min(high, 16 * n_y - 1)) >> 4) + 1

    @njit(parallel=True, error_model="numpy", nogil=True, cache=True)
    def count(order, columns, geometry, per_splat, per_chunk, n_x, n_y, x_origin, y_origin):
        _ = stamp
        n_chunks = per_chunk.shape[0]
        for chunk in prange(n_chunks):
            for k in range(len(order) * chunk // n_chunks, len(order) * (chunk + 1) // n_chunks):
                s = order[k]
                p = load(geometry, s)
                hits = 0
                for tx in range(columns[s, 0], columns[s, 1]):
                    low, high = tile_rows(p, x_origin + tx * 16, y_origin, n_y)
                    for ty in range(low, high):
                        per_chunk[chunk, ty * n_x + tx] += 1
                    hits += high - low
                per_splat[s] = hits

    @njit(parallel=True, error_model="numpy", nogil=True, cache=True)
    def deal(order, columns, geometry, starts, cursors, items, slots, n_x, n_y, x_origin, y_origin):
        _ = stamp
        n_chunks = cursors.shape[0]
        for chunk in prange(n_chunks):
            for k in range(len(order) * chunk // n_chunks, len(order) * (chunk + 1) // n_chunks):
                s = order[k]
                p = load(geometry, s)
                slot = starts[s]
                for tx in range(columns[s, 0], columns[s, 1]):
                    low, high = tile_rows(p, x_origin + tx * 16, y_origin, n_y)
                    for ty in range(low, high):
                        at = cursors[chunk, ty * n_x + tx]
                        cursors[chunk, ty * n_x + tx] = at + 1
                        items[at] = s
                        slots[at] = slot
                        slot += 1

    def bin_splats(patch: Patch, depths: np.ndarray, boxes: np.ndarray, geometry: np.ndarray) -> TileLists:
        """Return the tile lists of a patch.

        Parameters
        ----------
        depths : (M,) float32
        boxes : (M, 4) float32
            x0, y0, x1, y1 in pixels of the view, conservative.
        geometry : (M, G) float32
            What ``load`` reads, in pixels of the view.
        """
        n_x, n_y = -(-patch.width // TILE_SIZE), -(-patch.height // TILE_SIZE)
        order = depth_order(depths)
        columns = np.empty((len(depths), 2), np.int32)
        _tile_columns(boxes, n_x, patch.x0, columns)
        n_chunks = get_num_threads()
        per_splat = np.zeros(len(depths), np.int64)
        per_chunk = np.zeros((n_chunks, n_x * n_y), np.int64)
        count(order, columns, geometry, per_splat, per_chunk, n_x, n_y, patch.x0, patch.y0)
        starts = np.zeros(len(depths) + 1, np.int64)
        np.cumsum(per_splat, out=starts[1:])
        per_tile = per_chunk.sum(axis=0)
        offsets = np.zeros(n_x * n_y + 1, np.int64)
        np.cumsum(per_tile, out=offsets[1:])
        cursors = offsets[:-1] + np.cumsum(per_chunk, axis=0) - per_chunk
        items = np.empty(offsets[-1], np.int32)
        slots = np.empty(offsets[-1], np.int64)
        deal(order, columns, geometry, starts, cursors, items, slots, n_x, n_y, patch.x0, patch.y0)
        return TileLists(equal_shares(offsets, n_chunks), offsets, items, slots, starts, n_x)

    return bin_splats


def aligned_rows(n: int, width: int) -> np.ndarray:
    """Return an uninitialised (n, width) float32 array whose first row begins a cache line."""
    raw = np.empty(n * width + 16, np.float32)
    skip = (-raw.ctypes.data // 4) % 16
    return raw[skip:skip + n * width].reshape(n, width)


def equal_shares(offsets: np.ndarray, n_shares: int) -> np.ndarray:
    """Return the bounds (n_shares + 1,) of contiguous ranges of tiles that hold nearly equal numbers of entries."""
    wanted = offsets[-1] * np.arange(n_shares + 1) // n_shares
    bounds = np.searchsorted(offsets, wanted)
    bounds[0], bounds[-1] = 0, len(offsets) - 1
    return bounds.astype(np.int64)


def depth_order(depths: np.ndarray) -> np.ndarray:
    """Return the stable ascending order of ``depths`` (M,) float32 as (M,) int32: ties keep the order of ids."""
    bits = np.ascontiguousarray(depths, np.float32).view(np.uint32)
    keys = np.where(bits >> 31 == 1, ~bits, bits | np.uint32(0x80000000))  # order of floats as order of integers
    return _radix_order(keys)


@njit(cache=True, nogil=True)
def _radix_order(keys):
    n = len(keys)
    order = np.arange(n).astype(np.int32)
    other = np.empty(n, np.int32)
    for shift in (0, _RADIX_BITS, 2 * _RADIX_BITS):
        counts = np.zeros((1 << _RADIX_BITS) + 1, np.int64)
        for i in range(n):
            counts[((keys[i] >> np.uint32(shift)) & np.uint32((1 << _RADIX_BITS) - 1)) + 1] += 1
        for b in range(1 << _RADIX_BITS):
            counts[b + 1] += counts[b]
        for k in range(n):
            i = order[k]
            b = (keys[i] >> np.uint32(shift)) & np.uint32((1 << _RADIX_BITS) - 1)
            other[counts[b]] = i
            counts[b] += 1
        order, other = other, order
    return order


@njit(cache=True, nogil=True, error_model="numpy")
def _tile_columns(boxes, n_x, x_origin, columns):
    """Write the half-open range of tile columns that each pixel box meets; empty for an empty box."""
    for s in range(len(boxes)):
        x0, x1 = boxes[s, 0] - x_origin, boxes[s, 2] - x_origin
        if not x1 >= x0:
            columns[s, :] = 0
            continue
        columns[s, 0] = np.int32(min(max(np.floor((x0 - 0.5) / 16.0), 0.0), n_x))
        columns[s, 1] = np.int32(min(max(np.floor((x1 - 0.5) / 16.0) + 1.0, 0.0), n_x))
