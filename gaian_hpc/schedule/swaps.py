"""What every search by swaps needs: random bits and the rule of acceptance."""

from __future__ import annotations

import numpy as np
from numba import njit

EMPTY = -1  # a place in a strip whose view is not known
HOT, COLD = 0.05, 0.0005  # temperatures at the start and at the end, in shares of a unit's points
SEED = np.uint64(0x9E3779B97F4A7C15)  # of the search; which order is searched from depends on the run's seed


@njit(cache=True, nogil=True, error_model="numpy")
def next_bits(state):
    """Return the next state of Marsaglia's 64-bit xorshift generator (2003)."""
    state ^= state << np.uint64(13)
    state ^= state >> np.uint64(7)
    return state ^ (state << np.uint64(17))


@njit(cache=True, nogil=True, error_model="numpy")
def below(state, n):
    """Return a number from 0 to n − 1; the low bits of the generator are its weak ones."""
    return np.int64((state >> np.uint64(11)) % np.uint64(n))


@njit(cache=True, nogil=True, error_model="numpy")
def propose(state, home, first, last, size, distance):
    """Return the next state and two positions of first … last − 1, a < b, to be swapped; b is −1 where they may not.

    They may not within a unit of ``size`` views, nor where an entry would stand over ``distance`` from its ``home``.
    """
    state = next_bits(state)
    a = first + below(state, last - first)
    state = next_bits(state)
    b = a + 1 + below(state, min(2 * distance, last - first - 1))
    if b >= last or a // size == b // size or abs(home[a] - b) > distance or abs(home[b] - a) > distance:
        return state, a, -1
    return state, a, b


@njit(cache=True, nogil=True, error_model="numpy")
def accepts(change, heat, state):
    """Tell whether a change of cost is taken (Metropolis et al. 1953)."""
    return change <= 0 or np.float64(state >> np.uint64(11)) / 9007199254740992.0 < np.exp(-change / heat)
