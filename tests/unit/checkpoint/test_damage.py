"""Damaged, incomplete and foreign checkpoints: named, refused, and the previous one used."""

import hashlib
import logging
import os
import shutil

import h5py
import numpy as np
import pytest

from gaian_hpc.checkpoint.reader import latest_checkpoint, read_checkpoint
from gaian_hpc.checkpoint.summary import digest, summarize
from gaian_hpc.checkpoint.writer import write_checkpoint
from gaian_hpc.errors import FormatError, GaianError

from .scenes import assert_same_state, make_state, make_store, write_sharded

OWNERS = np.random.default_rng(3).integers(0, 3, 50)


@pytest.fixture
def warnings():
    """Collect the warnings of the reader, whoever has set up logging before."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("gaian_hpc.checkpoint.reader")
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def flip(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset, os.SEEK_SET if offset >= 0 else os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(offset, os.SEEK_SET if offset >= 0 else os.SEEK_END)
        file.write(bytes([byte ^ 0x10]))


def renew_sums(path):
    """Make the sums fit the files, as someone who edits a checkpoint would."""
    names = sorted(p.name for p in path.iterdir() if p.suffix == ".h5")
    sums = "".join(f"{hashlib.sha256((path / n).read_bytes()).hexdigest()}  {n}\n" for n in names)
    (path / "SHA256SUMS").write_text(sums)


def damages():
    def delete(path, name):
        (path / name).unlink()

    def cut(path, name):
        os.truncate(path / name, os.path.getsize(path / name) // 2)

    def empty(path, name):
        os.truncate(path / name, 0)

    def flips(offset):
        return lambda path, name: flip(path / name, offset)

    for name in ("shard_00001.h5", "scene.h5", "SHA256SUMS"):
        for label, damage in (("deleted", delete), ("cut", cut), ("empty", empty), ("first byte", flips(0)),
                              ("byte 40", flips(40)), ("last byte", flips(-1 if name != "SHA256SUMS" else -3))):
            yield pytest.param(name, damage, id=f"{name} {label}")


@pytest.mark.parametrize("name, damage", list(damages()))
def test_damage_is_named_and_the_previous_checkpoint_is_used(tmp_path, warnings, name, damage):
    write_sharded(tmp_path, make_state(step=100), OWNERS, 3)
    newest = write_sharded(tmp_path, make_state(step=200), OWNERS, 3)
    damage(newest, name)
    with pytest.raises(FormatError) as caught:
        read_checkpoint(newest)
    assert str(newest) in str(caught.value) and "\n" not in str(caught.value)
    assert name in str(caught.value) or name == "SHA256SUMS"
    assert latest_checkpoint(tmp_path).name == "step_0000100"
    assert len(warnings) == 1 and "step_0000200 is not used" in warnings[0] and "\n" not in warnings[0]
    assert read_checkpoint(tmp_path).step == 100


def test_a_missing_shard_is_an_error_and_never_fill_values(tmp_path):
    path = write_sharded(tmp_path, make_state(), OWNERS, 3)
    (path / "shard_00002.h5").unlink()
    with h5py.File(path / "scene.h5") as file:
        assert (file["ids"][()] == -1).any()  # what plain HDF5 would have us believe
    for read in (read_checkpoint, summarize, digest):
        with pytest.raises(FormatError, match=r"shard_00002.h5: the file is missing \(3 shards are expected\)"):
            read(path)


def test_a_run_without_an_intact_checkpoint_says_so(tmp_path, warnings):
    for step in (1, 2):
        flip(write_checkpoint(tmp_path, make_state(step=step)) / "scene.h5", 99)
    with pytest.raises(FormatError, match=r"none of its 2 checkpoints is intact; the newest: .*step_0000002/scene.h5"):
        read_checkpoint(tmp_path)
    assert len(warnings) == 2


def test_random_flips_are_refused_or_harmless(tmp_path):
    state = make_state(make_store(20))
    intact = write_sharded(tmp_path / "run", state, OWNERS[:20], 3, compress=True)
    rng = np.random.default_rng(5)
    for trial in range(120):
        path = tmp_path / f"copy{trial}"
        shutil.copytree(intact, path)
        victim = path / sorted(os.listdir(path))[trial % 5]
        data = bytearray(victim.read_bytes())
        for _ in range(rng.integers(1, 4)):
            data[rng.integers(len(data))] ^= 1 << rng.integers(8)
        if trial % 7 == 0:
            del data[rng.integers(len(data)):]
        victim.write_bytes(data)
        try:
            assert_same_state(read_checkpoint(path), state)
        except GaianError as error:
            assert str(path) in str(error) and "\n" not in str(error)
        shutil.rmtree(path)


def test_flips_behind_renewed_sums_are_refused_by_fletcher32_or_the_index(tmp_path):
    """Sums that fit damaged files must not make the reader fail in another way than with a named error."""
    state = make_state(make_store(20))
    intact = write_checkpoint(tmp_path / "run", state, compress=True)
    rng = np.random.default_rng(6)
    with h5py.File(intact / "shard_00000.h5") as file:
        chunk = file["points/means"].id.get_chunk_info(0)
    for trial in range(20):
        path = tmp_path / f"copy{trial}"
        shutil.copytree(intact, path)
        flip(path / "shard_00000.h5", chunk.byte_offset + int(rng.integers(chunk.size)))
        renew_sums(path)
        with pytest.raises(FormatError):
            read_checkpoint(path)
        with pytest.raises(FormatError):
            read_checkpoint(path, verify=False)


def edited(tmp_path, edit, name="scene.h5"):
    """Return a checkpoint whose file was edited and whose sums, inside and outside, were renewed."""
    path = write_sharded(tmp_path, make_state(), OWNERS, 3)
    with h5py.File(path / name, "r+") as file:
        edit(file)
    with h5py.File(path / "scene.h5", "r+") as file:
        sums = [hashlib.sha256((path / f).read_bytes()).hexdigest() for f in file["placement/files"].asstr()[()]]
        file["placement/sha256"][()] = sums
    renew_sums(path)
    return path


def test_an_edited_checkpoint_with_renewed_sums_is_accepted(tmp_path):
    path = edited(tmp_path, lambda f: f["points/means"].write_direct(np.zeros(f["points/means"].shape, np.float32)),
                  "shard_00000.h5")
    state = make_state()
    state.store.raw["means"][OWNERS == 0] = 0.0
    assert_same_state(read_checkpoint(path), state)


@pytest.mark.parametrize("version, message", [
    (2, "version 2 is newer than version 1, the newest this gaian_hpc reads; update gaian_hpc"),
    (0, "version 0 is unknown .this gaian_hpc reads version 1.; use the gaian_hpc release that wrote it"),
])
def test_other_versions_say_what_to_do(tmp_path, version, message):
    path = edited(tmp_path, lambda f: f.attrs.modify("version", version))
    with pytest.raises(FormatError, match=message):
        read_checkpoint(path)


@pytest.mark.parametrize("label, name, edit", [
    ("no version", "scene.h5", lambda f: f.attrs.__delitem__("version")),
    ("no cameras", "scene.h5", lambda f: f.__delitem__("cameras")),
    ("no settings", "scene.h5", lambda f: f.__delitem__("settings")),
    ("other count", "scene.h5", lambda f: f.attrs.modify("n_points", 51)),
    ("unknown activation", "scene.h5", lambda f: f["points/sh"].attrs.__setitem__("activation", "tanh")),
    ("settings a number", "scene.h5", lambda f: (f.__delitem__("settings"), f.__setitem__("settings", 3))),
    ("trainer not JSON", "scene.h5", lambda f: f["trainer"].__setitem__((), "{")),
    ("no moments", "shard_00001.h5", lambda f: f.__delitem__("adam/first_moments/sh")),
    ("a group for an array", "shard_00001.h5", lambda f: (f.__delitem__("ids"), f.create_group("ids"))),
    ("fewer rows", "shard_00001.h5", lambda f: (f.__delitem__("ids"), f.__setitem__("ids", np.arange(3)))),
    ("ids descend", "shard_00001.h5", lambda f: f["ids"].__setitem__(slice(None), f["ids"][()][::-1])),
    ("an id never given", "scene.h5", lambda f: f.attrs.modify("next_id", 5)),
    ("ids negative", "shard_00001.h5", lambda f: f["ids"].__setitem__(0, -5)),
])
def test_contradictions_inside_are_one_line(tmp_path, label, name, edit):
    path = edited(tmp_path, edit, name)
    for read in (read_checkpoint, digest):
        with pytest.raises(FormatError) as caught:
            read(path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_shape_that_no_bytes_back_allocates_nothing(tmp_path):
    def inflate(file):
        del file["ids"]
        file.create_dataset("ids", shape=(10**12,), dtype="<i8", chunks=(1024,))

    with pytest.raises(FormatError, match="ids claims 8000000000000 bytes and stores 0"):
        read_checkpoint(edited(tmp_path, inflate, "shard_00001.h5"))


def test_foreign_files_say_what_they_are(tmp_path):
    foreign = tmp_path / "weights.h5"
    with h5py.File(foreign, "w") as file:
        file["x"] = np.arange(3)
    with pytest.raises(FormatError, match=r"an HDF5 file, but not a gaian_hpc checkpoint .*'format' is None"):
        read_checkpoint(foreign)
    shutil.copy(foreign, tmp_path / "scene.h5")
    for path in (tmp_path, tmp_path / "scene.h5"):
        with pytest.raises(FormatError, match="an HDF5 file, but not a gaian_hpc checkpoint"):
            read_checkpoint(path)
    renew_sums(tmp_path)
    with pytest.raises(FormatError, match="an HDF5 file, but not a gaian_hpc checkpoint"):
        read_checkpoint(tmp_path / "scene.h5")
    os.truncate(foreign, 700)
    with pytest.raises(FormatError, match=r"HDF5 cannot read it .*truncated"):
        read_checkpoint(foreign)
    foreign.write_text("step,loss\n1,2\n")
    with pytest.raises(FormatError, match="not an HDF5 file"):
        read_checkpoint(foreign)
    path = write_checkpoint(tmp_path / "run", make_state())
    with pytest.raises(FormatError, match="this is one shard of a checkpoint; name its folder"):
        read_checkpoint(path / "shard_00000.h5")
    shutil.copy(path / "scene.h5", tmp_path / "alone.h5")
    with pytest.raises(FormatError, match="the index of a checkpoint, but"):
        read_checkpoint(tmp_path / "alone.h5")
