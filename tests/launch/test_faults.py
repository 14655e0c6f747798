"""Whatever goes wrong on one rank ends all of them, with one line that names the rank and the cause."""

import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from gaian_hpc.data.synthetic import write_city
from tests.launch.launchers import LAUNCHERS

GAIAN = (sys.executable, "-m", "gaian_hpc.cli")
SHORT = ("--steps", "4", "--threads", "1", "--log_every", "1", "--patch_size", "16")


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    folder = tmp_path_factory.mktemp("city") / "scene"
    return write_city(folder, n_views=10, width=64, height=48, n_points=600, spacing=4.0)


def errors_of(output: str) -> list[str]:
    """Return the lines in which gaian says what is wrong."""
    return re.findall(r"gaian \w+: error: .*", output)


def test_a_rank_that_cannot_read_its_scene_is_named_once(scene, tmp_path):
    done = LAUNCHERS["mpich"]().run_each([(1, (*GAIAN, "train", scene, "-o", tmp_path / "run", *SHORT)),
                                          (1, (*GAIAN, "train", tmp_path / "gone", "-o", tmp_path / "run", *SHORT))])
    assert done.returncode != 0
    line, = errors_of(done.stdout)
    assert re.search(r"rank 1 of 2 \(\S+\): .*gone", line) and "Traceback" not in done.stdout
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("word, first, second", [("seed", "1", "2"), ("data.init", "sfm", "random")])
def test_settings_that_differ_between_ranks_are_named(scene, tmp_path, word, first, second):
    base = (*GAIAN, "train", scene, "-o", tmp_path / "run", *SHORT, f"--{word}")
    done = LAUNCHERS["mpich"]().run_each([(1, (*base, first)), (1, (*base, second))])
    line, = errors_of(done.stdout)
    assert done.returncode != 0 and "rank 1 of 2" in line and f"setting {word.rpartition('.')[2]}" in line


def test_a_setting_that_cannot_be_is_told_once(scene, tmp_path):
    base = (*GAIAN, "train", scene, "-o", tmp_path / "run", *SHORT)
    for words, cause in ((("--exchange.codec", "int4"), "setting exchange.codec is 'int4'"),
                         (("--exchange.fields", "colours=int8"), "did you mean colors?"),
                         (("--stepz", "3"), "unknown argument --stepz")):
        done = LAUNCHERS["mpich"]().run(2, *base, *words)
        line, = errors_of(done.stdout)
        assert done.returncode == 2 and "rank 0 of 2" in line and cause in line
    done = LAUNCHERS["mpich"]().run_each([(1, base), (1, (*base, "--seed", "-1"))])
    line, = errors_of(done.stdout)
    assert done.returncode != 0 and "rank 1 of 2" in line and "setting seed is -1" in line
    assert not (tmp_path / "run").exists()


def test_ranks_may_be_told_different_numbers_of_threads(scene, tmp_path):
    base = (*GAIAN, "train", scene, "-o", tmp_path / "run", "--steps", "2", "--patch_size", "16")
    done = LAUNCHERS["mpich"]().run_each([(1, (*base, "--threads", "1")), (1, base)], timeout=120)
    assert done.returncode == 0 and "step 2:" in done.stdout


def test_outputs_that_differ_between_ranks_are_named(scene, tmp_path):
    base = (*GAIAN, "train", scene, *SHORT, "-o")
    done = LAUNCHERS["mpich"]().run_each([(1, (*base, tmp_path / "a")), (1, (*base, tmp_path / "b"))], timeout=120)
    line, = errors_of(done.stdout)
    assert done.returncode != 0 and "rank 1 of 2 has -o" in line


def test_an_output_below_a_file_is_refused_once(scene, tmp_path):
    (tmp_path / "file").write_text("")
    done = LAUNCHERS["mpich"]().run(2, *GAIAN, "train", scene, "-o", tmp_path / "file" / "run", *SHORT, timeout=120)
    line, = errors_of(done.stdout)
    assert done.returncode != 0 and "Not a directory" in line and "Traceback" not in done.stdout


def test_a_watch_that_cannot_start_ends_all_ranks(scene, tmp_path):
    program = ("import sys\nfrom gaian_hpc.distributed import watch\ndef refuse(*_):\n"
               "    raise OSError('no processes left')\n"
               "watch._start = refuse\nfrom gaian_hpc.cli import main\n"
               f"sys.exit(main(['train', {str(scene)!r}, '-o', {str(tmp_path / 'run')!r}, '--steps', '2']))")
    done = LAUNCHERS["mpich"]().run(2, sys.executable, "-c", program, timeout=120)
    assert done.returncode != 0 and all("rank 0 of 2: no processes left" in line for line in errors_of(done.stdout))


def test_versions_that_differ_between_ranks_are_named(scene, tmp_path):
    rest = ("train", str(scene), "-o", str(tmp_path / "run"), *SHORT)
    old = (sys.executable, "-c", "import sys, numba; numba.__version__ = '0.1'; from gaian_hpc.cli import main; "
                                 f"sys.exit(main({rest!r}))")
    done = LAUNCHERS["mpich"]().run_each([(1, (*GAIAN, *rest)), (1, old)])
    line, = errors_of(done.stdout)
    assert done.returncode != 0 and "rank 1 of 2 has version of numba '0.1'" in line


def test_an_mpi_without_threads_is_refused(scene, tmp_path):
    done = LAUNCHERS["mpich"]().run(2, *GAIAN, "train", scene, "-o", tmp_path / "run", *SHORT,
                                    environment={"MPI4PY_RC_THREAD_LEVEL": "single"})
    assert done.returncode != 0
    assert re.search(r"rank \d of 2: MPI \(.*\) gives no thread level", errors_of(done.stdout)[0])


def test_a_launcher_of_another_mpi_is_refused(scene, tmp_path):
    done = LAUNCHERS["mpich"]().run(2, *GAIAN, "train", scene, "-o", tmp_path / "run", *SHORT,
                                    environment=LAUNCHERS["openmpi"]().environment)
    assert done.returncode != 0
    assert re.search(r"the launcher started 2 ranks, but MPI \(Open MPI.*\) sees 1", errors_of(done.stdout)[0])
    assert not (tmp_path / "run").exists()


def test_a_fault_in_mid_run_ends_all_ranks_and_leaves_the_last_checkpoint(scene, tmp_path):
    broken = shutil.copytree(scene, tmp_path / "scene")
    pictures = sorted((broken / "images").iterdir())
    pictures[5].write_bytes(pictures[5].read_bytes()[:200])
    words = ("train", broken, "-o", tmp_path / "run", "--steps", "30", "--threads", "1", "--patch_size", "16",
             "--checkpoint.every", "1", "--data.prefetch", "0")
    done = LAUNCHERS["mpich"]().run(3, *GAIAN, *words)
    assert done.returncode != 0
    lines = errors_of(done.stdout)
    assert lines and all(re.search(r"rank \d of 3 \(\S+\): .*" + re.escape(pictures[5].name), line) for line in lines)
    inspected = LAUNCHERS["mpich"]().run(1, *GAIAN, "inspect", tmp_path / "run", "--digest")
    assert inspected.returncode == 0 or "no checkpoint" in inspected.stdout or "no such" in inspected.stdout


@pytest.mark.parametrize("mpi", LAUNCHERS)
def test_a_rank_that_dies_takes_the_others_with_it(scene, tmp_path, mpi):
    words = (*GAIAN, "train", scene, "-o", tmp_path / "run", "--steps", "100000", "--threads", "1", "--log_every", "1")
    process = LAUNCHERS[mpi]().start([(3, words)])
    deadline = time.monotonic() + 120
    try:
        while not (tmp_path / "run/metrics.jsonl").exists():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.2)
        os.kill(ranks_of(str(tmp_path / "run"))[1], signal.SIGKILL)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode != 0
    line, = errors_of(output)
    assert re.search(r"rank 1 of 3 \(\S+\): process \d+ was killed", line)
    time.sleep(1)
    assert ranks_of(str(tmp_path / "run")) == {}


def ranks_of(run: str) -> dict[int, int]:
    """Return the process of each rank that trains into ``run``, launchers left out."""
    found = {}
    for entry in os.listdir("/proc"):
        try:
            words, variables = (Path(f"/proc/{entry}/{name}").read_text(errors="replace").split("\0")
                                for name in ("cmdline", "environ"))
        except (OSError, ValueError):
            continue
        rank = [v.partition("=")[2] for v in variables if v.startswith(("PMI_RANK=", "OMPI_COMM_WORLD_RANK="))]
        if entry.isdigit() and words[:1] == [sys.executable] and run in words and rank:
            found[int(rank[0])] = int(entry)
    return found


def test_programs_of_one_rank_refuse_several(scene, tmp_path):
    done = LAUNCHERS["mpich"]().run(2, *GAIAN, "evaluate", tmp_path)
    assert done.returncode != 0 and "started on 2 ranks" in errors_of(done.stdout)[0]
