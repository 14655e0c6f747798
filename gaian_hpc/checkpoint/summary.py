"""What ``gaian inspect`` prints: a summary of a checkpoint, and the digest that identifies its points and optimizer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..points.store import PointStore
from .reader import CheckpointFiles, open_checkpoint
from .schema import FIRST_MOMENTS, FORMAT_VERSION, IDS, POINTS, SECOND_MOMENTS, STATISTICS

DIGEST_HEADER = "gaian_hpc digest 1\n"
METRICS_TAIL = 3


@dataclass(frozen=True, slots=True)
class ColumnSummary:
    """One per-point array; minimum, mean and maximum are over its finite values (None where there are none)."""

    name: str
    shape: tuple[int, ...]
    unit: str
    minimum: float | None
    mean: float | None
    maximum: float | None
    n_nonfinite: int


@dataclass(frozen=True, slots=True)
class CheckpointSummary:
    """The content of a checkpoint at a glance.

    Attributes
    ----------
    bytes_per_point : float
        Of the arrays, before compression.
    file_bytes : int
        Of all shards on the disk.
    settings, method_options : str
        As stored.
    metrics_tail : tuple of str
        The last JSON lines logged.
    """

    path: str
    format_version: int
    step: int
    method: str
    method_options: str
    n_points: int
    next_id: int
    bytes_per_point: float
    n_shards: int
    points_per_shard: tuple[int, ...]
    file_bytes: int
    n_views: int
    n_test_views: int
    scene_path: str
    scene_fingerprint: str
    seed: int
    columns: tuple[ColumnSummary, ...]
    settings: str
    metrics_tail: tuple[str, ...]


def summarize(path: Path | str) -> CheckpointSummary:
    """Return the summary of a checkpoint (run, folder or ``scene.h5``), reading its arrays in bounded memory.

    Raises
    ------
    DataError, FormatError
        As :func:`gaian_hpc.checkpoint.reader.read_checkpoint`.
    """
    with open_checkpoint(path) as files:
        index = files.index
        return CheckpointSummary(
            path=str(files.path), format_version=FORMAT_VERSION, step=index.step, method=index.method,
            method_options=index.method_options, n_points=index.n_points, next_id=index.next_id,
            bytes_per_point=_bytes_per_point(files), n_shards=len(index.shards),
            points_per_shard=tuple(s.n_points for s in index.shards), file_bytes=sum(s.n_bytes for s in index.shards),
            n_views=len(index.cameras), n_test_views=sum(c.is_test for c in index.cameras),
            scene_path=index.scene_path, scene_fingerprint=index.scene_fingerprint, seed=index.rng.seed,
            columns=_columns(files), settings=index.settings, metrics_tail=index.metrics[-METRICS_TAIL:])


def digest(path: Path | str) -> str:
    """Return the digest of a checkpoint's points and optimizer state, whatever its shards; see FORMAT.md.

    Raises
    ------
    DataError, FormatError
        As :func:`gaian_hpc.checkpoint.reader.read_checkpoint`.
    """
    with open_checkpoint(path) as files:
        names = [name for name in files.index.array_names() if not name.startswith(STATISTICS)]
        shapes = {name: files.shards[0][name].shape[1:] for name in names}
        return _digest(shapes, ({name: files.read(name, block) for name in names} for block in files.blocks()))


def digest_of_store(store: PointStore) -> str:
    """Return the digest that a checkpoint of ``store``, holding the whole scene, would have."""
    arrays = {IDS: store.ids}
    for a in store.attributes:
        arrays |= {f"{POINTS}/{a.stored}": store.raw[a.name],
                   f"{FIRST_MOMENTS}/{a.stored}": store.first_moments[a.name],
                   f"{SECOND_MOMENTS}/{a.stored}": store.second_moments[a.name]}
    return _digest({name: x.shape[1:] for name, x in arrays.items()}, [arrays])


def _digest(shapes: Mapping[str, tuple[int, ...]], blocks: Iterable[Mapping[str, np.ndarray]]) -> str:
    """Hash every array by itself in one pass, then the table of names, types, shapes and hashes."""
    hashes = {name: hashlib.sha256() for name in shapes}
    for block in blocks:
        for name, rows in block.items():
            hashes[name].update(np.ascontiguousarray(rows, _digest_type(name)))
    lines = (f"{name} {_digest_type(name)} {'x'.join(['N', *map(str, shapes[name])])} {hashes[name].hexdigest()}\n"
             for name in sorted(shapes))
    return hashlib.sha256((DIGEST_HEADER + "".join(lines)).encode("utf-8")).hexdigest()


def _digest_type(name: str) -> str:
    return "<i8" if name == IDS else "<f4"


def _bytes_per_point(files: CheckpointFiles) -> float:
    shard = files.shards[0]
    arrays = [shard[name] for name in files.index.array_names()]
    return float(sum(a.dtype.itemsize * int(np.prod(a.shape[1:], dtype=np.int64)) for a in arrays))


class _Running:
    """Minimum, sum and maximum of the finite values seen so far."""

    def __init__(self) -> None:
        self.n = 0
        self.n_nonfinite = 0
        self.total = 0.0
        self.minimum = np.inf
        self.maximum = -np.inf

    def add(self, values: np.ndarray) -> None:
        finite = values[np.isfinite(values)]
        self.n += finite.size
        self.n_nonfinite += values.size - finite.size
        if finite.size:
            self.total += float(finite.sum(dtype=np.float64))
            self.minimum = min(self.minimum, float(finite.min()))
            self.maximum = max(self.maximum, float(finite.max()))


def _columns(files: CheckpointFiles) -> tuple[ColumnSummary, ...]:
    """Summarise every array but the ids, shard by shard: the order of rows does not matter here."""
    units = {f"{POINTS}/{a.stored}": a.unit for a in files.index.attributes}
    columns = []
    for name in files.index.array_names()[1:]:
        running = _Running()
        for shard in files.shards:
            dataset = shard[name]
            step = dataset.chunks[0] if dataset.chunks else max(1, len(dataset))
            for start in range(0, len(dataset), step):
                running.add(dataset[start:start + step])
        bounds = (running.minimum, running.total / running.n, running.maximum) if running.n else (None, None, None)
        columns.append(ColumnSummary(name, tuple(files.shards[0][name].shape[1:]), units.get(name, "1"), *bounds,
                                     running.n_nonfinite))
    return tuple(columns)
