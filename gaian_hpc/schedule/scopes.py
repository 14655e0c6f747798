"""Which points of a shard a unit may read: publication and validation, local to the owner (Odin, "predict and
validate").

Units are in flight in their order. To each, a point is *undecided* until its owner knows whether the unit reads it,
then *read* until the unit's update of it is done, or *out*. A point is free for a unit when every earlier unit in
flight has either left it out or updated it; only free points are published, so every unit reads what all earlier ones
left behind.
"""

from __future__ import annotations

import numpy as np

OUT, UNDECIDED, READ, UPDATED = range(4)


class Scopes:
    """The state of every point of a shard to every unit in flight.

    Parameters
    ----------
    n_points : int
        Points of the shard; the same as long as a unit is in flight.
    """

    def __init__(self, n_points: int):
        self._n = n_points
        self._states: dict[int, np.ndarray] = {}
        self._left: dict[int, int] = {}  # points of a unit that are undecided or read

    def open(self, unit: int) -> None:
        """Take a unit into flight; later than all that are."""
        self._states[unit] = np.full(self._n, UNDECIDED, np.uint8)
        self._left[unit] = self._n

    def close(self, unit: int) -> None:
        """Forget a unit that is finished."""
        del self._states[unit], self._left[unit]

    def free(self, unit: int) -> np.ndarray:
        """Return the rows, ascending int64, that are undecided for ``unit`` and that no earlier unit holds."""
        free = self._states[unit] == UNDECIDED
        for earlier, state in self._states.items():
            if earlier < unit:
                free &= (state == OUT) | (state == UPDATED)
        return np.flatnonzero(free)

    def settled(self, unit: int, rows: np.ndarray) -> np.ndarray:
        """Return, for each of ``rows``, whether all earlier units have left it out or updated it, bool."""
        out = np.ones(len(rows), bool)
        for earlier, state in self._states.items():
            if earlier < unit:
                mine = state[rows]
                out &= (mine == OUT) | (mine == UPDATED)
        return out

    def awaited(self, unit: int, rows: np.ndarray) -> np.ndarray:
        """Return, for each of ``rows``, whether ``unit`` is still undecided about it, bool."""
        return self._states[unit][rows] == UNDECIDED

    def undecided(self, unit: int) -> np.ndarray:
        """Return the rows, ascending int64, that wait for earlier units."""
        return np.flatnonzero(self._states[unit] == UNDECIDED)

    def decide(self, unit: int, rows: np.ndarray, read: np.ndarray) -> None:
        """Of the undecided ``rows``, the unit reads ``read`` and leaves the others out."""
        state = self._states[unit]
        state[rows] = OUT
        state[read] = READ
        self._left[unit] -= len(rows) - len(read)

    def update(self, unit: int, rows: np.ndarray) -> None:
        """The unit's update of ``rows``, which it read, is done."""
        self._states[unit][rows] = UPDATED
        self._left[unit] -= len(rows)

    def is_finished(self, unit: int) -> bool:
        """Tell whether the unit has decided on and updated all it reads."""
        return self._left[unit] == 0
