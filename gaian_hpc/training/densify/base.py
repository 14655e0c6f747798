"""What density control is, and the parts that its strategies share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ...arrays import ArrayTable, View
from ...errors import GaianError, SettingsError
from ...points.store import PointStore
from ...rng import random_bits
from ...settings import DensifySettings

Gather = Callable[[np.ndarray], np.ndarray]
"""Concatenates the rows of all ranks in rank order, the same on every rank; collective."""


def one_rank(rows: np.ndarray) -> np.ndarray:
    """Gather on a single rank: all rows are already here."""
    return rows


@dataclass(frozen=True, slots=True)
class EditReport:
    """What one edit did to the whole scene, over all ranks; ``n_points`` is the number of points after it."""

    cloned: int = 0
    split: int = 0
    pruned: int = 0
    reset: int = 0
    relocated: int = 0
    added: int = 0
    n_points: int = 0


class DensityControl(Protocol):
    """A strategy that changes which points there are; called by the owner of the points.

    What happens to a point follows from its values, its id and globally reduced integers, never from its shard.
    ``moves_all`` tells whether ``after_update`` moves points that the unit did not read.
    """

    moves_all: bool

    def initial(self, store: PointStore) -> EditReport | None:
        """Collective. Prepare the points of a fresh run, once; a resumed run does not call it."""

    def prepare(self, store: PointStore) -> None:
        """Register the columns of ``store.statistics`` that are absent.

        Raises
        ------
        SettingsError
            If the method's points lack an attribute that the strategy works on.
        """

    def observe(self, store: PointStore, view: View, rows: np.ndarray, v_splats: ArrayTable) -> None:
        """Gather statistics after a view's backward.

        Parameters
        ----------
        rows : (M,) int64
            Local rows of the view's splats with a footprint on it, each once.
        v_splats : table
            ``means2d`` (M, 2), or ``absgrad`` (M, 2) where asked for: gradients of the unit's loss per pixel.
        """

    def regularize(self, store: PointStore, rows: np.ndarray, v_rows: ArrayTable, n_total: int) -> None:
        """Add gradients of the strategy's own loss to ``v_rows`` in place, before the optimizer's update.

        Parameters
        ----------
        rows : (U,) int64, ascending
        v_rows : table of (U, ...) float32
            Gradients with respect to activated values.
        n_total : int
            Points of the whole scene.
        """

    def after_update(self, store: PointStore, step: int, lr_means: float) -> None:
        """Act on every step after the optimizer; ``lr_means`` is the rate of the positions in world units."""

    def is_due(self, step: int) -> bool:
        """Tell whether :meth:`edit` may change the points after ``step``."""

    def edit(self, store: PointStore, step: int) -> EditReport | None:
        """Collective. Change the points where ``step`` calls for it; None where it does not."""


class FixedPoints:
    """Strategy ``none``: the points there are at the start stay; also the neutral base of the other strategies.

    Parameters
    ----------
    cap : int
        Largest number of points of the whole scene; 0 = no cap.
    seed : int
    gather : Gather
    """

    required: tuple[str, ...] = ()
    name = "none"
    moves_all = False
    """Whether :meth:`after_update` moves points that the unit did not read."""

    def __init__(self, cap: int, seed: int, gather: Gather = one_rank):
        self.cap = cap
        self.seed = seed
        self.gather = gather

    def initial(self, store: PointStore) -> EditReport | None:
        """Collective. Keep ``cap`` points chosen by a random number per id, if there are more."""
        return thin(store, self.cap, self.seed, self.gather)

    def prepare(self, store: PointStore) -> None:
        """Check that the attributes which the strategy works on exist."""
        missing = [name for name in self.required if name not in store.raw]
        if missing:
            raise SettingsError(f"densify.strategy {self.name!r} needs the attribute {missing[0]!r}, which points of "
                                f"this method do not have (they have: {', '.join(store.raw)}); "
                                "set densify.strategy to 'none'")

    def observe(self, store: PointStore, view: View, rows: np.ndarray, v_splats: ArrayTable) -> None:
        """Gather no statistics."""

    def regularize(self, store: PointStore, rows: np.ndarray, v_rows: ArrayTable, n_total: int) -> None:
        """Add nothing to the gradients."""

    def after_update(self, store: PointStore, step: int, lr_means: float) -> None:
        """Leave the updated points as they are."""

    def is_due(self, step: int) -> bool:
        """Never."""
        return False

    def edit(self, store: PointStore, step: int) -> EditReport | None:
        """Never edit."""
        return None


def resolve_stop(settings: DensifySettings, total_steps: int) -> int:
    """Return the step before which edits end: ``settings.stop``, or the strategy's share of the run where it is 0."""
    if settings.stop:
        return settings.stop
    if settings.strategy == "mcmc":
        return min(25_000, total_steps * 5 // 6)
    return min(15_000, total_steps // 2)


def is_due(step: int, settings: DensifySettings, stop: int) -> bool:
    """Tell whether an edit falls on ``step``: a multiple of ``every`` with start < step < stop."""
    return settings.start < step < stop and step % settings.every == 0


def global_sums(gather: Gather, *counts: int) -> list[int]:
    """Collective. Return each count summed over all ranks."""
    return [int(total) for total in gather(np.array([counts], np.int64)).sum(axis=0)]


def select_largest(ids: np.ndarray, keys: np.ndarray, n: int) -> np.ndarray:
    """Return the ``n`` ids with the largest keys, in ascending order; equal keys go to the smaller id.

    Parameters
    ----------
    ids : (K,) int64, in any order
    keys : (K,) any ordered dtype, not NaN
    """
    if n >= len(ids):
        return np.sort(ids)
    # Ascending lexsort read from its end: the largest key comes first, and among equal keys the smallest id.
    order = np.lexsort((-ids, keys))[::-1]
    return np.sort(ids[order[:max(n, 0)]])


def rows_of(store: PointStore, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the local rows of those ``ids`` that live in this shard, and their positions in ``ids``, on the host."""
    if store.n == 0 or len(ids) == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    place, wanted = store.place, store.place.array(ids)
    rows = place.xp.minimum(place.xp.searchsorted(store.ids, wanted), store.n - 1)
    positions = np.flatnonzero(place.host(store.ids[rows] == wanted))
    return place.host(rows)[positions], positions


def thin(store: PointStore, cap: int, seed: int, gather: Gather = one_rank) -> EditReport | None:
    """Collective. Keep ``cap`` points of the scene at random if there are more; None if there are not.

    The choice is by a random number per id, so that it does not depend on the shards.
    """
    n_total, = global_sums(gather, store.n)
    if not 0 < cap < n_total:
        return None
    words = random_bits(seed, "densify.thin", 0, store.ids, 2).astype(np.uint64)
    keys = (words[:, 0] << np.uint64(32)) | words[:, 1]
    kept = select_largest(gather(store.ids), gather(keys), cap)
    store.keep(np.isin(store.ids, kept, assume_unique=True))
    return EditReport(pruned=n_total - cap, n_points=cap)


def refuse_empty(n_left: int, step: int) -> None:
    """Raise if an edit at ``step`` would leave no points in the whole scene.

    Raises
    ------
    GaianError
    """
    if n_left <= 0:
        raise GaianError(f"all points were pruned at step {step}; lower densify.prune_opacity or raise "
                         "densify.prune_scale")
