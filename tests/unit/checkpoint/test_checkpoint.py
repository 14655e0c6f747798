"""Round trips, shards, restarts on other rank counts, replacement and pruning of checkpoints."""

import hashlib
import os
import shutil
import subprocess
import time
from dataclasses import replace

import h5py
import numpy as np
import pytest

from gaian_hpc.checkpoint.folders import list_checkpoints, prune_checkpoints
from gaian_hpc.checkpoint.reader import latest_checkpoint, read_checkpoint, rows_of_rank, verify_checkpoint
from gaian_hpc.checkpoint.summary import digest, digest_of_store, summarize
from gaian_hpc.checkpoint.writer import begin_checkpoint, finish_checkpoint, write_checkpoint, write_shard
from gaian_hpc.errors import DataError, FormatError, GaianError

from .scenes import (
    GAUSSIAN,
    assert_same_state,
    assert_same_store,
    attribute,
    make_state,
    make_store,
    take,
    write_sharded,
)

OWNERS = np.random.default_rng(3).integers(0, 3, 50)


@pytest.mark.parametrize("compress", [False, True])
def test_a_checkpoint_returns_every_bit_that_was_written(tmp_path, compress):
    state = make_state()
    state.store.raw["means"][:4, 0] = [np.nan, -0.0, np.inf, 1e-42]
    path = write_checkpoint(tmp_path, state, compress=compress)
    assert path == tmp_path / "checkpoints" / "step_0000300"
    for source in (tmp_path, tmp_path / "checkpoints", path, path / "scene.h5", str(path)):
        found = read_checkpoint(source)
        assert_same_state(found, state)
        assert found.n_total == 50 and [s.n_points for s in found.shards] == [50]


@pytest.mark.parametrize("compress", [False, True])
def test_three_shards_return_what_one_shard_returns(tmp_path, compress):
    state = make_state()
    write_sharded(tmp_path, state, OWNERS, 3, compress)
    found = read_checkpoint(tmp_path)
    assert_same_state(found, state)
    assert [(s.file, s.owner, s.n_points) for s in found.shards] == [
        (f"shard_{r:05d}.h5", r, int((OWNERS == r).sum())) for r in range(3)]


def test_the_digest_does_not_depend_on_shards_compression_or_place(tmp_path):
    state = make_state()
    write_checkpoint(tmp_path / "one", state)
    write_sharded(tmp_path / "three", state, OWNERS, 3, compress=True)
    write_sharded(tmp_path / "five", replace(state, step=7, settings="other"), OWNERS + 2, 5)
    assert {digest(tmp_path / name) for name in ("one", "three", "five")} == {digest_of_store(state.store)}


@pytest.mark.parametrize("change", ["ids", "raw", "first_moments", "second_moments", "order"])
def test_the_digest_sees_a_single_changed_bit(change):
    store, other = make_store(), make_store()
    if change == "ids":
        other.ids[-1] += 1
    elif change == "order":
        other.raw["means"][[0, 1]] = other.raw["means"][[1, 0]]
    else:
        getattr(other, change)["sh"].view(np.int32)[17, 5, 1] ^= 1
    assert digest_of_store(other) != digest_of_store(store)


def test_the_digest_is_the_one_that_the_format_defines():
    store = make_store(2, attributes=(attribute("size", (), "exp", "log_size"),))
    store.ids[:] = [3, 5]
    for group, value in ((store.raw, 1.0), (store.first_moments, 2.0), (store.second_moments, 4.0)):
        group["size"][:] = value
    ids = hashlib.sha256(bytes([3, *[0] * 7, 5, *[0] * 7])).hexdigest()
    one, two, four = (hashlib.sha256(bytes.fromhex(x * 2)).hexdigest() for x in ("0000803f", "00000040", "00008040"))
    text = (f"gaian_hpc digest 1\nadam/first_moments/log_size <f4 N {two}\nadam/second_moments/log_size <f4 N {four}\n"
            f"ids <i8 N {ids}\npoints/log_size <f4 N {one}\n")
    assert digest_of_store(store) == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_any_number_of_ranks_reads_its_rows_in_id_order(tmp_path, size):
    state = make_state()
    write_sharded(tmp_path, state, OWNERS, 3)
    first = 0
    for rank in range(size):
        part = read_checkpoint(tmp_path, rows=rows_of_rank(50, rank, size))
        assert_same_store(part.store, take(state.store, slice(first, first + part.store.n)))
        assert part.n_total == 50
        first += part.store.n
    assert first == 50


def test_arbitrary_rows_are_read_across_blocks_of_many_shards(tmp_path):
    n = 20_000
    state = make_state(make_store(n, attributes=(attribute("means", (3,)),)))
    owners = np.random.default_rng(0).integers(0, 5, n)
    owners[:6000] = 1  # a shard that has no part in most blocks
    write_sharded(tmp_path, state, owners, 5)
    rows = np.flatnonzero(np.random.default_rng(1).random(n) < 0.01)
    assert_same_store(read_checkpoint(tmp_path, rows=rows).store, take(state.store, rows))
    assert_same_store(read_checkpoint(tmp_path).store, state.store)
    assert digest(tmp_path) == digest_of_store(state.store)


def test_a_shard_without_points_and_a_scene_without_points_are_kept(tmp_path):
    state = make_state()
    write_sharded(tmp_path / "idle", state, np.where(OWNERS == 1, 2, OWNERS), 4, compress=True)
    assert_same_state(read_checkpoint(tmp_path / "idle"), state)
    empty = replace(state, store=take(state.store, slice(0, 0)), cameras=(), metrics=())
    write_sharded(tmp_path / "empty", empty, np.empty(0, int), 2)
    assert_same_state(read_checkpoint(tmp_path / "empty"), empty)
    assert digest(tmp_path / "empty") == digest_of_store(empty.store)
    assert summarize(tmp_path / "empty").columns[0].mean is None


def test_a_moved_checkpoint_is_whole_also_for_h5py_alone(tmp_path):
    state = make_state()
    path = write_sharded(tmp_path / "run", state, OWNERS, 3)
    moved = tmp_path / "elsewhere" / "backup"
    moved.parent.mkdir()
    shutil.move(path, moved)
    assert_same_state(read_checkpoint(moved), state)
    with h5py.File(moved / "scene.h5") as file:
        order = np.argsort(file["ids"][()])
        for name in ("means", "log_scales", "sh"):
            raw = state.store.raw[name.removeprefix("log_")]
            assert np.array_equal(file[f"points/{name}"][()][order], raw)
        assert np.array_equal(file["statistics/n_seen"][()][order], state.store.statistics["n_seen"])
        assert file["points/log_scales"].attrs["unit"] == "log world unit"
        assert file["settings"].asstr()[()] == state.settings


def test_the_same_state_gives_the_same_bytes_at_another_second(tmp_path):
    a = write_checkpoint(tmp_path / "a", make_state(), compress=True)
    time.sleep(1.1)  # HDF5 can note times, by the second
    b = write_checkpoint(tmp_path / "b", make_state(), compress=True)
    for name in os.listdir(a):
        assert (a / name).read_bytes() == (b / name).read_bytes(), name


def test_the_sums_can_be_checked_with_coreutils(tmp_path):
    path = write_sharded(tmp_path, make_state(), OWNERS, 2 + 1)
    done = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=path, capture_output=True, text=True, check=True)
    assert done.stdout.count("OK") == 4


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path):
    write_checkpoint(tmp_path, make_state(make_store(seed=1)))
    newer = make_state(make_store(30, seed=2))
    write_checkpoint(tmp_path, newer)
    assert_same_state(read_checkpoint(tmp_path), newer)
    assert os.listdir(tmp_path / "checkpoints") == ["step_0000300"]


def test_a_kill_before_the_rename_leaves_nothing_that_counts(tmp_path):
    write_checkpoint(tmp_path, make_state(step=100))
    begin_checkpoint(tmp_path, 200)
    write_shard(tmp_path, make_state(step=200), 0)
    assert read_checkpoint(tmp_path).step == 100
    write_checkpoint(tmp_path, make_state(step=300))
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["step_0000100", "step_0000300"]


@pytest.mark.parametrize("killed_at", [1, 2])
def test_a_kill_within_a_replacement_keeps_one_complete_checkpoint(tmp_path, monkeypatch, killed_at):
    old = make_state(make_store(seed=1))
    write_checkpoint(tmp_path, old)
    rename, calls = os.rename, []

    def die(a, b):
        calls.append(a)
        if len(calls) == killed_at:
            raise KeyboardInterrupt
        rename(a, b)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", die)
        with pytest.raises(KeyboardInterrupt):
            write_checkpoint(tmp_path, make_state(make_store(seed=2)))
    assert_same_state(read_checkpoint(tmp_path), old)
    write_checkpoint(tmp_path, make_state(step=400))
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["step_0000300", "step_0000400"]
    assert_same_state(read_checkpoint(tmp_path / "checkpoints" / "step_0000300"), old)


def test_pruning_keeps_the_newest(tmp_path):
    for step in (5, 100, 20, 12_345_678):
        write_checkpoint(tmp_path, make_state(make_store(3), step))
    prune_checkpoints(tmp_path, 0, 12_345_678)
    assert [int(p.name[5:]) for p in list_checkpoints(tmp_path)] == [5, 20, 100, 12_345_678]
    prune_checkpoints(tmp_path, 2, 12_345_678)
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["step_0000100", "step_12345678"]


def test_pruning_never_prefers_a_later_checkpoint_to_the_one_just_written(tmp_path):
    for step in (100, 300, 200):  # 300 was found damaged, the run went on from 100
        write_checkpoint(tmp_path, make_state(make_store(3), step))
    prune_checkpoints(tmp_path, 1, 200)
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["step_0000200", "step_0000300"]


def test_a_run_without_checkpoints_has_no_latest_one(tmp_path):
    assert latest_checkpoint(tmp_path) is None
    with pytest.raises(DataError, match="holds no checkpoint; train first"):
        read_checkpoint(tmp_path)
    with pytest.raises(DataError, match="there is no such file or folder"):
        read_checkpoint(tmp_path / "absent")


def test_every_part_of_a_shared_verification_checks_its_shards(tmp_path):
    path = write_sharded(tmp_path, make_state(), OWNERS, 3)
    with open(path / "shard_00001.h5", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")
    outcomes = []
    for rank in range(3):
        try:
            verify_checkpoint(path, rank=rank, size=3)
            outcomes.append(None)
        except FormatError as error:
            outcomes.append(str(error))
    assert sum(o is not None for o in outcomes) == 1
    assert any(o and "shard_00001.h5" in o for o in outcomes)


def test_attributes_of_the_method_are_used_in_its_order_and_must_agree(tmp_path):
    state = make_state()
    write_checkpoint(tmp_path, state)
    found = read_checkpoint(tmp_path, GAUSSIAN[::-1])
    assert found.store.attributes == GAUSSIAN[::-1]
    assert np.array_equal(found.store.values["scales"], state.store.values["scales"])
    with pytest.raises(FormatError, match=r"needs sh \(9, 3\) \(identity\) for sh, the checkpoint has sh \(16, 3\)"):
        read_checkpoint(tmp_path, (*GAUSSIAN[:-1], attribute("sh", (9, 3))))
    with pytest.raises(FormatError, match=r"needs times .* the checkpoint has none"):
        read_checkpoint(tmp_path, (*GAUSSIAN, attribute("times", ())))
    with pytest.raises(FormatError, match="holds sh, which the method does not have"):
        read_checkpoint(tmp_path, GAUSSIAN[:-1])


def test_a_point_in_two_shards_is_refused(tmp_path):
    state = make_state()
    begin_checkpoint(tmp_path, 300)
    records = [write_shard(tmp_path, state, r) for r in range(2)]
    finish_checkpoint(tmp_path, state, records)
    with pytest.raises(FormatError, match=f"point {state.store.ids[0]} is also in another shard"):
        read_checkpoint(tmp_path)


def test_an_index_of_another_checkpoint_is_refused(tmp_path):
    a = write_sharded(tmp_path / "a", make_state(), OWNERS, 3)
    b = write_sharded(tmp_path / "b", make_state(make_store(seed=9)), OWNERS, 3)
    shutil.copy(b / "scene.h5", a / "scene.h5")
    sums = [(b if "scene" in line else a, i) for i, line in enumerate((a / "SHA256SUMS").read_text().splitlines())]
    (a / "SHA256SUMS").write_text("".join((p / "SHA256SUMS").read_text().splitlines(keepends=True)[i] for p, i in sums))
    with pytest.raises(FormatError, match=r"scene.h5 and SHA256SUMS list different shards"):
        read_checkpoint(a)


def test_a_full_or_forbidden_disk_is_one_line(tmp_path):
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    with pytest.raises(GaianError, match=r"the checkpoint cannot be written \(.*\); free space or mend") as caught:
        write_checkpoint(tmp_path, make_state())
    assert "\n" not in str(caught.value)


def test_the_summary_counts_what_is_not_finite(tmp_path):
    store = make_store()
    store.raw["means"][3, :2] = [np.nan, np.inf]
    store.raw["means"][5, 0] = 40.0
    write_sharded(tmp_path, make_state(store), OWNERS, 3)
    summary = summarize(tmp_path)
    assert (summary.step, summary.method, summary.n_points, summary.n_shards) == (300, "gaussian3d", 50, 3)
    assert summary.bytes_per_point == 8 + 3 * 59 * 4 + 8
    assert (summary.n_views, summary.n_test_views) == (4, 2)
    means = next(c for c in summary.columns if c.name == "points/means")
    assert (means.n_nonfinite, means.maximum, means.unit) == (2, 40.0, "world unit")
    finite = store.raw["means"][np.isfinite(store.raw["means"])]
    assert means.mean == pytest.approx(finite.mean(dtype=np.float64)) and means.minimum == finite.min()
    assert summary.metrics_tail[-1] == '{"step": 300, "psnr": 21.5}'
