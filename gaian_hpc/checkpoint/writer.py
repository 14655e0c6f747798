"""Write checkpoints: every rank its shard, the root the index, and one rename when all is on the disk.

A run of many ranks calls, with its barriers in between::

    begin_checkpoint(run_dir, step)              # root, then barrier
    record = write_shard(run_dir, state, rank)   # every rank, then gather the records
    finish_checkpoint(run_dir, state, records)   # root
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import h5py

from .folders import clean_leftovers, reported, working_folder
from .hdf5 import LIBVER, sha256_of, sync, write_array
from .index import describe_attribute, write_index_content
from .schema import (
    FIRST_MOMENTS,
    FORMAT_SHARD,
    FORMAT_VERSION,
    IDS,
    INDEX_NAME,
    POINTS,
    SECOND_MOMENTS,
    STATISTICS,
    SUMS_NAME,
    CheckpointState,
    ShardRecord,
    shard_name,
    step_name,
)


def write_checkpoint(run_dir: Path | str, state: CheckpointState, *, compress: bool = False) -> Path:
    """Write the checkpoint of a run of one rank and return its folder.

    Parameters
    ----------
    run_dir : path
        The checkpoint becomes ``run_dir/checkpoints/step_0000300``; one of the same step is replaced.
    compress : bool
        Deflate the arrays (slower, about 1.8 times smaller).

    Raises
    ------
    GaianError
        If the files cannot be written; nothing that looks complete is left.
    """
    begin_checkpoint(run_dir, state.step)
    record = write_shard(run_dir, state, 0, compress=compress)
    return finish_checkpoint(run_dir, state, [record])


def begin_checkpoint(run_dir: Path | str, step: int) -> None:
    """Make the empty working folder of a checkpoint, clearing what an interrupted run left; for the root only."""
    working = working_folder(run_dir, step)
    with reported(working):
        working.parent.mkdir(parents=True, exist_ok=True)
        clean_leftovers(run_dir)
        working.mkdir()


def write_shard(run_dir: Path | str, state: CheckpointState, rank: int, *, compress: bool = False) -> ShardRecord:
    """Write this rank's points into the working folder; every rank at once, after :func:`begin_checkpoint`."""
    store = state.store
    path = working_folder(run_dir, state.step) / shard_name(rank)
    with reported(path):
        with h5py.File(path, "w", libver=LIBVER) as file:
            file.attrs.update({"format": FORMAT_SHARD, "version": FORMAT_VERSION, "step": state.step,
                               "owner": rank, "n_points": store.n})
            write_array(file, IDS, store.ids, compress)
            for order, a in enumerate(store.attributes):
                describe_attribute(write_array(file, f"{POINTS}/{a.stored}", store.raw[a.name], compress), order, a)
                write_array(file, f"{FIRST_MOMENTS}/{a.stored}", store.first_moments[a.name], compress)
                write_array(file, f"{SECOND_MOMENTS}/{a.stored}", store.second_moments[a.name], compress)
            file.require_group(STATISTICS)
            for name, column in store.statistics.items():
                write_array(file, f"{STATISTICS}/{name}", column, compress)
        sync(path)
        return ShardRecord(path.name, rank, store.n, path.stat().st_size, sha256_of(path))


def finish_checkpoint(run_dir: Path | str, state: CheckpointState, records: Sequence[ShardRecord]) -> Path:
    """Write the index over all shards, then give the folder its name; for the root only, after all shards.

    Parameters
    ----------
    records : sequence of ShardRecord
        What :func:`write_shard` returned on every rank, in the order the index shall present them.

    Returns
    -------
    Path
        The complete checkpoint.
    """
    working = working_folder(run_dir, state.step)
    index = working / INDEX_NAME
    with reported(working):
        with h5py.File(index, "w", libver=LIBVER) as file:
            write_index_content(file, state, tuple(records))
        sums = [(sha256_of(index), INDEX_NAME), *((r.sha256, r.file) for r in records)]
        (working / SUMS_NAME).write_text("".join(f"{digest}  {name}\n" for digest, name in sums), "ascii")
        for path in (index, working / SUMS_NAME, working):
            sync(path)
        return _publish(working, working.parent / step_name(state.step))


def _publish(working: Path, final: Path) -> Path:
    """Rename ``working`` to ``final``; at every instant one complete checkpoint of this step can be found."""
    old = final.with_name(f".{final.name}.old")
    if final.exists():
        os.rename(final, old)
    os.rename(working, final)
    sync(final.parent)
    if old.exists():
        shutil.rmtree(old)
    return final
