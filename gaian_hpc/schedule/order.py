"""Odin's ahead-of-time order of an epoch: views near in time share few points, none is far from its random place."""

from __future__ import annotations

import numpy as np
from numba import njit

from .graph import LocalityGraph

PROPOSALS, LEAST, MOST = 1_000_000, 20, 400  # swaps tried in an epoch; per view at least, and at most
HOT, COLD = 0.05, 0.0005  # temperatures, in shares of a unit's points


def arrange(order: np.ndarray, graph: LocalityGraph, views_per_step: int, window: int, distance: int,
            proposals: int = 0) -> np.ndarray:
    """Return a permutation of ``order`` whose windows overlap little; the same for the same input.

    Swaps of two views, by simulated annealing of the overlaps between views less than ``window`` units apart, each
    divided by the unit's number of views. A view stays within ``distance`` positions of its place in ``order``:
    whatever mean over a stretch of an epoch much longer than that, it is that of the random order.

    Parameters
    ----------
    order : (V,) int64
    graph : LocalityGraph
        Of views 0 … V − 1.
    views_per_step : int
    window : int
        K: a unit and the K − 1 before it.
    distance : int
        At least 1.
    proposals : int
        Swaps tried per view; 0 = a million an epoch, 20 to 400 a view.

    Returns
    -------
    (V,) int64
    """
    out = np.array(order, np.int64)
    if window > 1 and len(out) > 2 * views_per_step:
        home = np.empty(len(out), np.int64)
        home[out] = np.arange(len(out))
        tried = proposals or min(max(PROPOSALS // len(out), LEAST), MOST)
        _anneal(out, home, graph.neighbours, graph.overlap, views_per_step, window, max(1, distance), tried)
    return out


@njit(cache=True, nogil=True, error_model="numpy")
def _weight(neighbours, overlap, i, j):
    """Return the share of view i's points that j holds."""
    low, high = 0, neighbours.shape[1]
    while high > low and neighbours[i, high - 1] < 0:
        high -= 1
    while low < high:
        middle = (low + high) // 2
        if neighbours[i, middle] < j:
            low = middle + 1
        else:
            high = middle
    if low < neighbours.shape[1] and neighbours[i, low] == j:
        return overlap[i, low]
    return np.float32(0)


@njit(cache=True, nogil=True, error_model="numpy")
def _cost(order, neighbours, overlap, size, window, at, view, skip):
    """Return what ``view`` at position ``at`` overlaps with the units within its window, position ``skip`` left out."""
    unit = at // size
    total = np.float32(0)
    for i in range(max(0, (unit - window + 1) * size), min(len(order), (unit + window) * size)):
        if i // size == unit or i == skip:
            continue
        if i < at:
            total += _weight(neighbours, overlap, view, order[i])
        else:
            total += _weight(neighbours, overlap, order[i], view)
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def _anneal(order, home, neighbours, overlap, size, window, distance, proposals):
    n = len(order)
    state = np.uint64(0x9E3779B97F4A7C15)
    n_steps = n * proposals
    for step in range(n_steps):
        heat = HOT * (COLD / HOT) ** (step / n_steps)
        state ^= state << np.uint64(13)
        state ^= state >> np.uint64(7)
        state ^= state << np.uint64(17)
        a = np.int64((state >> np.uint64(11)) % np.uint64(n))
        state ^= state << np.uint64(13)
        state ^= state >> np.uint64(7)
        state ^= state << np.uint64(17)
        b = a + 1 + np.int64((state >> np.uint64(11)) % np.uint64(2 * distance))
        if b >= n or a // size == b // size:
            continue
        x, y = order[a], order[b]
        if abs(home[x] - b) > distance or abs(home[y] - a) > distance:
            continue
        before = (_cost(order, neighbours, overlap, size, window, a, x, b)
                  + _cost(order, neighbours, overlap, size, window, b, y, a))
        after = (_cost(order, neighbours, overlap, size, window, a, y, b)
                 + _cost(order, neighbours, overlap, size, window, b, x, a))
        change = (after - before) / size
        if change > 0:
            state ^= state << np.uint64(13)
            state ^= state >> np.uint64(7)
            state ^= state << np.uint64(17)
            u = np.float64(state >> np.uint64(11)) / 9007199254740992.0
            if u >= np.exp(-change / heat):
                continue
        order[a], order[b] = y, x
