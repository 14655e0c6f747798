"""A training run: from a scene and settings to checkpoints and metrics, resumable at any checkpoint bit for bit."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import logging
import math
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from ..arrays import Attribute, View
from ..checkpoint.folders import list_checkpoints, prune_checkpoints
from ..checkpoint.ply import GaussianStart, load_start
from ..checkpoint.reader import latest_checkpoint, read_checkpoint
from ..checkpoint.schema import Camera, CheckpointState, RngState
from ..checkpoint.writer import write_checkpoint
from ..config import SAVED_NAME, flatten, parse_toml, settings_to_toml
from ..data.cache import PictureCache
from ..data.sampler import EpochSampler
from ..data.scene import Scene, load_scene
from ..errors import GaianError, SettingsError
from ..log import MetricsLog
from ..points.init import cloud_from_scene
from ..points.store import PointStore
from ..renderers.base import PointRenderer, build_renderer
from ..settings import DataSettings, Settings
from ..timing import PhaseTimer
from .densify import make_density
from .optimizer import Adam
from .progress import Progress
from .step import StepReport, SynchronousExecutor

log = logging.getLogger(__name__)

METRICS_NAME = "metrics.jsonl"
TIMINGS_NAME = "timings.jsonl"

# With more points than this, small sets fit their pictures and not the scene: brighton_beach (15 views) at 2,000 steps
# had 16.95 dB on its test views without a bound, 18.56 dB with one of 64 pixels a point and 19.07 dB with about 128.
PIXELS_PER_POINT = 128

# What may change between a run and its continuation: none of it enters the result.
FREE_SETTINGS = frozenset(("steps", "threads", "log_every", "checkpoint.every", "checkpoint.keep",
                           "checkpoint.compress", "data.cache_mb", "data.prefetch"))


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended: the last step, whether it was told to stop before its end, points, and seconds trained."""

    step: int
    stopped: bool
    n_points: int
    seconds: float


class Trainer:
    """One run in one folder.

    Parameters
    ----------
    scene : Scene
    output : Path
        Folder of the run; created if absent.
    settings : Settings
    options : object
        The method's options.
    resume : bool
        Go on from the newest intact checkpoint, if there is one.

    Raises
    ------
    SettingsError
        If the folder holds checkpoints and ``resume`` was not asked for, or they come from other settings or
        another scene.
    """

    def __init__(self, scene: Scene, output: Path, settings: Settings, options: Any, *, resume: bool = False):
        self.scene, self.output, self.settings, self.options = scene, output, settings, options
        self.renderer: PointRenderer = build_renderer(settings.method, options, settings.backend,
                                                      absgrad=settings.densify.absgrad)
        horizon = settings.horizon or settings.steps
        self.optimizer = Adam(self.renderer.attributes, settings.optimizer, scene.extent, horizon,
                              settings.views_per_step)
        self.sampler = EpochSampler(scene.train_idx, settings.views_per_step, settings.seed)
        self.timer = PhaseTimer()
        self.fingerprint = scene_fingerprint(scene)
        self.settings_text = settings_to_toml(settings, options)
        self.resumed = self._find(resume)
        if self.resumed is None:
            self.step = 0
            self.store = start_points(scene, settings, self.renderer.attributes)
            self.cap = settings.densify.cap or max(determined_points(scene), self.store.n)
        else:
            self.step = self.resumed.step
            self.store = self.resumed.store
            self.cap = int(self.resumed.trainer["cap"])
        self.density = make_density(dataclasses.replace(settings.densify, cap=self.cap), horizon, scene.extent,
                                    settings.seed, settings.views_per_step)
        if self.resumed is None:
            self.density.initial(self.store)
        self.density.prepare(self.store)

    def run(self) -> RunResult:
        """Train up to ``settings.steps``, or until SIGTERM, SIGINT or SIGUSR1; a checkpoint is left in any case."""
        settings, started, first = self.settings, time.monotonic(), self.step
        self.output.mkdir(parents=True, exist_ok=True)
        (self.output / SAVED_NAME).write_text(self.settings_text, encoding="utf-8")
        resume_step = self.step if self.resumed is not None else None
        with (PictureCache(self.scene, settings.data.cache_mb << 20, settings.data.prefetch) as pictures,
              MetricsLog(self.output / METRICS_NAME, resume_step) as metrics,
              MetricsLog(self.output / TIMINGS_NAME, resume_step) as timings,
              Progress(settings.steps, first) as progress, stop_on_signals() as stop):
            pictures.schedule(self._schedule(first))
            executor = SynchronousExecutor(self.renderer, self.store, self.optimizer, self.density, pictures, settings,
                                           self.timer)
            saved = first if self.resumed is not None else None
            while self.step < settings.steps and not stop.is_set():
                views = [self.scene.views[i] for i in self.sampler.unit(self.step)]
                self.step += 1
                report = executor.run(self.step, views)
                refuse_divergence(report, self.step, views)
                self._log(report, metrics, timings, time.monotonic() - started)
                progress.update(self.step, report.loss, self.store.n)
                if self.step % settings.checkpoint.every == 0:
                    saved = self.checkpoint()
            if saved != self.step:
                self.checkpoint()
        return RunResult(self.step, self.step < settings.steps, self.store.n, time.monotonic() - started)

    def checkpoint(self) -> int:
        """Write a checkpoint of the present state, drop old ones, and return its step."""
        settings = self.settings
        test = set(self.scene.test_idx.tolist())
        state = CheckpointState(
            step=self.step, settings=self.settings_text, method=settings.method, store=self.store,
            method_options=json.dumps(dataclasses.asdict(self.options)), scene_path=str(self.scene.path.resolve()),
            scene_fingerprint=self.fingerprint,
            cameras=tuple(Camera(v, v.index in test) for v in self.scene.views), rng=RngState(settings.seed),
            trainer={"extent": self.scene.extent, "cap": self.cap},
            metrics=tuple((self.output / METRICS_NAME).read_text(encoding="utf-8").splitlines()))
        write_checkpoint(self.output, state, compress=settings.checkpoint.compress)
        prune_checkpoints(self.output, settings.checkpoint.keep, self.step)
        log.info("step %d of %d: checkpoint written, %s points", self.step, settings.steps, f"{self.store.n:,}")
        return self.step

    def _schedule(self, first: int) -> Iterator[int]:
        return itertools.chain.from_iterable(self.sampler.unit(s) for s in range(first, self.settings.steps))

    def _log(self, report: StepReport, metrics: MetricsLog, timings: MetricsLog, seconds: float) -> None:
        if report.edit is not None:
            edit = {k: v for k, v in dataclasses.asdict(report.edit).items() if v and k != "n_points"}
            metrics.write(self.step, n_points=self.store.n, edit=edit)
        # Not at the last step: a run that is gone on with must leave the lines of one that never stopped.
        if self.step % self.settings.log_every == 0 or self.step == 1:
            metrics.write(self.step, loss=report.loss, l1=report.l1, ssim=report.ssim, n_points=self.store.n,
                          n_scope=report.n_scope)
            timings.write(self.step, seconds=round(seconds, 3),
                          phases={k: round(v, 4) for k, v in self.timer.seconds().items()})

    def _find(self, resume: bool) -> CheckpointState | None:
        if not resume:
            if list_checkpoints(self.output):
                raise SettingsError(f"{self.output} already holds checkpoints of a run; add --resume to go on with it, "
                                    "or choose another -o")
            return None
        path = latest_checkpoint(self.output)
        if path is None:
            return None
        state = read_checkpoint(path, self.renderer.attributes, verify=False)
        if state.method != self.settings.method:
            raise SettingsError(f"{path}: a checkpoint of method {state.method}, not {self.settings.method}; "
                                "resume it with its own method")
        if state.scene_fingerprint != self.fingerprint:
            raise SettingsError(f"{path}: was trained on {state.scene_path}, whose views differ from those of "
                                f"{self.scene.path}; resume it with its own scene and data settings")
        self._check_settings(path, state)
        return state

    def _check_settings(self, path: Path, state: CheckpointState) -> None:
        before, now = (dict(flatten(parse_toml(text, str(path)))) for text in (state.settings, self.settings_text))
        for name in sorted((before.keys() | now.keys()) - FREE_SETTINGS):
            if before.get(name) != now.get(name):
                raise SettingsError(f"{path}: setting {name} was {before.get(name)!r} and is now {now.get(name)!r}; a "
                                    "run goes on with its own settings, so drop the change or start another run")
        if not before.get("horizon") and before.get("steps") != now.get("steps"):
            raise SettingsError(f"{path}: steps was {before.get('steps')} and is now {now.get('steps')}, but horizon 0 "
                                "ties the schedules to it; keep steps, or start another run with a horizon of its own")


def open_scene(path: Path | str, data: DataSettings) -> Scene:
    """Load a scene as the data settings say."""
    return load_scene(path, factor=data.factor, max_side=data.max_side, test_every=data.test_every, masks=data.masks,
                      near=data.near)


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


def determined_points(scene: Scene) -> int:
    """Return how many points the training pictures can determine: one per :data:`PIXELS_PER_POINT` pixels."""
    pixels = sum(scene.views[i].width * scene.views[i].height for i in scene.train_idx.tolist())
    return pixels // PIXELS_PER_POINT


def start_points(scene: Scene, settings: Settings, attributes: tuple[Attribute, ...]) -> PointStore:
    """Return the points of a fresh run, with ids 0 … N − 1."""
    mode, ply = settings.data.init, None
    if mode not in ("sfm", "random"):
        start = load_start(mode)
        if isinstance(start, GaussianStart):
            return _from_gaussians(start, mode, attributes)
        mode, ply = "ply", (start.positions, start.colors)
    cloud = cloud_from_scene(scene, mode, settings.data.n_random, settings.seed, ply)
    n = len(cloud.positions)
    return PointStore(attributes, {a.name: a.init(cloud) for a in attributes}, np.arange(n), n)


def _from_gaussians(start: GaussianStart, path: str, attributes: tuple[Attribute, ...]) -> PointStore:
    """Take Gaussians as they are; SH bands are cut, or filled with zeros, to the method's degree."""
    n, raw = len(start.raw["means"]), {}
    for a in attributes:
        if a.name not in start.raw:
            raise SettingsError(f"{path}: Gaussians have no {a.name}, which this method trains; use plain points")
        raw[a.name] = start.raw[a.name]
        if a.name == "sh":
            k = a.shape[0]
            raw["sh"] = np.zeros((n, k, 3), np.float32)
            kept = min(k, start.raw["sh"].shape[1])
            raw["sh"][:, :kept] = start.raw["sh"][:, :kept]
    return PointStore(attributes, raw, np.arange(n), n)


def scene_fingerprint(scene: Scene) -> str:
    """Return a SHA-256 of the views' names, sizes, poses and splits, which identifies what a run was trained on."""
    h = hashlib.sha256()
    for view in scene.views:
        h.update(f"{view.name}\0{view.width}x{view.height}\0{view.time!r}\0".encode())
        h.update(np.ascontiguousarray(view.viewmat, np.float32).tobytes())
        h.update(np.ascontiguousarray(view.K, np.float32).tobytes())
    h.update(np.asarray(scene.train_idx, np.int64).tobytes())
    return h.hexdigest()


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
