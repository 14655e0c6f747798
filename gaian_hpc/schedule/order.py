"""Odin's ahead-of-time order of an epoch: views near in time share few points, none is far from its random place.

An epoch is arranged inside a *strip*: what runs just before it, its own views, what runs just after. The strip is cut
into units from its start, as training cuts them, so that units that begin in one epoch and end in the next, and windows
that reach over the seam, are counted as they will run. Only the epoch's own views move.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from .graph import LocalityGraph
from .swaps import COLD, EMPTY, HOT, SEED, accepts, next_bits, propose
from .unions import affordable, refine

PROPOSALS, LEAST, MOST = 1_000_000, 20, 400  # swaps tried in an epoch; per view at least, and at most


@dataclass(frozen=True, slots=True)
class Strip:
    """Views in the order in which they run, of which those in the middle may move.

    Attributes
    ----------
    order : (L,) int64
        Unit u is ``order[u * views_per_step : (u + 1) * views_per_step]``; EMPTY where a place's view is not known.
    first, last : int
        ``order[first:last]`` may move; no unit may hold a view twice.
    """

    order: np.ndarray
    first: int
    last: int


def arrange(strip: Strip, graph: LocalityGraph, views_per_step: int, window: int, distance: int,
            unions: np.ndarray | None = None) -> np.ndarray:
    """Return the views that may move, so ordered that windows overlap little; the same for the same input.

    Swaps of two views, by simulated annealing: of what unions of views share (Odin's conflict itself) where ``unions``
    is given and can be searched in time, else of the overlaps between single views less than ``window`` units apart,
    which is close where few points are shared by three. A view stays within ``distance`` positions of its place in
    ``strip.order``. So in any stretch of an epoch at most 2 × ``distance`` views, ``distance`` at either end, differ
    from those of the random order: the mean of any bounded statistic over S positions is that of the random order to
    within 2 × ``distance`` / S of its range.

    Parameters
    ----------
    strip : Strip
    graph : LocalityGraph
        Of views 0 … V − 1.
    views_per_step : int
    window : int
        K: a unit and the K − 1 before it.
    distance : int
        At least 1.
    unions : (V, W) uint64, optional
        Sets of points as :func:`.unions.bitsets` makes them.

    Returns
    -------
    (last − first,) int64
    """
    out, first, last = np.array(strip.order, np.int64), strip.first, strip.last
    n = last - first
    if window > 1 and n > 2 * views_per_step:
        home = np.arange(len(out))
        if unions is not None and affordable(n, unions.shape[1], views_per_step, window):
            refine(out, home, first, last, unions, views_per_step, window, distance)
        else:
            tried = min(max(PROPOSALS // n, LEAST), MOST)
            _anneal(out, home, first, last, graph.neighbours, graph.overlap, _held(graph), views_per_step, window,
                    distance, tried)
    return out[first:last]


def _held(graph: LocalityGraph) -> np.ndarray:
    """Return the share of each neighbour's points that a view holds, (V, N) float32: what both see, of the neighbour's.

    With a, b and s points of a view, of its neighbour and of both: jaccard = s / (a + b − s) and overlap = s / a.
    """
    some = (graph.jaccard > 0) & (graph.overlap > 0)
    jaccard, overlap = np.where(some, graph.jaccard, 1), np.where(some, graph.overlap, 1)
    return np.where(some, np.clip(1 / (1 / jaccard + 1 - 1 / overlap), 0, 1), 0).astype(np.float32)


@njit(cache=True, nogil=True, error_model="numpy")
def _cost(neighbours, overlap, held, units, whole, window, unit, view, skip):
    """Return what ``view`` in ``unit`` overlaps with the units within its window, the moving view ``skip`` left out.

    ``units`` (3, V) tells in which unit a view is before, within and after what moves. The sum is over neighbours, not
    over places, so that its time does not depend on the number of views a unit. A unit cut off is left to the strip
    with its rest.
    """
    total = np.float32(0)
    if unit >= whole:
        return total
    for part in range(0, 3, 2):
        apart = units[part, view] - unit
        if 0 < abs(apart) < window and units[part, view] < whole:
            total += np.float32(1)
    for k in range(neighbours.shape[1]):
        other = neighbours[view, k]
        if other < 0:
            break
        for part in range(3):
            apart = units[part, other] - unit
            if apart == 0 or abs(apart) >= window or units[part, other] >= whole or (part == 1 and other == skip):
                continue
            total += overlap[view, k] if apart < 0 else held[view, k]
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def _places(order, first, last, size, window, n_views):
    units = np.full((3, n_views), -window - 1, np.int64)
    for i in range(len(order)):
        if order[i] != EMPTY:
            units[0 if i < first else 1 if i < last else 2, order[i]] = i // size
    return units


@njit(cache=True, nogil=True, error_model="numpy")
def _anneal(order, home, first, last, neighbours, overlap, held, size, window, distance, proposals):
    n, whole = last - first, len(order) // size
    units = _places(order, first, last, size, window, len(neighbours))
    state = SEED
    n_steps = n * proposals
    for step in range(n_steps):
        heat = HOT * (COLD / HOT) ** (step / n_steps)
        state, a, b = propose(state, home, first, last, size, distance)
        if b < 0:
            continue
        x, y, u, v = order[a], order[b], a // size, b // size
        if u in (units[0, y], units[2, y]) or v in (units[0, x], units[2, x]):
            continue
        before = (_cost(neighbours, overlap, held, units, whole, window, u, x, y)
                  + _cost(neighbours, overlap, held, units, whole, window, v, y, x))
        after = (_cost(neighbours, overlap, held, units, whole, window, u, y, x)
                 + _cost(neighbours, overlap, held, units, whole, window, v, x, y))
        state = next_bits(state)
        if accepts((after - before) / size, heat, state):
            order[a], order[b] = y, x
            home[a], home[b] = home[b], home[a]
            units[1, x], units[1, y] = v, u
