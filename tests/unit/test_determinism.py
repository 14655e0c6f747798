"""The same seed and settings give the same bits: on any number of threads, again, compiled or loaded from the cache."""

import json
import os
import subprocess
import sys

import numba
import pytest

from gaian_hpc.checkpoint.summary import digest_of_store
from gaian_hpc.training.journal import METRICS_NAME
from tests.unit.runs import VARIANTS, edits_of, train

two_cores = pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="this process may use one core only")


def bits(scene, run, name, threads):
    """Train a variant and return its digest and metrics."""
    changes, options, edits = VARIANTS[name]
    trainer = train(scene, run, {**changes, "threads": threads}, options)
    missing = edits - edits_of(run)
    assert not missing, f"the run made no edit of kind {missing}, so it would not show that these are deterministic"
    return digest_of_store(trainer.store), (run / METRICS_NAME).read_text()


@two_cores
@pytest.mark.parametrize("name", VARIANTS)
def test_one_and_two_threads_and_a_second_run_give_the_same_bits(city, tmp_path, name):
    one, two, again = (bits(city, tmp_path / f"{i}", name, threads) for i, threads in enumerate((1, 2, 2)))
    assert one == two == again


def test_each_way_to_train_gives_bits_of_its_own(city, tmp_path):
    digests = [bits(city, tmp_path / str(i), name, 1)[0] for i, name in enumerate(VARIANTS)]
    assert len(set(digests)) == len(VARIANTS)


PROCESS = """
import json, sys
from pathlib import Path
from tests.unit.test_determinism import VARIANTS, bits
scene, output, threads = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
print(json.dumps({name: bits(scene, output / str(i), name, threads) for i, name in enumerate(VARIANTS)}))
"""


def in_a_process(repository, cache, *arguments):
    """Return the bits of all variants, trained by a fresh process with its own cache of compiled kernels."""
    done = subprocess.run([sys.executable, "-c", PROCESS, *map(str, arguments)], cwd=repository, check=True,
                          capture_output=True, text=True, env={**os.environ, "NUMBA_CACHE_DIR": str(cache)})
    return json.loads(done.stdout)


def test_kernels_just_compiled_and_kernels_from_the_cache_give_the_same_bits(city, tmp_path, repository):
    cache = tmp_path / "cache"
    compiled = in_a_process(repository, cache, city, tmp_path / "compiled", 1)
    n_files = sum(path.is_file() for path in cache.rglob("*"))
    assert n_files > 20
    loaded = in_a_process(repository, cache, city, tmp_path / "loaded", min(2, numba.config.NUMBA_NUM_THREADS))
    assert sum(path.is_file() for path in cache.rglob("*")) == n_files  # nothing was compiled again
    assert loaded == compiled
