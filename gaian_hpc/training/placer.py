"""Where points live while a run goes on: placed by a profile of who reads them, placed anew when that has changed."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from ..arrays import View
from ..assignment.solve import assign
from ..backends.host import HOST
from ..backends.memory import free_memory
from ..distributed.exchange import Exchange, Plan
from ..distributed.migrate import migrate
from ..placement.partition import partition, relabel
from ..placement.profile import Profile, count_access, merge, row_starts
from ..placement.report import homes
from ..points.cells import cell_bounds, cell_of, morton_codes
from ..points.store import PointStore
from ..renderers.base import PointRenderer, positions
from ..settings import Settings
from .assign import render_work
from .unit import Unit

log = logging.getLogger(__name__)

SAMPLES = 65536  # codes, over all ranks, that the bounds of cells are chosen from
CELLS_PER_RANK = 64
SMOOTHING = 0.9  # of the running means of what steps measure
TILES_PER_SPLAT = 6  # tiles of a splat within a patch, where only splats are counted: 311,000 of 50,000 points
SETTLED = 20  # steps after a placement whose mean is what later steps are held against
SPARE_MEMORY = 0.5  # share of a host's free memory for points; splats, pictures and edits need the rest


class Placer:
    """Owns the decision which rank owns which points, and which renders which patch.

    Parameters
    ----------
    exchange : Exchange
    renderer : PointRenderer
    store : PointStore
        This rank's points; moved in place.
    views : sequence of View
        Training views.
    settings : Settings
    """

    def __init__(self, exchange: Exchange, renderer: PointRenderer, store: PointStore, views: Sequence[View],
                 settings: Settings):
        self.exchange, self.renderer, self.store, self.views = exchange, renderer, store, views
        self.settings = settings
        self.world = exchange.world
        self.shares = np.full(self.world.size, 1 / self.world.size)
        self.speeds = np.ones(self.world.size)
        # With a lossy codec it matters who sends what to whom, so nothing may follow from the clock.
        self._timed = settings.exchange.codec == settings.exchange.publish == "fp32" and not settings.exchange.fields
        self.homes = np.zeros(len(views), np.int64)
        self.renders_here = np.ones(len(views), bool)
        self._places = {view.index: i for i, view in enumerate(views)}
        self._forget()

    def assigner(self, unit: Unit, counts: np.ndarray, tiles: np.ndarray) -> np.ndarray:
        """Return the render rank of each patch of a unit; see :data:`training.step.Assigner`."""
        if self.world.size == 1:
            return np.zeros(len(unit.patches), np.int64)
        renders = self._assigned(unit, counts, tiles)
        self._observe(Plan(counts, renders))
        return renders

    def _assigned(self, unit: Unit, counts: np.ndarray, tiles: np.ndarray) -> np.ndarray:
        s = self.settings.exchange
        return assign(counts, render_work(unit, tiles), self.world.hosts, method=s.assignment, slack=s.slack,
                      speeds=self.speeds, host_factor=s.host_factor)

    def predict(self, unit: Unit) -> np.ndarray:
        """Return the render rank of each patch of a unit as the last profile foresees it, the same on every rank."""
        if self.world.size == 1:
            return np.zeros(len(unit.patches), np.int64)
        places = np.concatenate([self._patches_of(view) for view in unit.views])
        counts = np.ascontiguousarray(self._foreseen[:, places])
        return self._assigned(unit, counts, counts.sum(axis=0) * TILES_PER_SPLAT)

    def _patches_of(self, view: View) -> np.ndarray:
        """Return the profile's patches of a training view."""
        first = self._first_patch[self._places[view.index]]
        return np.arange(first, self._first_patch[self._places[view.index] + 1])

    def place(self, step: int, reason: str) -> None:
        """Collective. Profile all points, partition them, and move each to its owner."""
        if self.world.size == 1:
            return
        self.store.move(HOST)
        s, world = self.settings.placement, self.world
        n_total = int(world.sum(np.array([self.store.n]))[0])
        cells, n_cells = self._cells(n_total)
        profile = self._profile(step, cells, n_cells, n_total)
        before = self._majority(cells, n_cells)
        owners = None
        if world.is_root:
            new = partition(profile, world.hosts, method=s.method, work_share=s.work_share,
                            points_slack=s.points_slack, seed=self.settings.seed, targets=self.shares)
            owners = relabel(new, before, profile.cell_sizes, world.hosts, self.shares)
        owners = world.broadcast(owners)
        moved = migrate(self.exchange, self.store, owners[cells])
        self._foresee(profile, owners)
        self._forget()
        n = world.stack(np.array([self.store.n]))[:, 0]
        log.info("step %d: points placed on %d ranks (%s): %s of %s moved, %s to %s on a rank", step, world.size,
                 reason, f"{moved:,}", f"{n.sum():,}", f"{n.min():,}", f"{n.max():,}")

    def check(self, step: int, own_seconds: float, render_seconds: float) -> None:
        """Collective. Place points anew if what was measured since the last placement says so.

        Parameters
        ----------
        step : int
            Step just done.
        own_seconds, render_seconds : float
            This rank's time, since the last look, for its own points' work and for rendering.
        """
        s = self.settings.placement
        if self.world.size == 1 or step % s.check_every:
            return
        free = s.memory_mb << 20 or int(free_memory() * SPARE_MEMORY) // self.world.local_size
        mine = np.array([self.store.n, own_seconds, render_seconds, free], np.float64)
        n, own, render, memory = self.world.stack(mine).T
        if self._timed:
            self._measure_speeds(render)
        fullness = n.max() / max(n.mean(), 1)
        if self._reference is None:
            return
        share, fullest = self._reference
        if self._remote > s.drift * share + 0.02:
            self.place(step, f"{self._remote:.0%} of splats cross ranks, {share:.0%} when last placed")
        elif fullness > s.drift * fullest:
            self.place(step, f"the fullest rank holds {fullness:.2f} times the mean")
        elif self._timed and s.rebalance and own.max() > s.rebalance * own.mean():
            self._n_slow += 1
            if self._n_slow > 1:  # twice in a row: a single look may have met a busy moment of the machine
                self._rebalance(step, n, own, memory)
        else:
            self._n_slow = 0

    def _rebalance(self, step: int, n: np.ndarray, own: np.ndarray, memory: np.ndarray) -> None:
        """Aim at shares with which all ranks take equally long, within their memory."""
        rate = np.maximum(n, 1) / np.maximum(own, 1e-9)
        wanted = 0.5 * self.shares + 0.5 * rate / rate.sum()  # half the way: a single measurement is noisy
        most = memory / max(self.store.bytes_per_point() * n.sum(), 1)
        wanted = np.minimum(wanted, np.maximum(most, n / n.sum()))
        wanted /= wanted.sum()
        if np.abs(wanted / self.shares - 1).max() < 0.05:
            return
        self.shares = wanted
        slow = int(np.argmax(own))
        self.place(step, f"rank {slow} took {own[slow] / own.mean():.2f} times the mean for its points")

    def _measure_speeds(self, render: np.ndarray) -> None:
        """Follow how fast each rank renders, from the work it was given and the time it took."""
        if self._work.sum() > 0 and (self._work > 0).all() and (render > 0).all():
            rate = self._work / render
            self.speeds = SMOOTHING * self.speeds + (1 - SMOOTHING) * rate / rate.mean()
        self._work[:] = 0

    def _observe(self, plan: Plan) -> None:
        """Follow the share of splats that cross ranks."""
        pairs = plan.pairs()
        total = int(pairs.sum())
        remote = 1 - float(np.trace(pairs)) / total if total else 0.0
        self._n_seen += 1
        weight = max(1 / self._n_seen, 1 - SMOOTHING)
        self._remote += weight * (remote - self._remote)
        self._work += pairs.sum(axis=0)
        if self._n_seen == SETTLED:
            n = self.world.stack(np.array([self.store.n]))[:, 0]
            self._reference = (self._remote, n.max() / max(n.mean(), 1))

    def _forget(self) -> None:
        """Start to measure anew."""
        self._n_seen, self._n_slow, self._remote = 0, 0, 0.0
        self._reference: tuple[float, float] | None = None
        self._work = np.zeros(self.world.size)

    def _cells(self, n_total: int) -> tuple[np.ndarray, int]:
        """Collective. Return the Morton cell of each point of this rank, and the number of cells."""
        means, s = positions(self.renderer, self.store.values), self.settings.placement
        inside = means[np.isfinite(means).all(axis=1)]
        edge = np.full(3, np.inf, np.float32)
        box = self.world.stack(np.stack([inside.min(axis=0, initial=np.inf) if len(inside) else edge,
                                         inside.max(axis=0, initial=-np.inf) if len(inside) else -edge]))
        codes = morton_codes(means, box[:, 0].min(axis=0), box[:, 1].max(axis=0))
        every = max(1, n_total // SAMPLES)
        samples = np.sort(self.exchange.gather(np.sort(codes)[every // 2::every]))
        bounds = cell_bounds(samples, max(n_total // s.cell_points, CELLS_PER_RANK * self.world.size))
        return cell_of(codes, bounds), len(bounds) + 1

    def _profile(self, step: int, cells: np.ndarray, n_cells: int, n_total: int) -> Profile:
        """Collective. Return which patches of the training views read which cells, over all ranks."""
        every = max(1, n_total // self.settings.placement.profile_points)
        own = count_access(self.renderer.at_step(max(step, 1)), self.store.values, cells, n_cells, self.views,
                           self.settings.patch_size, every)
        # As arrays, which may be large, and whose bytes are counted.
        entries = np.stack([own.patch_of_entry(), own.cells.astype(np.int64), own.counts], axis=1)
        lengths = self.exchange.stack("points", np.array([len(entries)]))[:, 0]
        parts = np.split(self.exchange.gather(entries), np.cumsum(lengths)[:-1])
        sizes = self.exchange.stack("points", own.cell_sizes)
        centers = self.exchange.stack("points", own.cell_centers)
        return merge([Profile(s, c, row_starts(part[:, 0], own.n_patches), part[:, 1].astype(np.int32), part[:, 2],
                              own.patch_view, own.pixels) for s, c, part in zip(sizes, centers, parts, strict=True)])

    def _majority(self, cells: np.ndarray, n_cells: int) -> np.ndarray:
        """Collective. Return the rank that holds most points of each cell."""
        held = self.world.stack(np.bincount(cells, minlength=n_cells))
        return held.argmax(axis=0)

    def _foresee(self, profile: Profile, owners: np.ndarray) -> None:
        """Find the rank that holds most of what each training view reads, and the views this rank may render."""
        counts = profile.owned(owners, self.world.size)  # (R, P)
        self._foreseen = counts
        self._first_patch = np.searchsorted(profile.patch_view, np.arange(len(self.views) + 1))
        self.homes = homes(profile, owners, self.world.size)
        self.renders_here = np.zeros(len(self.views), bool)
        self.renders_here[profile.patch_view[counts.argmax(axis=0) == self.world.rank]] = True
