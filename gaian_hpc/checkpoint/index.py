"""What ``scene.h5`` holds besides the virtual arrays: cameras, settings, placement, metrics."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from .. import __version__
from ..arrays import Attribute, Cloud, LearningRate, View
from ..errors import FormatError
from .hdf5 import checked, read_text, read_texts, write_array, write_text, write_texts
from .schema import (
    FIRST_MOMENTS,
    FORMAT_INDEX,
    FORMAT_VERSION,
    IDS,
    POINTS,
    SECOND_MOMENTS,
    STATISTICS,
    Camera,
    CheckpointState,
    RngState,
    ShardRecord,
    check_version,
)

_ACTIVATIONS = ("identity", "exp", "sigmoid")


@dataclass(frozen=True, slots=True)
class Index:
    """The content of ``scene.h5``: the fields of a CheckpointState without its points.

    Attributes
    ----------
    attributes : tuple of Attribute
        As described by the file; their ``init`` cannot be called.
    statistics : tuple of (name, shape per point, dtype)
    """

    step: int
    n_points: int
    next_id: int
    method: str
    method_options: str
    settings: str
    scene_path: str
    scene_fingerprint: str
    cameras: tuple[Camera, ...]
    rng: RngState
    trainer: dict[str, object]
    metrics: tuple[str, ...]
    shards: tuple[ShardRecord, ...]
    attributes: tuple[Attribute, ...]
    statistics: tuple[tuple[str, tuple[int, ...], np.dtype], ...]

    def array_names(self) -> list[str]:
        """Return the paths of all per-point arrays within a shard."""
        stored = [a.stored for a in self.attributes]
        groups = [f"{group}/{name}" for group in (POINTS, FIRST_MOMENTS, SECOND_MOMENTS) for name in stored]
        return [IDS, *groups, *(f"{STATISTICS}/{name}" for name, _, _ in self.statistics)]


def write_index_content(file: h5py.File, state: CheckpointState, shards: tuple[ShardRecord, ...]) -> None:
    """Write everything of the index into an open, empty file."""
    n_points = sum(s.n_points for s in shards)
    file.attrs.update({"format": FORMAT_INDEX, "version": FORMAT_VERSION, "software": f"gaian_hpc {__version__}",
                       "step": state.step, "n_points": n_points, "next_id": state.store.next_id,
                       "n_shards": len(shards)})
    for name, text in (("settings", state.settings), ("method/name", state.method),
                       ("method/options", state.method_options), ("scene/path", state.scene_path),
                       ("scene/fingerprint", state.scene_fingerprint), ("rng/generator", state.rng.generator),
                       ("rng/counters", json.dumps(dict(state.rng.counters), sort_keys=True)),
                       ("trainer", json.dumps(dict(state.trainer), sort_keys=True))):
        write_text(file, name, text)
    file.create_dataset("rng/seed", data=np.int64(state.rng.seed))
    write_texts(file, "metrics", state.metrics)
    _write_cameras(file.create_group("cameras"), state.cameras)
    _write_placement(file.create_group("placement"), shards)
    _write_virtual_arrays(file, state, shards)


def describe_attribute(dataset: h5py.Dataset, order: int, attribute: Attribute) -> None:
    """Attach an attribute's name, unit and activation to the array that stores it."""
    dataset.attrs.update({"order": order, "name": attribute.name, "activation": attribute.activation,
                          "unit": attribute.unit})


def read_index_content(file: h5py.File, path: Path) -> Index:
    """Return the content of an open index, checking its format, version and inner consistency.

    Raises
    ------
    FormatError
        If the file is not an index, is of another version, or contradicts itself.
    """
    if file.attrs.get("format") != FORMAT_INDEX:
        raise FormatError(f"{path}: an HDF5 file, but not a gaian_hpc checkpoint (attribute 'format' is "
                          f"{file.attrs.get('format')!r}, not {FORMAT_INDEX!r}); name a run or a checkpoint in it")
    check_version(path, _plain(file.attrs.get("version")))
    shards = _read_placement(file["placement"])
    n_points = int(file.attrs["n_points"])
    if sum(s.n_points for s in shards) != n_points:
        raise FormatError(f"{path}: shards hold {sum(s.n_points for s in shards)} points, 'n_points' says {n_points}; "
                          f"use an earlier checkpoint")
    return Index(
        step=int(file.attrs["step"]), n_points=n_points, next_id=int(file.attrs["next_id"]),
        method=read_text(file, "method/name"), method_options=read_text(file, "method/options"),
        settings=read_text(file, "settings"), scene_path=read_text(file, "scene/path"),
        scene_fingerprint=read_text(file, "scene/fingerprint"), cameras=_read_cameras(file["cameras"]),
        rng=RngState(int(file["rng/seed"][()]), read_text(file, "rng/generator"),
                     json.loads(read_text(file, "rng/counters"))),
        trainer=json.loads(read_text(file, "trainer")), metrics=tuple(read_texts(file, "metrics")), shards=shards,
        attributes=_read_attributes(file[POINTS], path),
        statistics=tuple((name, tuple(d.shape[1:]), d.dtype) for name, d in file[STATISTICS].items()))


def _plain(value: object) -> object:
    return value.item() if isinstance(value, np.generic) else value


def _write_cameras(group: h5py.Group, cameras: tuple[Camera, ...]) -> None:
    views = [c.view for c in cameras]
    n = len(views)
    columns = {"viewmats": np.array([v.viewmat for v in views], np.float32).reshape(n, 4, 4),
               "Ks": np.array([v.K for v in views], np.float32).reshape(n, 3, 3),
               "width": np.array([v.width for v in views], np.int32),
               "height": np.array([v.height for v in views], np.int32),
               "near": np.array([v.near for v in views], np.float64),
               "far": np.array([v.far for v in views], np.float64),
               "time": np.array([v.time for v in views], np.float64),
               "index": np.array([v.index for v in views], np.int64),
               "is_test": np.array([c.is_test for c in cameras], np.uint8)}
    units = {"viewmats": "world to camera, world units", "Ks": "pixel", "width": "pixel", "height": "pixel",
             "near": "world unit", "far": "world unit"}
    for name, column in columns.items():
        write_array(group, name, column).attrs["unit"] = units.get(name, "1")
    write_texts(group, "names", [v.name for v in views])


def _read_cameras(group: h5py.Group) -> tuple[Camera, ...]:
    columns = {name: checked(group[name])[()] for name in
               ("viewmats", "Ks", "width", "height", "near", "far", "time", "index", "is_test")}
    names = read_texts(group, "names")
    return tuple(
        Camera(View(columns["viewmats"][i], columns["Ks"][i], int(columns["width"][i]), int(columns["height"][i]), name,
                    int(columns["index"][i]), float(columns["near"][i]), float(columns["far"][i]),
                    float(columns["time"][i])), bool(columns["is_test"][i]))
        for i, name in enumerate(names))


def _write_placement(group: h5py.Group, shards: tuple[ShardRecord, ...]) -> None:
    write_texts(group, "files", [s.file for s in shards])
    write_texts(group, "sha256", [s.sha256 for s in shards])
    write_array(group, "owners", np.array([s.owner for s in shards], np.int64))
    write_array(group, "n_points", np.array([s.n_points for s in shards], np.int64))
    write_array(group, "n_bytes", np.array([s.n_bytes for s in shards], np.int64))
    write_array(group, "offsets", np.cumsum([0, *(s.n_points for s in shards)], dtype=np.int64))


def _read_placement(group: h5py.Group) -> tuple[ShardRecord, ...]:
    owners, n_points, n_bytes = (checked(group[name])[()].tolist() for name in ("owners", "n_points", "n_bytes"))
    rows = zip(read_texts(group, "files"), owners, n_points, n_bytes, read_texts(group, "sha256"), strict=True)
    return tuple(ShardRecord(*row) for row in rows)


def _write_virtual_arrays(file: h5py.File, state: CheckpointState, shards: tuple[ShardRecord, ...]) -> None:
    _write_virtual(file, IDS, np.empty((0,), "<i8"), shards, -1)
    for order, a in enumerate(state.store.attributes):
        for group in (POINTS, FIRST_MOMENTS, SECOND_MOMENTS):
            dataset = _write_virtual(file, f"{group}/{a.stored}", np.empty((0, *a.shape), "<f4"), shards, np.nan)
            if group == POINTS:
                describe_attribute(dataset, order, a)
    file.require_group(STATISTICS)
    for name, column in state.store.statistics.items():
        like = column[:0].astype(column.dtype.newbyteorder("<"))
        _write_virtual(file, f"{STATISTICS}/{name}", like, shards, np.nan if like.dtype.kind == "f" else 0)


def _write_virtual(file: h5py.File, name: str, like: np.ndarray, shards: tuple[ShardRecord, ...],
                   fill: float) -> h5py.Dataset:
    """Present the rows of all shards as one array, in shard order; sources are relative, so that folders can move."""
    n_points = sum(s.n_points for s in shards)
    if n_points == 0:
        return file.create_dataset(name, shape=like.shape, dtype=like.dtype)
    # h5py's own virtual datasets carry the second they were made in; equal states are to give equal files
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_obj_track_times(False)
    creation.set_fill_value(np.array(fill, like.dtype))
    space = h5py.h5s.create_simple((n_points, *like.shape[1:]))
    start = 0
    for shard in shards:
        if shard.n_points:
            part = (shard.n_points, *like.shape[1:])
            space.select_hyperslab((start, *(0,) * (len(part) - 1)), part)
            creation.set_virtual(space, shard.file.encode(), name.encode(), h5py.h5s.create_simple(part))
        start += shard.n_points
    space.select_all()
    parents = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    parents.set_create_intermediate_group(True)
    h5py.h5d.create(file.id, name.encode(), h5py.h5t.py_create(like.dtype, logical=True), space, creation, parents)
    return file[name]


def _read_attributes(group: h5py.Group, path: Path) -> tuple[Attribute, ...]:
    datasets = sorted(group.items(), key=lambda item: int(item[1].attrs["order"]))
    for stored, dataset in datasets:
        if dataset.attrs["activation"] not in _ACTIVATIONS:
            raise FormatError(f"{path}: {POINTS}/{stored} has activation {dataset.attrs['activation']!r}, known are "
                              f"{', '.join(_ACTIVATIONS)}; update gaian_hpc")
    return tuple(Attribute(str(d.attrs["name"]), tuple(d.shape[1:]), _no_init, LearningRate(0.0),
                           str(d.attrs["activation"]), stored, unit=str(d.attrs["unit"])) for stored, d in datasets)


def _no_init(cloud: Cloud) -> np.ndarray:
    raise NotImplementedError("attributes read from a checkpoint cannot start new points; pass the method's own")
