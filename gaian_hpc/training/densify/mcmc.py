"""Density control as Markov chain Monte Carlo (Kheradmand et al. 2024, "3D Gaussian Splatting as MCMC")."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from ...arrays import ArrayTable
from ...points.activation import exp64, log64
from ...points.store import PointStore, deactivate
from ...rng import normal, random_bits
from ...settings import DensifySettings
from .base import EditReport, FixedPoints, Gather, global_sums, is_due, one_rank, rows_of
from .geometry import attribute_of, multiplied, rotate, stored

DEFAULT_CAP = 1_000_000
INITIAL_OPACITY = 0.5
INITIAL_SHRINK = 0.1
MAX_COPIES = 51
WEIGHT_ONE = 2.0**24
NOISE = "mcmc.noise"
NOISE_STEEPNESS = 100.0
NOISE_MARGIN = 0.2  # this far above the threshold the noise is scaled by 2e-9, which moves no float32 position


class MarkovDensity(FixedPoints):
    """Strategy ``mcmc``.

    Points at or below the opacity threshold move onto others, drawn in proportion to opacity, and the number of
    points grows by a factor up to the cap; copies share opacity and scale so that the rendered sum stays. Draws use
    integer weights and integer sums in the order of ids: the same whatever the shards. New ids follow ``next_id`` in
    the order of the parents' ids.

    Parameters
    ----------
    settings : DensifySettings
    stop : int
        Edits happen before this step; the position noise does not stop.
    seed : int
    gather : Gather
    """

    required = ("means", "quats", "scales", "opacities")
    name = "mcmc"

    @property
    def moves_all(self) -> bool:
        """Whether faint points move at random after every step, whatever it read."""
        return self.settings.noise_lr > 0

    def __init__(self, settings: DensifySettings, stop: int, seed: int, gather: Gather = one_rank):
        super().__init__(settings.cap or DEFAULT_CAP, seed, gather)
        self.settings = settings
        self.stop = stop

    def initial(self, store: PointStore) -> EditReport | None:
        """Collective. Keep to the cap, then start from opacity 0.5 and a tenth of the scale."""
        report = super().initial(store)
        everything = np.arange(store.n)
        half = stored(attribute_of(store, "opacities"), INITIAL_OPACITY)
        scales = multiplied(attribute_of(store, "scales"), store.raw["scales"], INITIAL_SHRINK)
        store.write_rows("opacities", everything, half)
        store.write_rows("scales", everything, scales)
        return report

    def regularize(self, store: PointStore, rows: np.ndarray, v_rows: ArrayTable, n_total: int) -> None:
        """Add the gradients of the mean opacity and the mean scale of the scene, weighted."""
        for name, weight in (("opacities", self.settings.opacity_reg), ("scales", self.settings.scale_reg)):
            if weight > 0:
                v_rows[name][...] += np.float32(weight / (n_total * attribute_of(store, name).width))

    def after_update(self, store: PointStore, step: int, lr_means: float) -> None:
        """Move faint points at random along their own covariance: Σ · normal · σ(-100 (o - t)) · rate."""
        if lr_means * self.settings.noise_lr == 0:
            return
        values = store.values
        rows = np.flatnonzero(values["opacities"] < self.settings.prune_opacity + NOISE_MARGIN)
        opacity = values["opacities"][rows].astype(np.float64)
        draws = normal(self.seed, NOISE, step, store.ids[rows], (3,)).astype(np.float64)
        draws *= (lr_means * self.settings.noise_lr) * _faintness(opacity, self.settings.prune_opacity)[:, None]
        quats, scales = values["quats"][rows], values["scales"][rows].astype(np.float64)
        local = rotate(quats, draws, inverse=True)
        local[:, :scales.shape[1]] *= scales * scales
        local[:, scales.shape[1]:] = 0.0
        moved = (store.raw["means"][rows] + rotate(quats, local)).astype(np.float32)
        store.write_rows("means", rows, moved)

    def is_due(self, step: int) -> bool:
        """Tell whether points are relocated and added after ``step``."""
        return is_due(step, self.settings, self.stop)

    def edit(self, store: PointStore, step: int) -> EditReport | None:
        """Collective. Relocate dead points, then add points up to the cap."""
        if not is_due(step, self.settings, self.stop):
            return None
        relocated = self._relocate(store, step)
        n_total, = global_sums(self.gather, store.n)
        added = self._add(store, step, n_total)
        return EditReport(relocated=relocated, added=added, n_points=n_total + added)

    def _relocate(self, store: PointStore, step: int) -> int:
        """Move every dead point onto a living one; return how many there were over all ranks."""
        place, dead = store.place, store.values["opacities"] <= self.settings.prune_opacity
        dead_ids = np.sort(self.gather(place.host(store.ids[dead])))
        drawn = self._draw(store, ~dead, len(dead_ids), "mcmc.relocate", step)
        if len(drawn) == 0:
            return 0
        sources, counts = np.unique(drawn, return_counts=True)
        source_rows = self._divide(store, sources, counts)
        source_order = np.argsort(self.gather(place.host(store.ids[source_rows])))
        rows, order = rows_of(store, dead_ids)
        there, raw = place.array(rows), store.read_rows(source_rows)[0]
        for name in store.raw:
            values = self.gather(raw[name])[source_order]
            store.write_rows(name, there, values[np.searchsorted(sources, drawn[order])])
        store.zero_moments(there)
        return len(dead_ids)

    def _add(self, store: PointStore, step: int, n_total: int) -> int:
        """Append copies of points drawn by opacity; return how many over all ranks."""
        n_grown = min(self.cap, int(self.settings.grow_factor * n_total))
        drawn = np.sort(self._draw(store, slice(None), n_grown - n_total, "mcmc.add", step))
        sources, counts = np.unique(drawn, return_counts=True)
        self._divide(store, sources, counts)
        rows, order = rows_of(store, drawn)
        if len(rows):
            store.append(store.read_rows(store.place.array(rows))[0], store.next_id + order)
        store.next_id += len(drawn)
        return len(drawn)

    def _draw(self, store: PointStore, mask: Any, n: int, purpose: str, step: int) -> np.ndarray:
        """Collective. Draw ``n`` ids of masked points, with repeats, in proportion to opacity; none if all are zero."""
        if n <= 0:
            return np.empty(0, np.int64)
        host = store.place.host
        opacities = host(store.values["opacities"][mask]).astype(np.float64)
        ids = self.gather(host(store.ids[mask]))
        weights = self.gather(np.rint(opacities * WEIGHT_ONE).astype(np.int64))
        by_id = np.argsort(ids)
        words = random_bits(self.seed, purpose, step, np.arange(n), 2).astype(np.uint64)
        return sample(ids[by_id], weights[by_id], (words[:, 0] << np.uint64(32)) | words[:, 1])

    def _divide(self, store: PointStore, sources: np.ndarray, counts: np.ndarray) -> Any:
        """Give sources of this shard their part of opacity and scale; return their rows. Moments start anew."""
        found, order = rows_of(store, sources)
        copies = np.minimum(counts[order] + 1, MAX_COPIES)
        rows, host, values = store.place.array(found), store.place.host, store.values
        opacity, factor = share(host(values["opacities"][rows]).astype(np.float64), copies)
        scales = host(values["scales"][rows]).astype(np.float64) * factor[:, None]
        highest = 1.0 - float(np.finfo(np.float32).eps)
        opacity = np.clip(opacity, self.settings.prune_opacity, highest)
        store.write_rows("opacities", rows, deactivate(attribute_of(store, "opacities"), opacity))
        store.write_rows("scales", rows, deactivate(attribute_of(store, "scales"), scales))
        store.zero_moments(rows)
        return rows


def sample(ids: np.ndarray, weights: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return the id that each draw falls on, in proportion to integer weights.

    Parameters
    ----------
    ids : (K,) int64, ascending
    weights : (K,) int64, non-negative, of sum W < 2^63
    draws : (n,) uint64
        Taken modulo W, which prefers no id by more than W / 2^64.

    Returns
    -------
    (n,) int64; empty if all weights are zero
    """
    sums = np.cumsum(weights)
    if len(sums) == 0 or sums[-1] == 0:
        return np.empty(0, np.int64)
    places = (draws % np.uint64(sums[-1])).astype(np.int64)
    return ids[np.searchsorted(sums, places, side="right")]


def share(opacities: np.ndarray, copies: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return opacity and scale factor of each of n equal copies that together render like one point.

    o' = 1 - (1 - o)^(1/n) and scale · o / Σ_{j=1..n} C(n, j) (-1)^(j-1) o'^j / √j: the relocation rule of the paper,
    its inner sum over binomials done.

    Parameters
    ----------
    opacities : (K,) float64 in (0, 1)
    copies : (K,) int64 in [1, 51]

    Returns
    -------
    (K,) float64 opacities, (K,) float64 factors
    """
    out = np.empty_like(opacities), np.empty_like(opacities)
    _share_each(opacities, copies.astype(np.int64), *out)
    return out


@njit(cache=True, nogil=True, error_model="numpy")
def _share_each(opacities, copies, shared, factors):
    for i in range(opacities.size):
        n = copies[i]
        part = 1.0 - exp64(log64(1.0 - opacities[i]) / n)
        term = -1.0
        total = 0.0
        for j in range(1, n + 1):
            term *= -part * (n - j + 1) / j
            total += term / np.sqrt(np.float64(j))
        shared[i] = part
        factors[i] = opacities[i] / total


@njit(cache=True, nogil=True, error_model="numpy")
def _faintness(opacities, threshold):
    out = np.empty_like(opacities)
    for i in range(opacities.size):
        out[i] = 1.0 / (1.0 + exp64(NOISE_STEEPNESS * (opacities[i] - threshold)))
    return out
