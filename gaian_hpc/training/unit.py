"""A unit of views as work: its patches, and what one shard reads for each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from ..arrays import TILE_SIZE, ArrayTable, Patch, View
from ..data.patches import make_patches
from ..distributed.exchange import OwnSplats
from ..renderers.base import PointRenderer, boxes_of, make_splats, rows_in_view
from ..timing import PhaseTimer

PIXEL_WORK = 0.11
"""Work of a pixel in units of a (tile, splat) pair: loss and target against compositing, forward and backward, as
timed by `gaian bench step` at 640 × 480 with 311,000 pairs (0.033 and 0.29 µs)."""

Reach = Callable[[PointRenderer, View, ArrayTable, Sequence[Patch], int], tuple[Sequence[Any], np.ndarray]]
"""``reach(renderer, view, splats, patches, offset)`` returns the rows that reach each patch, and the patches' pairs."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Views and their patches, view after view.

    Attributes
    ----------
    views : tuple of View
    patches : tuple of Patch
    starts : tuple of int
        First patch of each view, and the number of all patches.
    """

    views: tuple[View, ...]
    patches: tuple[Patch, ...]
    starts: tuple[int, ...]

    @classmethod
    def of(cls, views: Sequence[View], patch_size: int) -> Unit:
        """Cut every view into patches."""
        grids = [make_patches(view, patch_size) for view in views]
        starts = np.cumsum([0, *map(len, grids)]).tolist()
        return cls(tuple(views), tuple(p for grid in grids for p in grid), tuple(starts))

    def patches_of(self, view: int) -> range:
        """Return the numbers of a view's patches."""
        return range(self.starts[view], self.starts[view + 1])

    def centers(self) -> np.ndarray:
        """Return the middle of each patch in pixels, (P, 2) float32."""
        return np.array([[(p.x0 + p.x1) / 2, (p.y0 + p.y1) / 2] for p in self.patches], np.float32).reshape(-1, 2)

    def view_of(self, patch: int) -> int:
        """Return the position, within the unit, of the view that a patch is cut from."""
        return int(np.searchsorted(self.starts, patch, side="right")) - 1


@dataclass(frozen=True, slots=True)
class ShardUnit:
    """What one shard reads for a unit.

    Attributes
    ----------
    unit : Unit
    rows : tuple of (M,) int64
        Local rows of the points that each view reads.
    splats : tuple of ArrayTable
        Their splats, by view.
    own : OwnSplats
        The splats of all views, and which of them each patch reads.
    counts : (P,) int64
    tiles : (P,) int64
        (tile, splat) pairs of each patch by bounding boxes.
    """

    unit: Unit
    rows: tuple[np.ndarray, ...]
    splats: tuple[ArrayTable, ...]
    own: OwnSplats
    counts: np.ndarray
    tiles: np.ndarray


def splat_unit(renderer: PointRenderer, points: ArrayTable, ids: np.ndarray, unit: Unit, timer: PhaseTimer,
               candidates: np.ndarray | None = None) -> ShardUnit:
    """Cull and splat a shard's points for every view of a unit, and find the splats that reach each patch.

    On the host; :func:`gaian_hpc.training.cuda.splat_unit` does it on a GPU.

    Parameters
    ----------
    renderer : PointRenderer
    points : ArrayTable of (N, ...)
        Activated values.
    ids : (N,) int64, ascending
    unit : Unit
    timer : PhaseTimer
        Phases cull, splat and patches.
    candidates : (C,) int64, ascending, optional
        Rows to look at; all by default.
    """
    with timer.region("cull"):
        rows = tuple(cull_rows(renderer, view, points, candidates) for view in unit.views)
    with timer.region("splat"):
        splats = tuple(make_splats(renderer, view, points, r) for view, r in zip(unit.views, rows, strict=True))
    with timer.region("patches"):
        return deal_out(renderer, unit, rows, splats, ids)


def deal_out(renderer: PointRenderer, unit: Unit, rows: Sequence[np.ndarray], splats: Sequence[ArrayTable],
             ids: np.ndarray, find: Reach | None = None, xp: Any = np) -> ShardUnit:
    """Find the splats that reach each patch; arguments as the attributes of :class:`ShardUnit`, and all ids (N,).

    ``xp`` is the array module of all of them, ``find`` what finds the splats there, :func:`reach` by default.
    """
    find, reached, tiles = find or reach, [], np.zeros(len(unit.patches), np.int64)
    offset = 0
    for v, (view, table) in enumerate(zip(unit.views, splats, strict=True)):
        numbers = unit.patches_of(v)
        lists, tiles[numbers.start:numbers.stop] = find(renderer, view, table,
                                                        unit.patches[numbers.start:numbers.stop], offset)
        reached += lists
        offset += table.n_rows
    counts = np.array([r.stop - r.start if isinstance(r, slice) else len(r) for r in reached], np.int64)
    own = OwnSplats(ids[xp.concatenate(rows)], joined(splats, xp), reached, unit.centers())
    return ShardUnit(unit, tuple(rows), tuple(splats), own, counts, tiles)


def cull_rows(renderer: PointRenderer, view: View, points: ArrayTable, candidates: np.ndarray | None) -> np.ndarray:
    """Return the rows, of ``candidates`` or of all, that a view reads, ascending int64."""
    if candidates is None or 2 * len(candidates) > points.n_rows:
        rows = rows_in_view(renderer, view, points)
        if candidates is None or len(candidates) == points.n_rows:
            return rows
        chosen = np.zeros(points.n_rows, bool)
        chosen[candidates] = True
        return rows[chosen[rows]]
    return candidates[rows_in_view(renderer, view, points.take(candidates))]


def joined(tables: Sequence[ArrayTable], xp: Any = np) -> ArrayTable:
    """Return the rows of all tables one after another; ``xp`` is their array module."""
    if len(tables) == 1:
        return tables[0]
    return ArrayTable({name: xp.concatenate([t[name] for t in tables]) for name in tables[0]},
                      sum(t.n_rows for t in tables))


def reach(renderer: PointRenderer, view: View, splats: ArrayTable, patches: Sequence[Patch],
          offset: int = 0) -> tuple[list[np.ndarray | slice], np.ndarray]:
    """Return the rows, counted from ``offset``, of the splats that reach each patch of a view, and its tile pairs."""
    boxes = boxes_of(renderer, view, splats)
    xs, ys = edges(view, patches)
    counts, tiles = _count_reach(boxes, xs, ys)
    if len(patches) == 1:  # a splat culled by its pixel box needs no second look
        return [slice(offset, offset + splats.n_rows)], tiles
    ends = np.cumsum(counts)
    rows = np.empty(int(ends[-1]), np.int64)
    _list_reach(boxes, xs, ys, ends - counts, offset, rows)
    return np.split(rows, ends[:-1]), tiles


def edges(view: View, patches: Sequence[Patch]) -> tuple[np.ndarray, np.ndarray]:
    """Return where the columns and the rows of a view's patches begin and end, float32, pixels."""
    return (np.array(sorted({p.x0 for p in patches} | {view.width}), np.float32),
            np.array(sorted({p.y0 for p in patches} | {view.height}), np.float32))


@njit(cache=True, nogil=True, error_model="numpy")
def _span(low, high, edges):
    """Return the first interval of ``edges`` that [low, high] touches, and the one after the last."""
    n = len(edges) - 1
    first = 0
    while first < n and edges[first + 1] < low:
        first += 1
    last = first
    while last < n and edges[last] <= high:
        last += 1
    return first, last


@njit(cache=True, nogil=True, error_model="numpy")
def _n_tiles(low, high, start, stop):
    """Return how many tiles of [start, stop) the interval [low, high] touches, at least one."""
    a = max(low, start) - start
    b = min(high, stop) - start
    return max(np.int64(b) // TILE_SIZE - np.int64(a) // TILE_SIZE, 0) + 1


@njit(cache=True, nogil=True, error_model="numpy")
def _count_reach(boxes, xs, ys):
    nx, ny = len(xs) - 1, len(ys) - 1
    counts = np.zeros(nx * ny, np.int64)
    tiles = np.zeros(nx * ny, np.int64)
    for i in range(len(boxes)):
        x_first, x_last = _span(boxes[i, 0], boxes[i, 2], xs)
        y_first, y_last = _span(boxes[i, 1], boxes[i, 3], ys)
        for y in range(y_first, y_last):
            n_y = _n_tiles(boxes[i, 1], boxes[i, 3], ys[y], ys[y + 1])
            for x in range(x_first, x_last):
                counts[y * nx + x] += 1
                tiles[y * nx + x] += n_y * _n_tiles(boxes[i, 0], boxes[i, 2], xs[x], xs[x + 1])
    return counts, tiles


@njit(cache=True, nogil=True, error_model="numpy")
def _list_reach(boxes, xs, ys, starts, offset, rows):
    nx = len(xs) - 1
    at = starts.copy()
    for i in range(len(boxes)):
        x_first, x_last = _span(boxes[i, 0], boxes[i, 2], xs)
        y_first, y_last = _span(boxes[i, 1], boxes[i, 3], ys)
        for y in range(y_first, y_last):
            for x in range(x_first, x_last):
                p = y * nx + x
                rows[at[p]] = i + offset
                at[p] += 1
