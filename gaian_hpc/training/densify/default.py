"""Clone, split, prune and reset by the screen gradient of positions (Kerbl et al. 2023, section 5.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from ...arrays import ArrayTable, View
from ...points.store import PointStore
from ...rng import normal
from ...settings import DensifySettings
from .base import EditReport, FixedPoints, Gather, global_sums, is_due, one_rank, refuse_empty, rows_of, select_largest
from .geometry import GaussianSplit, Split, attribute_of, multiplied, stored

SPLIT_CHILDREN = 2
SPLIT_SHRINK = 1.6


@dataclass(frozen=True, slots=True)
class _Plan:
    """The masks (N,) bool of one shard: which points may multiply, how, and which go."""

    average: np.ndarray
    large: np.ndarray
    candidates: np.ndarray
    pruned: np.ndarray
    oversize: np.ndarray


class GradientDensity(FixedPoints):
    """Strategy ``default``.

    A point whose averaged screen gradient reaches the threshold is cloned if it is small and replaced by two smaller
    samples of itself if it is large. Where the cap leaves fewer places than there are candidates, those with the
    largest average multiply, ties by the smaller id. Points that are faint or (once past the first reset)
    too large go first and free their places. New ids follow ``next_id`` in the order of the parents' ids; a split
    parent's id is never used again.

    Parameters
    ----------
    settings : DensifySettings
    stop : int
        Edits happen before this step.
    extent : float, world units
    seed : int
    views_per_step : int
        Views B of a unit; their losses are averaged, so gradients are multiplied by B.
    gather : Gather
    split : Split, optional
        How points multiply that are no Gaussians of ``means``, ``quats`` and ``scales``.
    """

    name = "default"

    def __init__(self, settings: DensifySettings, stop: int, extent: float, seed: int, views_per_step: int = 1,
                 gather: Gather = one_rank, split: Split | None = None):
        super().__init__(settings.cap, seed, gather)
        self.split = split or GaussianSplit()
        self.required = ("opacities", *split.split_scales) if split else ("means", "quats", "scales", "opacities")
        self.settings = settings
        self.stop = stop
        self.extent = float(extent)
        self.views_per_step = views_per_step
        self.threshold = settings.absgrad_threshold if settings.absgrad else settings.grad_threshold

    def prepare(self, store: PointStore) -> None:
        """Register ``grad_sum`` and ``count``, (N,) float32."""
        super().prepare(store)
        for name in ("grad_sum", "count"):
            if name not in store.statistics:
                store.statistics[name] = np.zeros(store.n, np.float32)

    def observe(self, store: PointStore, view: View, rows: np.ndarray, v_splats: ArrayTable) -> None:
        """Add the norm of dL/d(means2d) in normalised device coordinates, and one to the count."""
        gradient = v_splats["absgrad" if self.settings.absgrad else "means2d"]
        half = 0.5 * self.views_per_step
        _accumulate(np.ascontiguousarray(rows, np.int64), np.ascontiguousarray(gradient, np.float32),
                    half * view.width, half * view.height, store.statistics["grad_sum"], store.statistics["count"])

    def is_due(self, step: int) -> bool:
        """Tell whether points multiply and go, or opacities are reset, after ``step``."""
        return is_due(step, self.settings, self.stop) or self._is_reset(step)

    def _is_reset(self, step: int) -> bool:
        s = self.settings
        return 0 < step < self.stop and s.reset_every > 0 and step % s.reset_every == 0 and s.prune_opacity > 0

    def edit(self, store: PointStore, step: int) -> EditReport | None:
        """Collective. Densify and prune at their cadence, then reset opacities at theirs."""
        densify, reset = is_due(step, self.settings, self.stop), self._is_reset(step)
        if not (densify or reset):
            return None
        cloned, split, pruned = self._densify(store, step) if densify else (0, 0, 0)
        n_reset = self._reset(store) if reset else 0
        n_points, n_reset = global_sums(self.gather, store.n, n_reset)
        return EditReport(cloned=cloned, split=split, pruned=pruned, reset=n_reset, n_points=n_points)

    def _densify(self, store: PointStore, step: int) -> tuple[int, int, int]:
        """Return how many points were cloned, split and pruned over all ranks."""
        plan = self._plan(store, step)
        place = store.place
        ids, keys, kinds = (self.gather(place.host(x[plan.candidates])) for x in (store.ids, plan.average, plan.large))
        n_total, n_pruned = global_sums(self.gather, store.n, int(plan.pruned.sum()))
        places = self.cap - (n_total - n_pruned) if self.cap else len(ids)
        granted = select_largest(ids, keys, places)
        by_id = np.argsort(ids)
        splits = kinds[by_id][np.searchsorted(ids, granted, sorter=by_id)]

        rows, order = rows_of(store, granted)
        split_rows = rows[splits[order]]
        denied = plan.oversize & plan.candidates
        denied[place.array(rows)] = False
        removed = plan.pruned | denied
        n_denied, = global_sums(self.gather, int(denied.sum()))
        refuse_empty(n_total - n_pruned - n_denied + len(granted), step)

        counts = np.where(splits, SPLIT_CHILDREN, 1)
        first_ids = store.next_id + np.cumsum(counts) - counts
        children, child_ids = self._children(store, rows, splits[order], first_ids[order], step)
        removed[place.array(split_rows)] = True
        if removed.any():
            store.keep(~removed)
        if len(child_ids):
            store.append(children, child_ids)
        store.next_id += int(counts.sum())
        for name in ("grad_sum", "count"):
            store.statistics[name][:] = 0.0
        n_split = int(splits.sum())
        return len(granted) - n_split, n_split, n_pruned + n_denied

    def _plan(self, store: PointStore, step: int) -> _Plan:
        """Judge every point of the shard by its own values."""
        s, values, xp = self.settings, store.values, store.place.xp
        limit = s.prune_scale * self.extent if s.prune_scale and step > s.reset_every else np.inf
        average = store.statistics["grad_sum"] / xp.maximum(store.statistics["count"], np.float32(1))
        scale = self.split.sizes(values)
        large = scale > s.split_scale * self.extent
        # As in the paper's program, multiplied points are pruned with the others: parents of children that would go
        # at once are pruned instead.
        child_scale = xp.where(large, scale / np.float32(SPLIT_SHRINK), scale)
        candidates = (average >= self.threshold) & (values["opacities"] >= s.prune_opacity) & (child_scale <= limit)
        oversize = scale > limit
        pruned = (values["opacities"] < s.prune_opacity) | (oversize & ~candidates)
        return _Plan(average, large, candidates, pruned, oversize)

    def _children(self, store: PointStore, rows: np.ndarray, splits: np.ndarray, first_ids: np.ndarray,
                  step: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return stored values and ids of the children of parents ``rows``, in their order; all on the host."""
        rows_there = store.place.array(rows)
        ids, (own, values) = store.place.host(store.ids[rows_there]), store.read_rows(rows_there)
        counts = np.where(splits, SPLIT_CHILDREN, 1)
        parents = np.repeat(np.arange(len(rows)), counts)
        brood = np.arange(len(parents)) - np.repeat(np.cumsum(counts) - counts, counts)
        raw = {name: x[parents] for name, x in own.items()}
        moved = np.repeat(splits, counts)
        sources = parents[moved]
        draws = normal(self.seed, "densify.split", step, ids[sources], (SPLIT_CHILDREN, self.split.n_split_draws))
        draws = draws[np.arange(len(sources)), brood[moved]].astype(np.float64)
        for name, offsets in self.split.split_offsets(values.take(sources), draws, SPLIT_SHRINK).items():
            raw[name][moved] = (raw[name][moved] + offsets).astype(np.float32)
        for name in self.split.split_scales:
            raw[name][moved] = multiplied(attribute_of(store, name), raw[name][moved], 1.0 / SPLIT_SHRINK)
        return raw, np.repeat(first_ids, counts) + brood

    def _reset(self, store: PointStore) -> int:
        """Bound opacities by twice the pruning threshold and forget their moments; return how many were lowered."""
        bound = stored(attribute_of(store, "opacities"), 2.0 * self.settings.prune_opacity)
        rows = store.place.xp.flatnonzero(store.raw["opacities"] > bound)
        store.write_rows("opacities", rows, bound)
        store.zero_moments(names=("opacities",))
        return len(rows)


@njit(cache=True, nogil=True, error_model="numpy")
def _accumulate(rows, gradient, half_width, half_height, grad_sum, count):
    for i in range(rows.size):
        gx = gradient[i, 0] * half_width
        gy = gradient[i, 1] * half_height
        grad_sum[rows[i]] += np.float32(np.sqrt(gx * gx + gy * gy))
        count[rows[i]] += np.float32(1.0)
