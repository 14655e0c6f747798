"""Stock HDF5 tools, without this package, read the right values through the index."""

import re
import shutil
import subprocess

import numpy as np
import pytest

from gaian_hpc.checkpoint.summary import digest
from gaian_hpc.checkpoint.writer import write_checkpoint

from .scenes import make_state, write_sharded

OWNERS = np.random.default_rng(3).integers(0, 3, 50)

pytestmark = pytest.mark.skipif(shutil.which("h5dump") is None, reason="no h5dump here; install hdf5-tools")


def h5dump(*words):
    done = subprocess.run(["h5dump", *map(str, words)], capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout


def values(path, name):
    """Return the numbers that h5dump prints for an array, in the order of the file."""
    text = h5dump("-d", name, "-m", "%.9g", "-y", "-w", 1, path)
    data = re.search(r"DATA \{(.*?)\}", text, re.DOTALL)[1]
    return np.array([float(x) for x in data.replace(",", " ").split()])


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("idle", [False, True])
def test_h5dump_prints_the_right_values_of_all_shards_through_the_index(tmp_path, compress, idle):
    state = make_state()
    owners = np.where(OWNERS == 1, 2, OWNERS) if idle else OWNERS
    path = write_sharded(tmp_path, state, owners, 3, compress) / "scene.h5"
    rows = np.argsort(owners, kind="stable")
    store = state.store
    assert np.array_equal(values(path, "/ids"), store.ids[rows])
    for name, array in (("points/means", store.raw["means"]), ("points/logit_opacities", store.raw["opacities"]),
                        ("adam/second_moments/sh", store.second_moments["sh"]),
                        ("statistics/n_seen", store.statistics["n_seen"])):
        assert np.array_equal(values(path, f"/{name}").astype(array.dtype), array[rows].ravel()), name


def test_h5dump_prints_all_that_describes_the_scene(tmp_path):
    path = write_checkpoint(tmp_path, make_state()) / "scene.h5"
    text = h5dump(path)
    for words in ("gaian_hpc scene", "log world unit", 'method = "gaussian3d"', "left/bild_", "/data/fox", "philox",
                  "shard_00000.h5", '{"step": 300, "psnr": 21.5}', "0.30000000000000004"):
        assert words in text, words
    shard = h5dump("-p", "-H", "-d", "/points/means", path.with_name("shard_00000.h5"))
    assert "CHECKSUM FLETCHER32" in shard


def test_the_commands_of_the_format_description_work_as_printed(tmp_path, repository):
    description = (repository / "gaian_hpc" / "checkpoint" / "FORMAT.md").read_text("utf-8")
    path = write_sharded(tmp_path, make_state(), OWNERS, 3)
    commands = re.findall(r"^    \$ ((?:h5dump|sha256sum).*)$", description, re.MULTILINE)
    assert len(commands) == 5
    for command in commands:
        done = subprocess.run(["sh", "-c", command], cwd=path, capture_output=True, text=True, check=True)
        assert done.stdout and not done.stderr, command
    means = np.fromfile(path / "means.bin", "<f4").reshape(-1, 3)
    assert np.array_equal(means, make_state().store.raw["means"][np.argsort(OWNERS, kind="stable")])


def test_the_digest_follows_from_stock_tools_as_the_format_description_says(tmp_path, repository):
    description = (repository / "gaian_hpc" / "checkpoint" / "FORMAT.md").read_text("utf-8")
    script = re.search(r"```sh\n(.*?)```", description, re.DOTALL)[1]
    path = write_checkpoint(tmp_path, make_state(), compress=True)
    done = subprocess.run(["sh", "-c", script], cwd=path, capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == digest(path) and not done.stderr
    assert sorted(p.name for p in path.iterdir()) == ["SHA256SUMS", "scene.h5", "shard_00000.h5"]
