"""What a run starts from: its scene and its points."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import logging
from pathlib import Path

import numpy as np

from ..arrays import Attribute
from ..checkpoint.ply import GaussianStart, load_start
from ..checkpoint.reader import rows_of_rank
from ..data.scene import Scene, load_scene
from ..distributed.world import World
from ..errors import BackendError, DataError, ExchangeError, SettingsError
from ..points.init import cloud_from_scene
from ..points.store import PointStore
from ..renderers.base import PointRenderer, initial_values, renderer_class, rows_in_view
from ..schedule.graph import ViewTracks
from ..settings import DataSettings, Settings

log = logging.getLogger(__name__)

# With more points than this, small sets fit their pictures and not the scene: brighton_beach (15 views) at 2,000 steps
# had 16.95 dB on its test views without a bound, 18.56 dB with one of 64 pixels a point and 19.07 dB with about 128.
PIXELS_PER_POINT = 128

SAMPLED_POINTS = 20_000  # that stand for tracks where a scene has none


def resolve_backend(world: World, settings: Settings) -> Settings:
    """Collective. Return settings that name a backend: for ``auto`` cuda, where every rank has a GPU, else cpu."""
    if settings.backend != "auto":
        return settings
    mine = hasattr(renderer_class(settings.method), "on_device") and importlib.util.find_spec("cupy") is not None
    if not all(world.collect(mine)):
        return dataclasses.replace(settings, backend="cpu")
    from .cuda import device_of_rank

    try:
        device_of_rank(world)
    except (BackendError, ExchangeError) as error:  # on all ranks or none
        log.info("backend cpu; %s", str(error).partition("; use --backend")[0])
        return dataclasses.replace(settings, backend="cpu")
    log.info("backend cuda; --backend cpu is the other")
    return dataclasses.replace(settings, backend="cuda")


def open_scene(path: Path | str, data: DataSettings) -> Scene:
    """Load a scene as the data settings say."""
    return load_scene(path, factor=data.factor, max_side=data.max_side, test_every=data.test_every, masks=data.masks,
                      near=data.near)


def require_times(renderer: PointRenderer, scene: Scene) -> None:
    """Refuse a scene whose views have no times for a method whose points change in time.

    Raises
    ------
    DataError
    """
    if getattr(renderer, "needs_time", False) and scene.times is None:
        raise DataError(f"{scene.path}: method {renderer.name!r} needs the time of every view; add times.json (picture "
                        "name to a time from 0 to 1) or the field 'time' to the frames, or train a method without time")


def determined_points(scene: Scene) -> int:
    """Return how many points the training pictures can determine: one per :data:`PIXELS_PER_POINT` pixels."""
    pixels = sum(scene.views[i].width * scene.views[i].height for i in scene.train_idx.tolist())
    return pixels // PIXELS_PER_POINT


def start_points(scene: Scene, settings: Settings, attributes: tuple[Attribute, ...], rank: int = 0,
                 size: int = 1) -> PointStore:
    """Return a rank's even share of the points of a fresh run, whose ids are 0 … N − 1."""
    mode, ply = settings.data.init, None
    if mode not in ("sfm", "random"):
        start = load_start(mode)
        if isinstance(start, GaussianStart):
            return _from_gaussians(start, mode, attributes, rank, size)
        mode, ply = "ply", (start.positions, start.colors)
    cloud = cloud_from_scene(scene, mode, settings.data.n_random, settings.seed, ply)
    n = len(cloud.positions)
    rows = rows_of_rank(n, rank, size)
    mine = dataclasses.replace(cloud, positions=cloud.positions[rows], colors=cloud.colors[rows],
                               spacing=cloud.spacing[rows], ids=cloud.ids[rows])
    raw = {a.name: initial_values(settings.method, a, mine) for a in attributes}
    return PointStore(attributes, raw, mine.ids, n)


def view_tracks(scene: Scene, settings: Settings, renderer: PointRenderer) -> ViewTracks:
    """Return what each training view sees: SfM tracks, or, where there are none, a sample of the start points."""
    if scene.tracks is not None:
        return ViewTracks.of(scene.tracks.track_offsets, scene.tracks.track_view_idx, scene.train_idx)
    points = start_points(scene, settings, renderer.attributes).values
    sample = points.take(np.arange(0, points.n_rows, max(1, points.n_rows // SAMPLED_POINTS)))
    rows = [rows_in_view(renderer, scene.views[i], sample) for i in scene.train_idx.tolist()]
    indptr = np.cumsum([0, *map(len, rows)])
    return ViewTracks(indptr.astype(np.int64), np.concatenate(rows).astype(np.int32), sample.n_rows)


def _from_gaussians(start: GaussianStart, path: str, attributes: tuple[Attribute, ...], rank: int,
                    size: int) -> PointStore:
    """Take Gaussians as they are; SH bands are cut, or filled with zeros, to the method's degree."""
    n, raw = len(start.raw["means"]), {}
    rows = rows_of_rank(n, rank, size)
    for a in attributes:
        if a.name not in start.raw:
            raise SettingsError(f"{path}: Gaussians have no {a.name}, which this method trains; use plain points")
        given = start.raw[a.name][rows]
        if a.name == "scales" and given.shape[1:] != a.shape:
            raise SettingsError(f"{path}: holds Gaussians of {given.shape[1]} scales, the method's points have "
                                f"{a.shape[0]}; use a file of the same method, or plain points")
        raw[a.name] = given
        if a.name == "sh":
            k = a.shape[0]
            raw["sh"] = np.zeros((len(given), k, 3), np.float32)
            kept = min(k, given.shape[1])
            raw["sh"][:, :kept] = given[:, :kept]
    return PointStore(attributes, raw, np.arange(n)[rows], n)


def scene_fingerprint(scene: Scene) -> str:
    """Return a SHA-256 of the views' names, sizes, poses and splits, which identifies what a run was trained on."""
    h = hashlib.sha256()
    for view in scene.views:
        h.update(f"{view.name}\0{view.width}x{view.height}\0{view.time!r}\0".encode())
        h.update(np.ascontiguousarray(view.viewmat, np.float32).tobytes())
        h.update(np.ascontiguousarray(view.K, np.float32).tobytes())
    h.update(np.asarray(scene.train_idx, np.int64).tobytes())
    return h.hexdigest()
