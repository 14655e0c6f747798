"""What points were before the updates of the latest units, so that what is read too early does not depend on timing.

Throughput-first lets a unit read a point before earlier updates of it. Which points, and which of their values, follows
from the order of units alone: a delayed read sees what all units that had to be finished when its unit was admitted
left behind, even where a later update is there already. So the result is the same in every run on the same ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from ..arrays import ArrayTable
from ..points.store import PointStore


@dataclass(slots=True)
class _Unit:
    """The scope of a unit (ascending rows), and what its updates replaced: rows, magnitudes and values."""

    scope: np.ndarray
    replaced: list[tuple[np.ndarray, np.ndarray, ArrayTable]] = field(default_factory=list)


class Past:
    """Values and magnitudes of points before the updates of the last units.

    Parameters
    ----------
    store : PointStore
    depth : int
        Units in flight at most; a unit's window are the ``depth`` − 1 units before it.
    """

    def __init__(self, store: PointStore, depth: int):
        self._store, self._depth = store, depth
        self.magnitude = np.full(store.n, np.inf, np.float32)
        self._units: dict[int, _Unit] = {}

    def begin(self) -> None:
        """Forget the units of an earlier segment: all of their updates are done."""
        self._units.clear()

    def open(self, unit: int, scope: np.ndarray) -> None:
        """Take a unit into flight whose scope is predicted to be ``scope``, and forget those out of its window."""
        self._units[unit] = _Unit(scope)
        for old in [u for u in self._units if u <= unit - self._depth]:
            del self._units[old]

    def scopes(self, unit: int) -> list[np.ndarray]:
        """Return the predicted scopes of the units in the window of ``unit``."""
        return [known.scope for u, known in self._units.items() if unit - self._depth < u < unit]

    def keep(self, unit: int, rows: np.ndarray, magnitude: np.ndarray) -> None:
        """Remember what an update of ``rows`` (U,) is about to replace; ``magnitude`` (U,) is that of its gradients."""
        self._units[unit].replaced.append((rows, self.magnitude[rows], self._store.values.take(rows)))
        self.magnitude[rows] = magnitude

    @contextmanager
    def before(self, unit: int, rows: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """Give points, or those of ``rows`` (ascending) only, the values they had before the window of ``unit``.

        Yields the magnitudes (N,) of that time; on leaving, values are as they were.
        """
        values, undo = self._store.values, []
        magnitude = self.magnitude.copy()
        window = [known for u, known in self._units.items() if unit - self._depth < u < unit]
        for known in reversed(window):
            for changed, old, table in reversed(known.replaced):
                at = np.arange(len(changed))
                if rows is not None:
                    at = np.flatnonzero(np.isin(changed, rows, assume_unique=True))
                mine = changed[at]
                undo.append((mine, values.take(mine)))
                magnitude[mine] = old[at]
                _put(values, mine, table.take(at))
        try:
            yield magnitude
        finally:
            for mine, table in reversed(undo):
                _put(values, mine, table)


def _put(values: ArrayTable, rows: np.ndarray, table: ArrayTable) -> None:
    for name, x in table.items():
        values[name][rows] = x
