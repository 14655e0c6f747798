"""Search on the conflict itself: what the union of a unit's views shares with the union of its window's views.

Overlaps of pairs count a point as often as views hold it. Where few views see much of the same, as in a small scene,
the order that is best by pairs is not the best one; bit sets make exact unions cheap enough there.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .graph import ViewTracks
from .swaps import COLD, EMPTY, HOT, SEED, accepts, next_bits, propose

MOST_VIEWS = 512  # beyond, unions are hardly more than pairs, and pairs are cheaper
MOST_BITS = 16_384  # tracks that are counted; every k-th where there are more
WORDS = 300_000_000  # words combined in an epoch, which bounds its time whatever the scene
LEAST, MOST = 200, 4_000  # swaps tried per view; what cannot pay for the least is searched by pairs


def bitsets(views: ViewTracks) -> np.ndarray | None:
    """Return the tracks of each view as bits, (V, W) uint64, or None where there are too many views for it.

    Parameters
    ----------
    views : ViewTracks
    """
    if views.n_views > MOST_VIEWS:
        return None
    every = max(1, -(-views.n_tracks // MOST_BITS))
    n_words = views.n_tracks // every // 64 + 1
    out = np.zeros((views.n_views, n_words), np.uint64)
    view = np.repeat(np.arange(views.n_views), views.sizes())
    kept = views.tracks % every == 0
    bit = views.tracks[kept].astype(np.int64) // every
    np.bitwise_or.at(out, (view[kept], bit // 64), np.uint64(1) << (bit % 64).astype(np.uint64))
    return out


def greedy(order: np.ndarray, first: int, sets: np.ndarray, size: int, window: int) -> None:
    """Bring ``order[first:]`` in place into the simple order that others are measured against.

    Always the view, of all that are left, of which the units before it in its window hold the least share, ties as in
    ``order``; no view is bound to its place.

    Parameters
    ----------
    order : (L,) int64
    first : int
        What stands before has run.
    sets : (V, W) uint64
    size : int
        Views a unit, from position 0 on.
    window : int
    """
    _choose(order, first, sets, size, window)


def affordable(n: int, n_words: int, size: int, window: int) -> int:
    """Return how many swaps an epoch of ``n`` views may try, 0 if too few for it to be of use."""
    tried = WORDS // (n_words * 2 * (window * window + size))
    return min(tried, n * MOST) if tried >= n * LEAST else 0


def refine(order: np.ndarray, home: np.ndarray, first: int, last: int, sets: np.ndarray, size: int, window: int,
           distance: int) -> None:
    """Swap views of ``order[first:last]`` in place so that windows overlap little; ``home`` moves with them.

    Parameters
    ----------
    order : (L,) int64
    home : (L,) int64
        Position from which each entry may stand ``distance`` away.
    first, last : int
    sets : (V, W) uint64
    size : int
        Views a unit.
    window, distance : int
    """
    n_steps = affordable(last - first, sets.shape[1], size, window)
    _anneal(order, home, first, last, sets, size, window, distance, n_steps)


@njit(cache=True, nogil=True, error_model="numpy")
def _anneal(order, home, first, last, sets, size, window, distance, n_steps):
    n_units = len(order) // size  # a unit cut off is left to the strip with its rest
    unions = np.zeros((n_units, sets.shape[1]), np.uint64)
    for unit in range(n_units):
        _unite(order, sets, size, unit, unions)
    shares = np.zeros(n_units)
    for unit in range(n_units):
        shares[unit] = _share(unions, unit, window)
    trial = shares.copy()
    best, cost, lowest = order.copy(), 0.0, 0.0
    best_home = home.copy()
    state = SEED
    for step in range(n_steps):
        heat = HOT * (COLD / HOT) ** (step / n_steps)
        state, a, b = propose(state, home, first, last, size, distance)
        if b < 0:
            continue
        if _holds(order, size, a, order[b]) or _holds(order, size, b, order[a]):
            continue
        _swap(order, home, a, b)
        change = _retry(order, sets, size, window, unions, shares, trial, a // size, b // size)
        state = next_bits(state)
        if not accepts(change, heat, state):
            _swap(order, home, a, b)
            _unite(order, sets, size, a // size, unions)
            if b // size < n_units:
                _unite(order, sets, size, b // size, unions)
            continue
        _keep(shares, trial, a // size, window)
        _keep(shares, trial, b // size, window)
        cost += change
        if cost < lowest - 1e-12:
            lowest = cost
            best[:] = order
            best_home[:] = home
    order[:] = best
    home[:] = best_home


@njit(cache=True, nogil=True, error_model="numpy")
def _choose(order, first, sets, size, window):
    earlier = np.zeros(sets.shape[1], np.uint64)
    for at in range(first, len(order)):
        unit = at // size
        if at % size == 0 or at == first:
            earlier[:] = 0
            for i in range(max(0, (unit - window + 1) * size), unit * size):
                earlier |= sets[order[i]]
        least, chosen = np.inf, at
        for i in range(at, len(order)):
            total, held = np.uint64(0), np.uint64(0)
            for w in range(sets.shape[1]):
                total += _bits(sets[order[i], w])
                held += _bits(sets[order[i], w] & earlier[w])
            share = held / total if total else 0.0
            if share < least and order[i] not in order[unit * size:at]:
                least, chosen = share, i
        view = order[chosen]
        order[at + 1:chosen + 1] = order[at:chosen].copy()
        order[at] = view


@njit(cache=True, nogil=True, error_model="numpy")
def _swap(order, home, a, b):
    order[a], order[b] = order[b], order[a]
    home[a], home[b] = home[b], home[a]


@njit(cache=True, nogil=True, error_model="numpy")
def _holds(order, size, at, view):
    """Tell whether the unit of position ``at`` holds ``view`` at another position."""
    unit = at // size
    for i in range(unit * size, min(len(order), (unit + 1) * size)):
        if i != at and order[i] == view:
            return True
    return False


@njit(cache=True, nogil=True, error_model="numpy")
def _unite(order, sets, size, unit, unions):
    unions[unit] = 0
    for i in range(unit * size, min(len(order), (unit + 1) * size)):
        if order[i] != EMPTY:
            for w in range(sets.shape[1]):
                unions[unit, w] |= sets[order[i], w]


@njit(cache=True, nogil=True, error_model="numpy")
def _retry(order, sets, size, window, unions, shares, trial, u, v):
    """Unite two units anew and return the change of the sum of shares of all units that see them; u < v."""
    _unite(order, sets, size, u, unions)
    if v < len(shares):
        _unite(order, sets, size, v, unions)
    change = 0.0
    for unit in range(u, min(len(shares), u + window)):
        trial[unit] = _share(unions, unit, window)
        change += trial[unit] - shares[unit]
    for unit in range(max(v, u + window), min(len(shares), v + window)):
        trial[unit] = _share(unions, unit, window)
        change += trial[unit] - shares[unit]
    return change


@njit(cache=True, nogil=True, error_model="numpy")
def _keep(shares, trial, unit, window):
    for i in range(unit, min(len(shares), unit + window)):
        shares[i] = trial[i]


@njit(cache=True, nogil=True, error_model="numpy")
def _share(unions, unit, window):
    """Return the share of a unit's points that the units before it in its window hold."""
    total, held = np.uint64(0), np.uint64(0)
    for w in range(unions.shape[1]):
        mine = unions[unit, w]
        earlier = np.uint64(0)
        for k in range(max(0, unit - window + 1), unit):
            earlier |= unions[k, w]
        total += _bits(mine)
        held += _bits(mine & earlier)
    return held / total if total else 0.0


@njit(cache=True, nogil=True, error_model="numpy")
def _bits(x):
    """Return the number of bits that are set: sums of pairs, of nibbles, of bytes."""
    x -= (x >> np.uint64(1)) & np.uint64(0x5555555555555555)
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (x * np.uint64(0x0101010101010101)) >> np.uint64(56)
