"""Stock HDF5 tools, without this package, read the right values through the index."""

import hashlib
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


def test_the_digest_follows_from_h5dump_and_sha256_as_the_format_says(tmp_path):
    path = write_checkpoint(tmp_path, make_state(), compress=True) / "scene.h5"
    text = "gaian_hpc digest 1\n"
    shapes = {"means": "Nx3", "quats": "Nx4", "log_scales": "Nx3", "logit_opacities": "N", "sh": "Nx16x3"}
    arrays = {f"{group}/{name}": f"<f4 {shape}" for group in ("points", "adam/first_moments", "adam/second_moments")
              for name, shape in shapes.items()} | {"ids": "<i8 N"}
    for name in sorted(arrays):
        h5dump("-d", f"/{name}", "-b", "LE", "-o", tmp_path / "rows.bin", path)
        text += f"{name} {arrays[name]} {hashlib.sha256((tmp_path / 'rows.bin').read_bytes()).hexdigest()}\n"
    assert hashlib.sha256(text.encode()).hexdigest() == digest(path)
