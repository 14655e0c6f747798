"""``gaian bench step``: milliseconds of a full training step and of its phases."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import numba
import numpy as np

from gaian_hpc.arrays import Cloud, View
from gaian_hpc.backends.cuda import DeviceTimer
from gaian_hpc.backends.threads import use_threads
from gaian_hpc.data.cache import PictureCache
from gaian_hpc.data.images import Picture
from gaian_hpc.data.sampler import EpochSampler
from gaian_hpc.data.scene import Scene
from gaian_hpc.distributed.world import World, open_world
from gaian_hpc.errors import DataError
from gaian_hpc.points.init import point_spacing
from gaian_hpc.points.store import PointStore
from gaian_hpc.renderers.base import PointRenderer, build_renderer, initial_values, positions
from gaian_hpc.settings import Settings
from gaian_hpc.timing import PhaseTimer, format_phases
from gaian_hpc.training.densify import make_density
from gaian_hpc.training.placer import Placer
from gaian_hpc.training.start import open_scene, resolve_backend, start_points
from gaian_hpc.training.trainer import barrier_executor, make_exchange, make_optimizer

WARM_UP = 3


class ResizedPictures:
    """Decoded pictures at the size of the bench, each resized once."""

    def __init__(self, pictures: PictureCache, views: dict[int, View]):
        self._pictures, self._views = pictures, views
        self._resized: dict[int, Picture] = {}

    def get(self, index: int) -> Picture:
        """Return the picture of a view."""
        if index not in self._resized:
            from PIL import Image

            view = self._views[index]
            image = Image.fromarray(self._pictures.get(index).rgb.transpose(1, 2, 0)).resize((view.width, view.height))
            self._resized[index] = Picture(np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1)))
        return self._resized[index]


def run_bench_step(scene_path: Path | str, settings: Settings, options: Any, *, points: int = 0, width: int = 0,
                   height: int = 0, repeats: int = 20, as_json: bool = False) -> int:
    """Time ``repeats`` steps on ``scene_path`` with a constant number of points; print the medians.

    Parameters
    ----------
    points : int
        Number of points, drawn from those that the first unit's views see and filled up with jittered copies; the
        bench then stays on these views. 0 = the scene's points and all its training views.
    width, height : int, pixels
        Size of the pictures; where one is 0 it follows from the other, or the pictures keep their size.
    """
    with open_world("gaian bench") as world:
        fair_share = world.threads()
        use_threads(settings.threads or fair_share)
        result = time_steps(world, scene_path, settings, options, points, (width, height), repeats)
        if world.is_root:
            print(json.dumps(result) if as_json else report_text(result))
    return 0


def time_steps(world: World, scene_path: Path | str, settings: Settings, options: Any, points: int,
               size: tuple[int, int], repeats: int) -> dict[str, Any]:
    """Collective. Return medians over steps, of the phases over the ranks' means."""
    d, settings = settings.data, resolve_backend(world, settings)
    scene = open_scene(scene_path, d)
    settings = dataclasses.replace(settings, densify=dataclasses.replace(settings.densify, strategy="none"))
    views = {i: resized(scene.views[i], *size) for i in scene.train_idx.tolist()}
    device = None
    if settings.backend == "cuda":
        from gaian_hpc.training.cuda import device_of_rank

        device = device_of_rank(world, deterministic=settings.deterministic)
    renderer = build_renderer(settings.method, options, settings.backend, absgrad=settings.densify.absgrad,
                              device=device)
    store, train_idx = start_points(scene, settings, renderer.attributes), scene.train_idx
    if points:
        train_idx = train_idx[:settings.views_per_step]
        seen = np.unique(np.concatenate([renderer.cull(views[i], store.values) for i in train_idx.tolist()]))
        store = resampled(renderer, store, seen, points, scene, settings.seed)
    n_points, bytes_per_point = store.n, store.bytes_per_point()
    store.keep(np.arange(n_points) % world.size == world.rank)
    exchange = make_exchange(world, renderer, settings, device)
    placer = Placer(exchange, renderer, store, [views[i] for i in train_idx.tolist()], settings)
    placer.place(0, "bench")
    density = make_density(settings.densify, settings.steps, scene.extent, settings.seed)
    optimizer = make_optimizer(renderer, settings, scene.extent, settings.steps, device)
    timer = DeviceTimer(device) if device else PhaseTimer()
    sampler = EpochSampler(train_idx, settings.views_per_step, settings.seed)
    with PictureCache(scene, d.cache_mb << 20, 0) as pictures:
        executor = barrier_executor(device, renderer, store, optimizer, density, ResizedPictures(pictures, views),
                                    settings, timer, exchange, placer.assigner)
        samples, scopes = [], []
        for step in range(1, WARM_UP + repeats + 1):
            unit = [views[i] for i in sampler.unit(step - 1)]
            for view in unit:
                executor.pictures.get(view.index)
            timer.reset()
            world.barrier()
            start = time.perf_counter()
            report, = executor.segment([step], lambda _, unit=unit: unit, lambda: False)
            phases = timer.seconds()  # waits for a GPU
            samples.append([time.perf_counter() - start, *phases.values()])
            scopes.append(report.n_scope)
    table = world.stack(np.array(samples[WARM_UP:]))  # (R, steps, 1 + phases)
    medians = 1e3 * np.median(table.mean(axis=0), axis=0)
    medians[0] = 1e3 * np.median(table[:, :, 0].max(axis=0))
    pairs = exchange.ledger.sent.sum(axis=0)
    view = next(iter(views.values()))
    return {"ms": medians[0], "phases_ms": dict(zip(timer.seconds(), medians[1:].tolist(), strict=True)),
            "n_points": n_points, "n_scope": int(np.median(scopes[WARM_UP:])), "width": view.width,
            "height": view.height, "ranks": world.size, "threads": numba.get_num_threads(),
            "views_per_step": settings.views_per_step, "repeats": repeats, "bytes_per_point": bytes_per_point,
            "bytes_sent": int(world.sum(pairs[1:]).sum()) // (WARM_UP + repeats)}


def report_text(result: dict[str, Any]) -> str:
    """Return the result as a table."""
    ranks = f"{result['ranks']} ranks of " if result["ranks"] > 1 else ""
    return (f"{result['ms']:.1f} ms a step (median of {result['repeats']}), {result['n_points']:,} points of which "
            f"{result['n_scope']:,} in view, {result['width']} x {result['height']}, "
            f"{ranks}{result['threads']} threads, {result['bytes_per_point']} bytes a point\n"
            + format_phases(result["phases_ms"]))


def resized(view: View, width: int, height: int) -> View:
    """Return the view with pictures of another size, K scaled per axis."""
    if not width and not height:
        return view
    width = width or round(height * view.width / view.height)
    height = height or round(width * view.height / view.width)
    K = view.K * np.array([[width / view.width], [height / view.height], [1]], np.float32)
    return dataclasses.replace(view, K=K, width=width, height=height)


def resampled(renderer: PointRenderer, store: PointStore, seen: np.ndarray, n: int, scene: Scene,
              seed: int) -> PointStore:
    """Return ``n`` start points at the rows ``seen``, copies moved by their spacing.

    Raises
    ------
    DataError
        If no point is seen.
    """
    if len(seen) == 0:
        raise DataError(f"{scene.path}: no start point is in view; leave out --points")
    rng = np.random.Generator(np.random.Philox(seed))
    at = positions(renderer, store.values)[seen]
    rows = np.concatenate([rng.permutation(len(seen)) for _ in range(-(-n // len(seen)))])[:n]
    moved, copies = at[rows], np.arange(n) >= len(seen)
    moved[copies] += (point_spacing(at, scene.extent)[rows, None] * rng.standard_normal((n, 3)))[copies]
    cloud = Cloud(moved, np.full((n, 3), 0.5, np.float32), point_spacing(moved, scene.extent), np.arange(n), seed)
    raw = {a.name: initial_values(renderer.name, a, cloud) for a in store.attributes}
    return PointStore(store.attributes, raw, np.arange(n), n)
