"""A training run: from a scene and settings to checkpoints and metrics, resumable at any checkpoint bit for bit."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import json
import logging
import math
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from ..arrays import View
from ..backends.cuda import Device, DeviceTimer
from ..backends.host import HOST
from ..checkpoint.folders import list_checkpoints, prune_checkpoints
from ..checkpoint.reader import latest_checkpoint, read_checkpoint, rows_of_rank
from ..checkpoint.schema import Camera, CheckpointState, RngState
from ..checkpoint.writer import begin_checkpoint, finish_checkpoint, write_shard
from ..config import SAVED_NAME, flatten, parse_toml, settings_to_toml
from ..data.cache import PictureCache
from ..data.sampler import EpochSampler, StratifiedSampler
from ..data.scene import Scene
from ..distributed.channels import Channels
from ..distributed.codecs import parse_overrides
from ..distributed.exchange import Exchange
from ..distributed.world import World
from ..errors import GaianError, SettingsError
from ..log import write_text
from ..renderers.base import PointRenderer, build_renderer, check_method
from ..schedule.compiled import ScheduleSampler
from ..settings import Settings
from ..timing import PhaseTimer
from .assign import by_view
from .densify import make_density
from .journal import METRICS_NAME, Journal, read_metrics
from .optimizer import Adam
from .pipeline import PipelinedExecutor
from .placer import Placer
from .replicated import ReplicatedExecutor
from .start import determined_points, require_times, scene_fingerprint, start_points, view_tracks
from .step import StepReport, SynchronousExecutor

log = logging.getLogger(__name__)

# What may change between a run and its continuation: none of it enters the result, unless it was asked to lose bits
# (sync = throughput, pipeline.validation).
FREE_SETTINGS = frozenset(("steps", "threads", "log_every", "checkpoint.every", "checkpoint.keep",
                           "checkpoint.compress", "data.cache_mb", "data.prefetch", "exchange.assignment",
                           "exchange.slack", "exchange.host_factor", "exchange.views_in_flight", "exchange.gpu", "sync",
                           "backend",
                           "mode"))
FREE_TABLES = ("placement.", "pipeline.")

# Phases that a rank spends on its own points, and on patches it was given; the rest waits for others.
OWN_PHASES = ("cull", "splat", "patches", "splat_vjp", "gather", "update")
RENDER_PHASES = ("render", "pixels", "loss", "render_vjp")


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended: the last step, whether it was told to stop before its end, points, and seconds trained."""

    step: int
    stopped: bool
    n_points: int
    seconds: float


class Trainer:
    """Collective. One run in one folder; every rank holds a share of the points.

    Parameters
    ----------
    scene : Scene
    output : Path
        Folder of the run; created if absent.
    settings : Settings
    options : object
        The method's options.
    resume : bool
        Go on from the newest intact checkpoint, if there is one; it may be of any number of ranks.
    world : World, optional
        The ranks of the run; one by default.

    Raises
    ------
    SettingsError
        If the folder holds checkpoints and ``resume`` was not asked for, or they come from other settings or
        another scene.
    """

    def __init__(self, scene: Scene, output: Path, settings: Settings, options: Any, *, resume: bool = False,
                 world: World | None = None):
        self.scene, self.output, self.settings, self.options = scene, output, settings, options
        self.world = world or World()
        self.device: Device | None = None
        if settings.exchange.gpu != "auto" and not (settings.backend == "cuda" and self._is_resident):
            log.warning("exchange.gpu is %s, but messages lie on the host: so they do with backend cpu, with --sync "
                        "quality and throughput, and with --mode replicated", settings.exchange.gpu)
        if settings.backend == "cuda":
            from .cuda import device_of_rank

            self.device = device_of_rank(self.world, deterministic=settings.deterministic)
        self.renderer: PointRenderer = build_renderer(settings.method, options, settings.backend,
                                                      absgrad=settings.densify.absgrad, device=self.device)
        with self.world.agreed():
            check_method(self.renderer)
            require_times(self.renderer, scene)
            self.exchange = make_exchange(self.world, self.renderer, settings,
                                          self.device if self._is_on_device else None)
        horizon = settings.horizon or settings.steps
        resident = self.device if self._is_on_device else None
        self.optimizer = make_optimizer(self.renderer, settings, scene.extent, horizon, resident)
        self.timer = DeviceTimer(self.device) if self._is_on_device else PhaseTimer()
        self._seen = (0.0, 0.0)
        self.fingerprint = scene_fingerprint(scene)
        self.settings_text = settings_to_toml(settings, options)
        with self.world.agreed():
            self.resumed = self._find(resume)
            self.store = self.resumed.store if self.resumed else start_points(
                scene, settings, self.renderer.attributes, self.world.rank, self.world.size)
        self.step = self.resumed.step if self.resumed else 0
        n_total = int(self.world.sum(np.array([self.store.n]))[0])
        self.cap = (int(self.resumed.trainer["cap"]) if self.resumed else
                    settings.densify.cap or max(determined_points(scene), n_total))
        self.density = make_density(dataclasses.replace(settings.densify, cap=self.cap), horizon, scene.extent,
                                    settings.seed, settings.views_per_step, self.exchange.gather,
                                    self.renderer if hasattr(self.renderer, "split_offsets") else None)
        if self.resumed is None:
            self._warn_of_hidden_colors()
            self.density.initial(self.store)
        self.density.prepare(self.store)
        self.placer = Placer(self.exchange, self.renderer, self.store, [scene.views[i] for i in scene.train_idx],
                             settings)
        self.placer.place(self.step, "start")
        homes = (self.resumed.trainer if self.resumed else {}).get("homes", self.placer.homes.tolist())
        self.homes = np.array(homes, np.int64)
        self.sampler = make_sampler(scene, settings, self.renderer, self.homes)
        if self.resumed and settings.batches == "scheduled":
            self.sampler.check_record(self.resumed.trainer.get("schedule", {}), str(self.output))

    @property
    def _is_on_device(self) -> bool:
        """Whether points live on a GPU while it trains."""
        return self.device is not None and self._is_resident

    @property
    def _is_resident(self) -> bool:
        """Whether points lie where they are rendered from: with barriers, on one rank or sharded."""
        s = self.settings
        return s.sync == "barrier" and (s.mode == "sharded" or self.world.size == 1)

    def _warn_of_hidden_colors(self) -> None:
        """Collective. Say so if start points come with view-dependent colours that the first steps leave out."""
        degree, sh = getattr(self.renderer.at_step(1), "degree", None), self.store.raw.get("sh")
        if degree is None or sh is None or sh.shape[1] <= (degree + 1) ** 2:
            return
        n_hidden = np.count_nonzero(sh[:, (degree + 1) ** 2:].any(axis=(1, 2)))
        if self.world.sum(np.array([n_hidden]))[0] and self.world.is_root:
            log.warning("the colours of %s depend on the direction of view, and training begins with degree %d; add "
                        "--renderer.sh_every 0 to keep them from the start", self.settings.data.init, degree)

    def run(self) -> RunResult:
        """Train up to ``settings.steps``, or until SIGTERM, SIGINT or SIGUSR1; a checkpoint is left in any case."""
        settings, started, first = self.settings, time.monotonic(), self.step
        with self.world.agreed():
            if self.world.is_root:
                self.output.mkdir(parents=True, exist_ok=True)
                write_text(self.output / SAVED_NAME, self.settings_text)
        with ExitStack() as stack:
            stop = stack.enter_context(stop_on_signals())
            pictures = stack.enter_context(PictureCache(self.scene, settings.data.cache_mb << 20,
                                                        settings.data.prefetch))
            journal = stack.enter_context(Journal(self, started))
            pictures.schedule(self._schedule(first))
            executor = self._executor(pictures, stack)
            saved = first if self.resumed is not None else None
            stopped = False
            while self.step < settings.steps and not stopped:
                for report in executor.segment(self._segment(), self._unit, stop.is_set):
                    self.step += 1
                    stopped |= report.stop
                    refuse_divergence(report, self.step, self._unit(self.step))
                    journal.write(report, executor.n_total)
                journal.write_ranks(executor.reads)
                self._rebalance()
                if self.step % settings.checkpoint.every == 0:
                    saved = self.checkpoint()
            if saved != self.step:
                self.checkpoint()
        return RunResult(self.step, self.step < settings.steps, executor.n_total, time.monotonic() - started)

    def _executor(self, pictures: PictureCache, stack: ExitStack) -> SynchronousExecutor | PipelinedExecutor:
        """Return what runs units, as ``settings.sync`` says; ``stack`` closes what it opens."""
        parts = (self.renderer, self.store, self.optimizer, self.density, pictures, self.settings, self.timer,
                 self.exchange)
        replicated, size, n_views = self.settings.mode == "replicated", self.world.size, self.settings.views_per_step
        if replicated and n_views < size:
            log.warning("%d of %d ranks render nothing: replicated mode deals out whole views, and a step has %d; "
                        "raise --views_per_step", size - n_views, size, n_views)
        if self.settings.sync == "barrier":
            if replicated and size > 1:
                return ReplicatedExecutor(*parts)
            return barrier_executor(self.device if self._is_on_device else None, *parts, self.placer.assigner)
        ring = (self.settings.pipeline.window_mb << 20) // self.world.size
        channels = stack.enter_context(Channels(self.world, ring, self.exchange.ledger,
                                                self.settings.pipeline.progress))
        log.info("windows of %.0f MiB a rank, %d units in flight", channels.window_bytes / 2**20,
                 self.settings.pipeline.units)
        predictor = (lambda unit: by_view(unit, size)) if replicated else self.placer.predict
        return PipelinedExecutor(*parts, channels, predictor)

    def _unit(self, step: int) -> list[View]:
        """Return the views of a step, counted from 1."""
        return [self.scene.views[i] for i in self.sampler.unit(step - 1)]

    def _segment(self) -> range:
        """Return the steps up to the next after which all ranks have to meet."""
        s = self.settings
        for last in range(self.step + 1, s.steps + 1):
            meets = (last % s.checkpoint.every == 0 or self.density.is_due(last)
                     or (self.world.size > 1 and last % s.placement.check_every == 0)
                     or (s.sync == "barrier" and not self._is_on_device and (last % s.log_every == 0 or last == 1)))
            if meets:
                break
        return range(self.step + 1, last + 1)

    def checkpoint(self) -> int:
        """Collective. Write a checkpoint of the present state, drop old ones, and return its step."""
        self.store.move(HOST)
        settings, world, state = self.settings, self.world, self._state()
        with world.agreed():
            if world.is_root:
                begin_checkpoint(self.output, state.step)
        with world.agreed():
            record = write_shard(self.output, state, world.rank, compress=settings.checkpoint.compress)
        records = world.collect(record)
        with world.agreed():
            if world.is_root:
                finish_checkpoint(self.output, state, records)
                prune_checkpoints(self.output, settings.checkpoint.keep, self.step)
        log.info("step %d of %d: checkpoint written, %s points", self.step, settings.steps,
                 f"{sum(r.n_points for r in records):,}")
        return self.step

    def _state(self) -> CheckpointState:
        test = set(self.scene.test_idx.tolist())
        used = sorted(test | set(self.scene.train_idx.tolist()))
        return CheckpointState(
            step=self.step, settings=self.settings_text, method=self.settings.method, store=self.store,
            method_options=json.dumps(dataclasses.asdict(self.options)), scene_path=str(self.scene.path.resolve()),
            scene_fingerprint=self.fingerprint,
            cameras=tuple(Camera(self.scene.views[i], i in test) for i in used), rng=RngState(self.settings.seed),
            trainer={"extent": self.scene.extent, "cap": self.cap} | self._order(),
            metrics=read_metrics(self.output / METRICS_NAME) if self.world.is_root else ())

    def _order(self) -> dict[str, object]:
        """Return what the order of views depends on besides the settings."""
        if self.settings.batches == "scheduled":
            return {"schedule": self.sampler.record()}
        return {"homes": self.homes.tolist()} if self.settings.batches == "stratified" else {}

    def _rebalance(self) -> None:
        """Let the placer look at what ranks took since its last look."""
        if self.world.size > 1 and self.step % self.settings.placement.check_every == 0:
            seconds = self.timer.seconds()
            own, render = (sum(seconds.get(name, 0.0) for name in names) for names in (OWN_PHASES, RENDER_PHASES))
            self.placer.check(self.step, own - self._seen[0], render - self._seen[1])
            self._seen = (own, render)

    def _schedule(self, first: int) -> Iterator[int]:
        """Yield the views to come whose pictures this rank is likely to need: where most of a patch's points live."""
        place = {view: i for i, view in enumerate(self.scene.train_idx.tolist())}
        views = itertools.chain.from_iterable(self.sampler.unit(s) for s in range(first, self.settings.steps))
        return (v for v in views if self.placer.renders_here[place[v]])

    def _find(self, resume: bool) -> CheckpointState | None:
        path = self.world.broadcast(self._newest(resume) if self.world.is_root else None)
        if isinstance(path, GaianError):
            raise path
        if path is None:
            return None
        head = read_checkpoint(path, rows=slice(0, 0), verify=False)
        if head.method != self.settings.method:
            raise SettingsError(f"{path}: a checkpoint of method {head.method!r}, not {self.settings.method!r}; "
                                "resume it with its own method")
        rows = rows_of_rank(head.n_total, self.world.rank, self.world.size)
        state = read_checkpoint(path, self.renderer.attributes, rows, verify=False)
        if state.scene_fingerprint != self.fingerprint:
            raise SettingsError(f"{path}: was trained on {state.scene_path}, whose views differ from those of "
                                f"{self.scene.path}; resume it with its own scene and data settings")
        self._check_settings(path, state)
        return state

    def _newest(self, resume: bool) -> Path | GaianError | None:
        """Return the checkpoint to go on from, or the error to raise on all ranks; for the root."""
        try:
            if not resume and list_checkpoints(self.output):
                raise SettingsError(f"{self.output} already holds checkpoints of a run; add --resume to go on with it, "
                                    "or choose another -o")
            return latest_checkpoint(self.output) if resume else None
        except GaianError as error:
            return error

    def _check_settings(self, path: Path, state: CheckpointState) -> None:
        before, now = (dict(flatten(parse_toml(text, str(path)))) for text in (state.settings, self.settings_text))
        bound = {"pipeline.units"} if self.settings.batches == "scheduled" else set()  # the order follows from it
        for name in sorted((before.keys() | now.keys()) - FREE_SETTINGS):
            if (name in bound or not name.startswith(FREE_TABLES)) and before.get(name, now.get(name)) != now.get(name):
                raise SettingsError(f"{path}: setting {name} was {before.get(name)!r} and is now {now.get(name)!r}; a "
                                    "run goes on with its own settings, so drop the change or start another run")
        if (was := before.get("backend")) in ("cpu", "cuda") and was != self.settings.backend:
            log.warning("the run goes on with backend %s, after %s: its last bits differ from those of a run that "
                        "stayed", self.settings.backend, was)
        if not before.get("horizon") and before.get("steps") != now.get("steps"):
            raise SettingsError(f"{path}: steps was {before.get('steps')} and is now {now.get('steps')}, but horizon 0 "
                                "ties the schedules to it; keep steps, or start another run with a horizon of its own")


def make_exchange(world: World, renderer: PointRenderer, settings: Settings, device: Device | None = None) -> Exchange:
    """Return the exchange of a run as its settings say, of tables on ``device`` if one is given.

    Raises
    ------
    SettingsError
        If ``exchange.fields`` names a field that the method does not have.
    """
    overrides = parse_overrides(settings.exchange.fields)
    known = sorted({f.name for f in (*renderer.splat_fields, *renderer.gradient_fields)})
    for name in overrides:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise SettingsError(f"setting exchange.fields names {name!r}, which {settings.method} does not send; {hint}"
                                f"it sends {', '.join(known)}")
    parts = (world, renderer.splat_fields, renderer.gradient_fields, settings.exchange.codec, overrides)
    if device is None:
        return Exchange(*parts)
    from ..distributed.device import DeviceExchange

    return DeviceExchange(device, settings.exchange.gpu, *parts)


def make_optimizer(renderer: PointRenderer, settings: Settings, extent: float, horizon: int,
                   device: Device | None = None) -> Adam:
    """Return the optimizer of a run, of points on ``device`` if one is given."""
    parts = (renderer.attributes, settings.optimizer, extent, horizon, settings.views_per_step)
    if device is None:
        return Adam(*parts)
    from .cuda import DeviceAdam

    return DeviceAdam(device, *parts)


def barrier_executor(device: Device | None, *parts: Any) -> SynchronousExecutor:
    """Return what runs units one after the other, its points on ``device`` if one is given."""
    if device is None:
        return SynchronousExecutor(*parts)
    from .cuda import DeviceExecutor

    return DeviceExecutor(device, *parts)


def make_sampler(scene: Scene, settings: Settings, renderer: PointRenderer, homes: np.ndarray) -> EpochSampler:
    """Return the order of views; ``homes`` (V,) is the rank that each training view lies in."""
    if settings.batches == "scheduled":
        return ScheduleSampler(scene.train_idx, settings.views_per_step, settings.seed,
                               view_tracks(scene, settings, renderer), settings.pipeline.units)
    if settings.batches == "stratified":
        return StratifiedSampler(scene.train_idx, settings.views_per_step, settings.seed, homes)
    return EpochSampler(scene.train_idx, settings.views_per_step, settings.seed)


def refuse_divergence(report: StepReport, step: int, views: Sequence[View]) -> None:
    """Raise if the loss of a step is not finite, since no later step mends its points.

    Raises
    ------
    GaianError
        Naming the step and its views.
    """
    if not math.isfinite(report.loss):
        names = ", ".join(view.name for view in views[:3]) + (" …" if len(views) > 3 else "")
        raise GaianError(f"step {step}: the loss of {names} is {report.loss}; check the start points for huge values, "
                         "or lower --optimizer.lr_scale (checkpoints written before this step are sound)")


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Set the event on SIGTERM, SIGINT or SIGUSR1, so that the step in hand ends and a checkpoint is written.

    A second SIGINT interrupts at once. Outside of the main thread signals are left alone.
    """
    stop = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {n: signal.signal(n, ask) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
