"""Read checkpoints: find the newest that verifies, refuse whatever is damaged, and return any rows of it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from ..arrays import Attribute
from ..errors import DataError, FormatError, GaianError
from ..points.store import PointStore
from .folders import list_checkpoints
from .hdf5 import BLOCK_ROWS, checked, open_hdf5, sha256_of
from .index import Index, read_index_content
from .merge import Block, id_blocks
from .schema import (
    CHECKPOINTS_FOLDER,
    FIRST_MOMENTS,
    FORMAT_INDEX,
    FORMAT_SHARD,
    IDS,
    INDEX_NAME,
    POINTS,
    SECOND_MOMENTS,
    STATISTICS,
    SUMS_NAME,
    CheckpointState,
    check_version,
    same_layout,
)

log = logging.getLogger(__name__)

_SUM_LINE = re.compile(r"([0-9a-f]{64})  ([A-Za-z0-9_.]+)")


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """An open checkpoint.

    Attributes
    ----------
    path : Path
        Its folder.
    index : Index
    shards : tuple of h5py.File
    """

    path: Path
    index: Index
    shards: tuple[h5py.File, ...]

    def blocks(self, rows: int = BLOCK_ROWS) -> Iterator[Block]:
        """Yield all points in id order, about ``rows`` at a time; memory is bounded whatever the scene's size."""
        for block in id_blocks([shard[IDS] for shard in self.shards], rows):
            if block.ids[-1] >= self.index.next_id:
                raise FormatError(f"{self.path / INDEX_NAME}: 'next_id' is {self.index.next_id} and there is a point "
                                  f"{block.ids[-1]}; use an earlier checkpoint")
            yield block

    def read(self, name: str, block: Block) -> np.ndarray:
        """Return one array's rows of ``block``, in id order."""
        parts = [self.shards[s][name][start:stop] for s, start, stop in block.slices]
        return np.concatenate(parts)[block.order]


def latest_checkpoint(run_dir: Path | str) -> Path | None:
    """Return the newest checkpoint of a run that verifies; damaged ones are named in a warning and passed over.

    Reads only; with many ranks the root calls it and tells the others.

    Returns
    -------
    Path or None
        None if the run has no checkpoint yet.

    Raises
    ------
    FormatError
        If there are checkpoints and none is intact.
    """
    damaged = []
    for path in reversed(list_checkpoints(run_dir)):
        try:
            with open_checkpoint(path):
                return path
        except GaianError as error:
            log.warning("checkpoint %s is not used: %s", path.name, error)
            damaged.append(str(error))
    if damaged:
        raise FormatError(f"{run_dir}: none of its {len(damaged)} checkpoints is intact; the newest: {damaged[0]}")
    return None


def read_checkpoint(path: Path | str, attributes: tuple[Attribute, ...] | None = None,
                    rows: slice | np.ndarray | None = None, *, verify: bool = True) -> CheckpointState:
    """Return the state held by a checkpoint.

    Parameters
    ----------
    path : path
        A run (its newest intact checkpoint), a checkpoint's folder or its ``scene.h5``.
    attributes : tuple of Attribute, optional
        The method's, which must agree with the file's; by default the file's, which cannot start new points.
    rows : slice or ascending int64 array, optional
        Which points, counted in the order of their ids; all by default. See :func:`rows_of_rank`.
    verify : bool
        Check every file's SHA-256 first. False only where :func:`verify_checkpoint` was called before.

    Raises
    ------
    DataError
        If there is no checkpoint at ``path``.
    FormatError
        If it is damaged, incomplete, of another program or version, or holds other attributes.
    """
    with open_checkpoint(path, verify=verify) as files:
        index = files.index
        used = index.attributes if attributes is None else _agreed(files.path, attributes, index.attributes)
        return CheckpointState(
            step=index.step, settings=index.settings, method=index.method, store=_read_store(files, used, rows),
            method_options=index.method_options, scene_path=index.scene_path,
            scene_fingerprint=index.scene_fingerprint, cameras=index.cameras, rng=index.rng, trainer=index.trainer,
            metrics=index.metrics, n_total=index.n_points, shards=index.shards)


def rows_of_rank(n_points: int, rank: int, size: int) -> slice:
    """Return the rows (in id order) that ``rank`` of ``size`` reads for an even split."""
    return slice(n_points * rank // size, n_points * (rank + 1) // size)


def verify_checkpoint(path: Path | str, *, rank: int = 0, size: int = 1) -> None:
    """Compare the files of a checkpoint with their recorded SHA-256.

    With ``size`` ranks each checks the index and its part of the shards; all parts together check everything.

    Raises
    ------
    FormatError
        Naming the first file that is missing, truncated or changed.
    """
    folder, _ = resolve_checkpoint(path)
    sums = _read_sums(folder)
    names = sorted(sums)
    for i, name in enumerate(names):
        if not (folder / name).is_file():
            raise FormatError(f"{folder / name}: the file is missing ({len(names) - 1} shards are expected); restore "
                              f"it or use an earlier checkpoint")
        if (name == INDEX_NAME or i % size == rank) and sha256_of(folder / name) != sums[name]:
            raise FormatError(f"{folder / name}: its SHA-256 is not the one in {SUMS_NAME}, so it is truncated or "
                              f"damaged; copy it anew or use an earlier checkpoint")


def resolve_checkpoint(path: Path | str) -> tuple[Path, bool]:
    """Return the folder of the checkpoint that ``path`` stands for, and whether finding it verified it.

    Parameters
    ----------
    path : path
        A run (its newest intact checkpoint), a checkpoint's folder or its ``scene.h5``.

    Raises
    ------
    DataError
        If there is nothing at ``path``, or a run without checkpoints.
    FormatError
        If it is a file of another kind.
    """
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder; name a run, a checkpoint in it or its {INDEX_NAME}")
    if path.is_file():
        if path.name == INDEX_NAME and (path.parent / SUMS_NAME).exists():
            return path.parent, False
        raise _not_a_checkpoint(path)
    run = path.parent if path.name == CHECKPOINTS_FOLDER else path
    if list_checkpoints(run):
        return latest_checkpoint(run), True
    if (path / SUMS_NAME).exists() or (path / INDEX_NAME).exists() or path.parent.name == CHECKPOINTS_FOLDER:
        return path, False
    raise DataError(f"{path}: holds no checkpoint; train first or name another folder")


@contextmanager
def open_checkpoint(path: Path | str, *, verify: bool = True) -> Iterator[CheckpointFiles]:
    """Open index and shards of a checkpoint for reading, after checking that they are whole and belong together."""
    folder, verified = resolve_checkpoint(path)
    if verify and not verified:
        verify_checkpoint(folder)
    with open_hdf5(folder / INDEX_NAME) as file:
        index = read_index_content(file, folder / INDEX_NAME)
    sums = _read_sums(folder)
    recorded = {s.file: s.sha256 for s in index.shards}
    if recorded != {name: digest for name, digest in sums.items() if name != INDEX_NAME}:
        raise FormatError(f"{folder}: {INDEX_NAME} and {SUMS_NAME} list different shards; the files are of different "
                          f"checkpoints, use an earlier one")
    with ExitStack() as stack:
        shards = tuple(stack.enter_context(open_hdf5(folder / s.file)) for s in index.shards)
        for file, record in zip(shards, index.shards, strict=True):
            _check_shard(folder / record.file, file, index, record.n_points)
        yield CheckpointFiles(folder, index, shards)


def _read_sums(folder: Path) -> dict[str, str]:
    """Return digest by file name, as ``sha256sum`` writes them."""
    path = folder / SUMS_NAME
    if not path.is_file():
        index = folder / INDEX_NAME
        if index.is_file():
            raise _not_a_checkpoint(index)
        raise FormatError(f"{folder}: {SUMS_NAME} and {INDEX_NAME} are missing, so this is no complete checkpoint; use "
                          f"an earlier one")
    lines = path.read_text("ascii", "replace").splitlines()
    matches = [_SUM_LINE.fullmatch(line) for line in lines]
    sums = {m[2]: m[1] for m in matches if m}
    if not all(matches) or len(sums) != len(lines) or INDEX_NAME not in sums:
        raise FormatError(f"{path}: the file is damaged; restore it or use an earlier checkpoint")
    return sums


def _not_a_checkpoint(path: Path) -> GaianError:
    """Return the error that says best what the single file ``path`` is instead of a whole checkpoint."""
    with open_hdf5(path) as file:
        kind = file.attrs.get("format")
    if isinstance(kind, str) and kind == FORMAT_SHARD:
        return FormatError(f"{path}: this is one shard of a checkpoint; name its folder or the {INDEX_NAME} beside it")
    if isinstance(kind, str) and kind == FORMAT_INDEX:
        return FormatError(f"{path}: the index of a checkpoint, but {INDEX_NAME} with {SUMS_NAME} is not there; the "
                           f"checkpoint is incomplete, restore its folder or use an earlier one")
    return FormatError(f"{path}: an HDF5 file, but not a gaian_hpc checkpoint (attribute 'format' is {kind!r}, not "
                       f"{FORMAT_INDEX!r}); name a run or a checkpoint in it")


def _check_shard(path: Path, file: h5py.File, index: Index, n_points: int) -> None:
    """Raise unless the shard holds ``n_points`` rows of every array the index names, backed by stored bytes."""
    if file.attrs.get("format") != FORMAT_SHARD:
        raise FormatError(f"{path}: not a shard of a gaian_hpc checkpoint; restore it or use an earlier checkpoint")
    check_version(path, int(file.attrs["version"]))
    shapes = {IDS: (), **{f"{STATISTICS}/{name}": shape for name, shape, _ in index.statistics}}
    for group in (POINTS, FIRST_MOMENTS, SECOND_MOMENTS):
        shapes |= {f"{group}/{a.stored}": tuple(a.shape) for a in index.attributes}
    for name, shape in shapes.items():
        found = checked(file[name]).shape
        if found != (n_points, *shape):
            raise FormatError(f"{path}: {name} has shape {found}, {INDEX_NAME} says {(n_points, *shape)}; use an "
                              f"earlier checkpoint")


def _agreed(path: Path, wanted: tuple[Attribute, ...], stored: tuple[Attribute, ...]) -> tuple[Attribute, ...]:
    """Return ``wanted`` if it stores what the file holds; the order of attributes does not matter."""
    by_name = {a.name: a for a in stored}
    for a in wanted:
        found = by_name.get(a.name)
        if found is None or not same_layout(a, found):
            have = f"{found.stored} {tuple(found.shape)} ({found.activation})" if found else "none"
            raise FormatError(f"{path}: the method needs {a.stored} {tuple(a.shape)} ({a.activation}) for {a.name}, "
                              f"the checkpoint has {have}; use the method and options it was trained with")
    extra = sorted(set(by_name) - {a.name for a in wanted})
    if extra:
        raise FormatError(f"{path}: the checkpoint holds {', '.join(extra)}, which the method does not have; use the "
                          f"method and options it was trained with")
    return wanted


def _read_store(files: CheckpointFiles, attributes: tuple[Attribute, ...],
                rows: slice | np.ndarray | None) -> PointStore:
    """Return the points of ``rows`` as a store."""
    wanted = _Selection(files, rows)
    store = PointStore(attributes, {a.name: wanted.read(f"{POINTS}/{a.stored}") for a in attributes},
                       wanted.read(IDS), files.index.next_id)
    for a in attributes:
        store.first_moments[a.name] = wanted.read(f"{FIRST_MOMENTS}/{a.stored}")
        store.second_moments[a.name] = wanted.read(f"{SECOND_MOMENTS}/{a.stored}")
    store.statistics = {name: wanted.read(f"{STATISTICS}/{name}") for name, _, _ in files.index.statistics}
    return store


class _Selection:
    """Rows of the scene in id order, as rows of shards: which to read and where they go."""

    def __init__(self, files: CheckpointFiles, rows: slice | np.ndarray | None):
        self._shards = files.shards
        n = files.index.n_points
        wanted = np.arange(n, dtype=np.int64)[rows] if isinstance(rows, slice) else rows
        self.n = n if wanted is None else len(wanted)
        sources: list[list[np.ndarray]] = [[] for _ in files.shards]  # rows within the shard
        targets: list[list[np.ndarray]] = [[] for _ in files.shards]  # rows of the result
        first = 0
        for block in files.blocks():
            last = first + len(block.ids)
            begin, end = (first, last) if wanted is None else np.searchsorted(wanted, (first, last))
            chosen = np.arange(begin, end) if wanted is None else wanted[begin:end]
            shard, local = block.origin(chosen - first)
            position = np.arange(begin, end)
            for s in np.unique(shard):
                sources[s].append(local[shard == s])
                targets[s].append(position[shard == s])
            first = last
        empty = np.empty(0, np.int64)
        self._sources = [np.concatenate([empty, *part]) for part in sources]
        self._targets = [np.concatenate([empty, *part]) for part in targets]

    def read(self, name: str) -> np.ndarray:
        """Return the rows of one array, in native byte order."""
        like = self._shards[0][name]
        out = np.empty((self.n, *like.shape[1:]), like.dtype.newbyteorder("="))
        for shard, source, target in zip(self._shards, self._sources, self._targets, strict=True):
            cuts = np.flatnonzero(np.diff(source // BLOCK_ROWS)) + 1  # ascending: contiguous reads of bounded length
            for rows, places in zip(np.split(source, cuts), np.split(target, cuts), strict=True):
                if len(rows):
                    out[places] = shard[name][int(rows[0]):int(rows[-1]) + 1][rows - rows[0]]
        return out
