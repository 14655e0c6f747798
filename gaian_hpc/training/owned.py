"""A unit in flight as the owner of points sees it: what it reads, in waves, and the gradients that come back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..arrays import ArrayTable, Field, View
from ..points.store import PointStore
from ..renderers.base import PointRenderer, point_gradients
from ..timing import PhaseTimer
from .step import ViewGradients, sum_views
from .unit import ShardUnit, Unit, splat_unit

Observer = Callable[[View, np.ndarray, ArrayTable], None]
"""``observer(view, rows, v_splats)``: gathers density statistics."""


@dataclass(slots=True)
class Wave:
    """Points that a unit reads and that were published together.

    Attributes
    ----------
    shard : ShardUnit
    rows : (U,) int64, ascending
        Local rows that any view reads.
    places : list of (m,) int64
        For each patch, where its splats' points stand in ``rows``.
    left : (U,) int64
        Patches of each point whose gradients are still to come.
    done : (U,) bool
        Points that are updated.
    is_done : bool
        Whether all are.
    returned : dict of int to ArrayTable
        Gradients of each patch's splats, as they come.
    """

    shard: ShardUnit
    rows: np.ndarray
    places: list[np.ndarray]
    left: np.ndarray
    done: np.ndarray
    is_done: bool = False
    returned: dict[int, ArrayTable] = field(default_factory=dict)

    @property
    def is_back(self) -> bool:
        """Whether the gradients of all its points have come back."""
        return not self.left.any()

    @classmethod
    def of(cls, shard: ShardUnit) -> Wave:
        """Return the wave of what a shard reads."""
        single = len(shard.rows) == 1
        rows = shard.rows[0] if single else np.unique(np.concatenate(shard.rows))
        every = np.concatenate([np.arange(len(rows)) if single else np.searchsorted(rows, r) for r in shard.rows])
        places = [every[r] for r in shard.own.rows]
        left = np.zeros(len(rows), np.int64)
        for p in places:
            left[p] += 1
        return cls(shard, rows, places, left, np.zeros(len(rows), bool))


class OwnedUnit:
    """What a shard has published of a unit, and what has come back.

    Parameters
    ----------
    unit : Unit
    renderer : PointRenderer
        Of the unit's step.
    store : PointStore
    fields : tuple of Field
        Of gradients of splats.
    timer : PhaseTimer
    """

    def __init__(self, unit: Unit, renderer: PointRenderer, store: PointStore, fields: Sequence[Field],
                 timer: PhaseTimer):
        self.unit, self.waves = unit, list[Wave]()
        self._renderer, self._store, self._fields, self._timer = renderer, store, fields, timer

    @property
    def n_read(self) -> int:
        """Points that the unit reads, as far as they are published."""
        return sum(len(w.rows) for w in self.waves)

    def publish(self, candidates: np.ndarray) -> Wave:
        """Project those of ``candidates`` (rows, ascending) that the unit reads."""
        shard = splat_unit(self._renderer, self._store.values, self._store.ids, self.unit, self._timer, candidates)
        self.waves.append(Wave.of(shard))
        return self.waves[-1]

    def n_splats(self, patch: int) -> list[int]:
        """Return how many splats of each wave reach a patch."""
        return [int(w.shard.counts[patch]) for w in self.waves]

    def take(self, patch: int, parts: Sequence[ArrayTable]) -> None:
        """Take the gradients of a patch's splats, by wave."""
        for wave, part in zip(self.waves, parts, strict=True):
            wave.returned[patch] = part
            wave.left[wave.places[patch]] -= 1

    def gradients(self, wave: Wave, chosen: np.ndarray, observe: Observer) -> tuple[np.ndarray, ArrayTable]:
        """Return rows and gradients of the ``chosen`` (U,) bool points of a wave; all their patches are back."""
        gradients = []
        offset = 0
        for v, view in enumerate(self.unit.views):
            rows, splats = wave.shard.rows[v], wave.shard.splats[v]
            taken = np.flatnonzero(chosen[np.searchsorted(wave.rows, rows)])
            with self._timer.region("gather"):
                v_splats = self._sum(wave, v, offset, taken)
                mine = splats if len(taken) == len(rows) else splats.take(taken)
            with self._timer.region("splat_vjp"):
                v_points = point_gradients(self._renderer, view, self._store.values, rows[taken], mine, v_splats)
            observe(view, rows[taken], v_splats)
            gradients.append(ViewGradients(rows[taken], v_points))
            offset += len(rows)
        with self._timer.region("gather"):
            return sum_views(gradients)

    def _sum(self, wave: Wave, v: int, offset: int, taken: np.ndarray) -> ArrayTable:
        """Return the gradients of some of a view's splats, summed over its patches in their order (design §6)."""
        numbers = self.unit.patches_of(v)
        if len(numbers) == 1:
            whole = wave.returned.get(numbers.start)
            return whole.take(taken) if whole is not None else self._zeros(len(taken))
        place = np.full(len(wave.shard.rows[v]), -1)
        place[taken] = np.arange(len(taken))
        total = self._zeros(len(taken))
        for p in numbers:
            if p not in wave.returned:
                continue
            at = place[wave.shard.own.rows[p] - offset]
            kept = at >= 0
            for name, values in wave.returned[p].items():
                total[name][at[kept]] += values[kept]
        return total

    def _zeros(self, n: int) -> ArrayTable:
        return ArrayTable({f.name: np.zeros((n, *f.shape), np.float32) for f in self._fields}, n)
