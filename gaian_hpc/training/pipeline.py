"""Steps without barriers: units in flight, each reading a point as soon as all earlier updates of it are done (Odin).

Every rank runs one loop: take in what has arrived, update points whose gradients are complete, publish points that
no earlier unit holds any more, render or differentiate one patch, and so on, the oldest unit first. No rank waits for
another unless it has nothing at all to do. The result is that of :class:`.step.SynchronousExecutor`, bit for bit: a
point is read only when every earlier update of it is done, gradients are summed in the order of patches and views,
and updates of one point happen in the order of units.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..arrays import ArrayTable, View
from ..data.images import PictureCache
from ..distributed.channels import Channels, Message
from ..distributed.codecs import decode, encode, encoded_bytes
from ..distributed.exchange import Exchange, id_form, split
from ..distributed.world import PendingSum, aligned
from ..errors import GaianError
from ..points.store import PointStore
from ..renderers.base import PointRenderer, boxes_of, loss_planes, make_splats, rows_in_view
from ..schedule.scopes import Scopes
from ..settings import Settings
from ..timing import PhaseTimer
from .densify import DensityControl
from .margins import pixel_codec
from .optimizer import Adam
from .owned import OwnedUnit, Wave
from .past import Past
from .pixels import background_color
from .rendered import Outbox, RenderedUnit
from .replica import Publisher, Replica
from .step import StepReport, unit_loss
from .unit import Unit, cull_rows, reach

SPLATS, MARGIN, GRADIENTS = range(3)
PAUSE = 3e-4  # seconds a rank without work leaves its core to others
MARGIN_PIXELS = 8.0  # a pending point is expected within this many pixels of where it was

NO_ROWS = np.empty(0, np.int64)

Predictor = Callable[[Unit], np.ndarray]
"""``predictor(unit) -> (P,) int64`` render ranks, the same on every rank, from what all know before the unit begins."""


@dataclass(slots=True)
class Flight:
    """A unit in flight on this rank; ``seen`` counts the changes of scopes when it last looked for free points."""

    step: int
    unit: Unit
    owned: OwnedUnit
    rendered: RenderedUnit
    receivers: np.ndarray
    n_waves: int = 0
    seen: int = -1
    final: bool = False
    updated: bool = False
    sum: PendingSum | None = None


class PipelinedExecutor:
    """Runs units with up to ``settings.pipeline.units`` of them in flight.

    Parameters
    ----------
    renderer, store, optimizer, density, pictures, settings, timer, exchange
        As for :class:`.step.SynchronousExecutor`.
    channels : Channels
        Between all ranks.
    predictor : Predictor
    """

    def __init__(self, renderer: PointRenderer, store: PointStore, optimizer: Adam, density: DensityControl,
                 pictures: PictureCache, settings: Settings, timer: PhaseTimer, exchange: Exchange, channels: Channels,
                 predictor: Predictor):
        self.renderer, self.store, self.optimizer, self.density = renderer, store, optimizer, density
        self.pictures, self.settings, self.timer, self.exchange = pictures, settings, timer, exchange
        self.channels, self.predictor = channels, predictor
        self.world = exchange.world
        # An update that moves points which the unit did not read leaves nothing for the next unit to run ahead on.
        self._whole = settings.optimizer.kind == "dense" or density.moves_all
        self._depth = 1 if self._whole else settings.pipeline.units
        self._flights: dict[int, Flight] = {}
        self._early: dict[int, list[Message]] = {}
        self.n_total = int(self.world.sum(np.array([store.n]))[0])
        self._n_changes = 0
        self.reads = dict.fromkeys(("accepted", "delayed", "fallback"), 0)
        early = settings.sync == "throughput" and settings.pipeline.validation == "full" and self._depth > 1
        self._past = Past(store, self._depth) if early else None
        # In replicated mode what crosses is points, into replicas of their owners', and not splats.
        self._publisher: Publisher | None = None
        if settings.mode == "replicated" and self.world.size > 1:
            codec = settings.exchange.publish
            self._publisher = Publisher(store, self.world.size, codec)
            self._replicas = [Replica(store.attributes, codec) for _ in range(self.world.size)]
            self._arrived: dict[tuple[int, int, int], tuple[np.ndarray, ArrayTable, int]] = {}

    def segment(self, steps: Sequence[int], unit_of: Callable[[int], Sequence[View]],
                asked_to_stop: Callable[[], bool]) -> Iterator[StepReport]:
        """Collective. Run ``steps``, of which only the first may open with an edit; yield their reports in order.

        All ranks end with the same step: the last one, or, ``settings.pipeline.units`` − 1 steps after the one in
        which a rank was asked to stop. When the iterator ends, nothing is in flight.
        """
        upcoming, last, known = steps[0], steps[-1], steps[0] - 1
        with self.timer.region("density"):
            edit = self.density.edit(self.store, upcoming - 1) if upcoming > 1 else None
        if edit is not None:
            self.n_total = edit.n_points
        if self._publisher is not None and (edit is not None or not self._publisher.is_current):
            self._publisher.refresh()
        self._scopes = Scopes(self.store.n)
        if self._past is not None:
            if len(self._past.magnitude) != self.store.n or edit is not None:
                self._past = Past(self.store, self._depth)
            self._past.begin()
        while self._flights or upcoming <= last:
            while upcoming <= min(last, known + self._depth) and len(self._flights) < self._depth:
                self._admit(upcoming, unit_of(upcoming))
                upcoming += 1
            self._turn(asked_to_stop)
            for step, flight in list(self._flights.items()):
                if step == known + 1 and flight.sum is not None and flight.sum.is_done():
                    known = step
                    if flight.sum.value[-1]:
                        last = min(last, step + self._depth - 1)
            first = next(iter(self._flights.values()), None)
            if first is not None and self._is_finished(first, known):
                yield self._finish(first, edit)
                edit = None
        self._flush()

    def _admit(self, step: int, views: Sequence[View]) -> None:
        """Take a unit into flight and publish what no earlier one holds."""
        unit, renderer = Unit.of(views, self.settings.patch_size), self.renderer.at_step(step)
        with self.timer.region("assign"):
            renders = self.predictor(unit)
        s, rank = self.settings, self.world.rank
        backgrounds = [background_color(s.data.background, s.seed, step, v) for v in views]
        owned = OwnedUnit(unit, renderer, self.store, renderer.gradient_fields, self.timer)
        rendered = RenderedUnit(unit, renders, rank, self.world.size, renderer, backgrounds, self.pictures, s,
                                self.timer, self._outbox(step, renderer))
        flight = Flight(step, unit, owned, rendered, np.unique(renders))
        self._flights[step] = flight
        self._scopes.open(step)
        self._publish(flight)
        for message in self._early.pop(step, []):
            self._take(message)

    def _turn(self, asked_to_stop: Callable[[], bool]) -> None:
        """Do what can be done, the oldest unit first; wait a moment if that is nothing."""
        with self.timer.region("messages"):
            messages = self.channels.pump()
        for message in messages:
            if self._publisher is not None and message.kind == SPLATS:
                # At once, in the order of sending, even if the unit is not in flight here yet.
                key = (message.src, message.unit, message.part)
                self._arrived[key] = self._replicas[message.src].take(message.data)
            self._take(message)
        moved = bool(messages)
        for flight in self._flights.values():
            moved |= self._update(flight)
            moved |= self._publish(flight)
        moved |= any(flight.rendered.work() for flight in self._flights.values())
        if not moved:
            moved = self._update_awaited()
        for flight in self._flights.values():
            if flight.sum is None:
                if not (flight.final and flight.rendered.is_sent):
                    break
                values = np.concatenate([flight.rendered.sums().reshape(-1),
                                         [flight.owned.n_read, float(asked_to_stop())]])
                flight.sum, moved = self.world.begin_sum(values), True
        if not moved:
            with self.timer.region("wait"):
                time.sleep(PAUSE)

    def _take(self, message: Message) -> None:
        """Deliver a message to its unit, or keep it until that is in flight here."""
        flight = self._flights.get(message.unit)
        if flight is None:
            self._early.setdefault(message.unit, []).append(message)
        elif message.kind == SPLATS:
            self._take_splats(flight, message)
        elif message.kind == MARGIN:
            self._take_margin(flight, message)
        else:
            self._take_gradients(flight, message.part, message.data)

    def _publish(self, flight: Flight) -> bool:
        """Publish points: first those that are free at once, then the rest when all are; tell if any were."""
        if flight.final or flight.seen == self._n_changes:
            return False
        flight.seen = self._n_changes
        first, waiting = not flight.n_waves, self._scopes.undecided(flight.step)
        free = waiting if self.settings.pipeline.validation != "full" else self._scopes.free(flight.step)
        if not first and len(free) < len(waiting):
            return False
        early, out = NO_ROWS, NO_ROWS
        if first and self._past is not None:
            early, out = self._delayed(flight)
            free = np.setdiff1d(free, np.concatenate([early, out]), assume_unique=True)
        chosen = np.union1d(free, early)
        with self._past.before(flight.step, early) if len(early) else nullcontext():
            wave = flight.owned.publish(chosen)
            final = len(chosen) + len(out) == len(waiting)
            self._scopes.decide(flight.step, np.union1d(chosen, out), wave.rows)
            self._n_changes += 1
            flight.final = final
            delayed = len(np.intersect1d(wave.rows, early, assume_unique=True))
            self.reads["delayed"] += delayed
            self.reads["accepted" if first else "fallback"] += len(wave.rows) - delayed
            flight.n_waves += 1
            complete = np.ones(len(flight.unit.patches), bool) if final else self._expected_complete(flight)
            if self._publisher is not None:
                self._publisher.change(early)  # what is held elsewhere is not what is sent now
            with self.timer.region("exchange"):
                for dst in flight.receivers.tolist():
                    self._send_wave(flight, wave, dst, final, complete)
            if self._publisher is not None:
                self._publisher.change(early)
        return True

    def _delayed(self, flight: Flight) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows that a unit may read before earlier updates of them, and those it need not look at.

        Both are ascending, and follow from the predicted scopes of the units in its window. Odin's two bounds: the
        share of the unit's points that would be read too early is at most t, and the latest gradient of such a point
        is below t times the mean over the points of the unit that still has to update it. A point that an earlier
        unit updates and this one does not see where it was is left out.
        """
        past, tolerance, renderer = self._past, self.settings.pipeline.tolerance, flight.rendered.renderer
        with past.before(flight.step) as magnitude:
            read = np.unique(np.concatenate([cull_rows(renderer, view, self.store.values, None)
                                             for view in flight.unit.views]))
        past.open(flight.step, read)
        scopes = past.scopes(flight.step)
        held = np.unique(np.concatenate([NO_ROWS, *scopes]))
        early = np.intersect1d(read, held, assume_unique=True)
        if len(early) > tolerance * max(len(read), 1):
            return NO_ROWS, NO_ROWS
        small = np.ones(len(early), bool)
        for scope in scopes:
            latest = magnitude[scope]
            known = np.isfinite(latest)
            bound = tolerance * float(latest[known].mean()) if known.any() else 0.0
            small &= ~np.isin(early, scope, assume_unique=True) | (magnitude[early] < bound)
        return early[small], np.setdiff1d(held, read, assume_unique=True)

    def _expected_complete(self, flight: Flight) -> np.ndarray:
        """Return, for each patch, whether no pending point is expected to reach it, from where they were."""
        if not self.settings.pipeline.render_ahead:
            return np.zeros(len(flight.unit.patches), bool)
        pending = self._scopes.undecided(flight.step)
        points = self.store.values.take(pending)
        renderer, unit = flight.rendered.renderer, flight.unit
        complete = np.empty(len(unit.patches), bool)
        for v, view in enumerate(unit.views):
            numbers = unit.patches_of(v)
            rows = rows_in_view(renderer, view, points)
            splats = make_splats(renderer, view, points, rows)
            _, tiles = reach(_Widened(renderer), view, splats, unit.patches[numbers.start:numbers.stop])
            complete[numbers.start:numbers.stop] = tiles == 0
        return complete

    def _send_wave(self, flight: Flight, wave: Wave, dst: int, final: bool, complete: np.ndarray) -> None:
        patches = np.flatnonzero(flight.rendered.renders == dst)
        own, counts, number = wave.shard.own, wave.shard.counts, flight.n_waves - 1
        if dst == self.world.rank:
            flight.rendered.take_splats(dst, number, final, complete[patches],
                                        [(own.ids[own.rows[p]], own.table.take(own.rows[p])) for p in patches.tolist()])
            return
        if self._publisher is not None:
            self._send_points(flight, wave, dst, final, complete[patches])
            return
        header = np.concatenate([[final], counts[patches], complete[patches]]).astype(np.int64)
        pieces = self.exchange.pack_splats(own, patches, counts, id_form(self.store.next_id))
        self.channels.post(dst, SPLATS, flight.step, number, [header.view(np.uint8), *pieces], "splats")

    def _send_points(self, flight: Flight, wave: Wave, dst: int, final: bool, complete: np.ndarray) -> None:
        """Send the points that ``dst`` reads for its views, as far as it lacks them; it splats them itself."""
        views = [v for v in range(len(flight.unit.views)) if flight.rendered.renders[flight.unit.starts[v]] == dst]
        read = [wave.shard.rows[v] for v in views]
        rows = np.unique(np.concatenate(read))
        header = np.concatenate([[final], complete]).astype(np.uint8)
        masks = [np.packbits(np.isin(rows, r, assume_unique=True)) for r in read] if len(read) > 1 else []
        pieces = [*self._publisher.pack(dst, rows), header, *masks]
        self.channels.post(dst, SPLATS, flight.step, flight.n_waves - 1, pieces, "points")

    def _take_points(self, flight: Flight, message: Message) -> None:
        """Splat the points of a wave for the views that are rendered here, as their owner did."""
        rendered, unit = flight.rendered, flight.unit
        ids, points, at = self._arrived.pop((message.src, message.unit, message.part))
        n_header = 1 + len(rendered.mine)
        header = message.data[at:at + n_header].astype(bool)
        at += aligned(n_header)
        views = np.unique([unit.view_of(p) for p in rendered.mine.tolist()]).tolist()
        parts = []
        for v in views:
            rows = np.arange(len(ids))
            if len(views) > 1:
                n_bytes = -(-len(ids) // 8)
                rows = np.flatnonzero(np.unpackbits(message.data[at:at + n_bytes], count=len(ids)))
                at += aligned(n_bytes)
            with self.timer.region("splat"):
                splats = make_splats(rendered.renderer, unit.views[v], points, rows)
            with self.timer.region("patches"):
                numbers = unit.patches_of(v)
                reached, _ = reach(rendered.renderer, unit.views[v], splats, unit.patches[numbers.start:numbers.stop])
            parts += [(ids[rows[r]], splats.take(r)) for r in reached]
        rendered.take_splats(message.src, message.part, bool(header[0]), header[1:], parts)

    def _take_splats(self, flight: Flight, message: Message) -> None:
        if self._publisher is not None:
            self._take_points(flight, message)
            return
        mine = flight.rendered.mine
        n = 1 + 2 * len(mine)
        header = message.data[:8 * n].view(np.int64)
        with self.timer.region("exchange"):
            parts = self.exchange.unpack_splats(message.data[aligned(8 * n):], header[1:1 + len(mine)],
                                                flight.unit.centers()[mine], id_form(self.store.next_id))
        complete = header[1 + len(mine):].astype(bool)
        flight.rendered.take_splats(message.src, message.part, bool(header[0]), complete, parts)

    def _take_margin(self, flight: Flight, message: Message) -> None:
        stays, has_pixels = message.data[:16].view(np.int64).tolist()
        pixels = None
        if has_pixels:
            codec = pixel_codec(flight.rendered.n_planes, self.settings.exchange.codec)
            n = flight.rendered.n_margin_values(message.part)
            pixels = decode(message.data[16:16 + encoded_bytes(n, codec)], n, (), codec)
        flight.rendered.take_margin(message.part, bool(stays), pixels)

    def _take_gradients(self, flight: Flight, patch: int, data: np.ndarray) -> None:
        counts = np.array(flight.owned.n_splats(patch))
        with self.timer.region("exchange"):
            table = self.exchange.unpack_gradients(data, int(counts.sum()))
        flight.owned.take(patch, split(table, counts))

    def _outbox(self, step: int, renderer: PointRenderer) -> Outbox:
        codec = pixel_codec(loss_planes(renderer), self.settings.exchange.codec)

        def margin(dst: int, patch: int, stays: bool, pixels: np.ndarray | None) -> None:
            header = np.array([stays, pixels is not None], np.int64).view(np.uint8)
            pieces = [header] if pixels is None else [header, encode(pixels, codec)]
            self.channels.post(dst, MARGIN, step, patch, pieces, "pixels")

        def gradients(owner: int, patch: int, parts: list[tuple[np.ndarray, ArrayTable]]) -> None:
            if owner == self.world.rank:
                self._flights[step].owned.take(patch, [table for _, table in parts])
            else:
                self.channels.post(owner, GRADIENTS, step, patch, self.exchange.pack_gradients(parts), "gradients")

        return Outbox(margin, gradients)

    def _update(self, flight: Flight) -> bool:
        """Update the points of each wave whose gradients have all come back; tell if there were any."""
        if self._whole:
            return self._update_whole(flight)
        moved = False
        for wave in flight.owned.waves:
            if not wave.is_done and wave.is_back:
                moved |= self._update_points(flight, wave, ~wave.done)
        return moved

    def _update_awaited(self) -> bool:
        """Update the points that the next unit waits for, once all their gradients are back; tell if there were any.

        An update of few points costs nearly as much as one of many, and a unit publishes what waited all at once:
        so this is done only when that frees it.
        """
        flights = list(self._flights.values())
        for flight, following in pairwise(flights):
            if following.final:
                continue
            awaited = [~w.done & self._scopes.awaited(following.step, w.rows) for w in flight.owned.waves]
            if not flight.final or any((w.left[a] > 0).any() for w, a in zip(flight.owned.waves, awaited, strict=True)):
                return False
            return any([self._update_points(flight, w, a) for w, a in zip(flight.owned.waves, awaited, strict=True)])
        return False

    def _update_points(self, flight: Flight, wave: Wave, chosen: np.ndarray) -> bool:
        """Update the ``chosen`` (U,) bool points of a wave, in unit order; tell if there were any."""
        if self.settings.sync == "throughput" or self.settings.pipeline.validation == "none":
            chosen = chosen.copy()
            chosen[chosen] = self._scopes.settled(flight.step, wave.rows[chosen])
        if not chosen.any():
            return False
        self._apply(flight, wave, chosen)
        return True

    def _update_whole(self, flight: Flight) -> bool:
        """Update all points at once, when all gradients of the unit, alone in flight, have come back."""
        wave = flight.owned.waves[0]
        if flight.updated or wave.left.any():
            return False
        self._apply(flight, wave, np.ones(len(wave.rows), bool))
        flight.updated = True
        return True

    def _apply(self, flight: Flight, wave: Wave, chosen: np.ndarray) -> None:
        """Update the ``chosen`` (U,) bool points of a wave."""
        rows, v_rows = flight.owned.gradients(wave, chosen, self._observe)
        if self._past is not None:
            self._past.keep(flight.step, rows, np.sqrt(sum(np.square(v).reshape(len(rows), -1).sum(axis=1)
                                                           for v in v_rows.values())))
        with self.timer.region("update"):
            self.density.regularize(self.store, rows, v_rows, self.n_total)
            self.optimizer.update(self.store, rows, v_rows, flight.step)
        if self._publisher is not None and not self._whole:
            self._publisher.change(rows)
        wave.done |= chosen
        wave.is_done = bool(wave.done.all())
        self._scopes.update(flight.step, rows)
        self._n_changes += 1

    def _observe(self, view: View, rows: np.ndarray, v_splats: ArrayTable) -> None:
        with self.timer.region("density"):
            self.density.observe(self.store, view, rows, v_splats)

    def _is_finished(self, flight: Flight, known: int) -> bool:
        return (flight.step <= known and flight.final and self._scopes.is_finished(flight.step)
                and (flight.updated or not self._whole))

    def _finish(self, flight: Flight, edit) -> StepReport:
        """Close a unit and return its report."""
        step = flight.step
        with self.timer.region("update"):
            self.density.after_update(self.store, step, self.optimizer.learning_rate("means", step)
                                      if "means" in self.store.raw else 0.0)
        if self._publisher is not None and self._whole:
            self._publisher.refresh()
        del self._flights[step]
        self._scopes.close(step)
        totals = flight.sum.value
        loss, l1, ssim = unit_loss(flight.unit.views, totals[:-2].reshape(-1, 3), self.settings)
        return StepReport(loss, l1, ssim, int(totals[-2]), edit, bool(totals[-1]))

    def _flush(self) -> None:
        """Send what is still queued, so that ranks may wait for each other by other means."""
        while not self.channels.idle:
            if self.channels.pump():
                raise GaianError("a message came after the last unit of its segment; please report this")


class _Widened:
    """A renderer whose footprints are wider: where a point may be after a pending update."""

    def __init__(self, renderer: PointRenderer):
        self._renderer = renderer

    def footprints(self, view: View, splats: ArrayTable) -> np.ndarray:
        boxes = boxes_of(self._renderer, view, splats)
        return boxes + np.float32([-MARGIN_PIXELS, -MARGIN_PIXELS, MARGIN_PIXELS, MARGIN_PIXELS])
