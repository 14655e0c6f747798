"""The suite of several ranks, started from here on MPICH and Open MPI: one summary, no singletons, no hang."""

import re
import shutil
import sys

import pytest

from tests.launch.launchers import LAUNCHERS

COMMAND = (sys.executable, "-m", "pytest", "--with-mpi", "--timeout-method=thread", "--color=no", "-p",
           "no:cacheprovider")
SUMMARY = re.compile(r"^(?:=+ )?((?:\d+ \w+, )*\d+ (?:passed|failed|skipped)[^=\n]*?) in [\d.]+s", re.M)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mpi, n", [("mpich", 1), ("mpich", 2), ("mpich", 4), ("openmpi", 2)])
def test_the_suite_of_ranks_passes(repository, mpi, n):
    done = LAUNCHERS[mpi]().run(n, *COMMAND, "tests/mpi", cwd=repository, timeout=1100,
                                environment={"GAIAN_MPI_TESTS": str(n)})
    assert done.returncode == 0, done.stdout[-6000:]
    summaries = SUMMARY.findall(done.stdout)
    assert len(summaries) == 1 and "passed" in summaries[0] and "failed" not in summaries[0], done.stdout[-3000:]


@pytest.fixture
def suite(repository, tmp_path):
    """Return a function that runs a test module, with the suite's own conftest, on two ranks."""
    shutil.copy(repository / "tests/mpi/conftest.py", tmp_path / "conftest.py")

    def run(source, *options):
        (tmp_path / "test_it.py").write_text(f"import pytest, time\npytestmark = pytest.mark.mpi\n{source}\n")
        return LAUNCHERS["mpich"]().run(2, *COMMAND, "-c", "/dev/null", "--rootdir", ".", *options, "test_it.py",
                                        cwd=tmp_path, timeout=60, environment={"GAIAN_MPI_TESTS": "2"})
    return run


def test_a_failure_on_one_rank_fails_all_in_one_summary(suite):
    done = suite("def test_it(world):\n    assert world.rank == 0")
    assert done.returncode != 0
    assert SUMMARY.findall(done.stdout) == ["1 failed"]
    assert "[rank 1]" in done.stdout


def test_a_rank_that_never_comes_is_not_waited_for_for_ever(suite):
    source = "def test_it(world):\n    if world.rank:\n        time.sleep(1000)\n    world.barrier()"
    done = suite(source, "--timeout=5")
    assert done.returncode != 0


def test_a_launcher_of_another_mpi_is_noticed(repository):
    done = LAUNCHERS["mpich"]().run(2, *COMMAND, "tests/mpi/test_world.py", cwd=repository,
                                    environment={"GAIAN_MPI_TESTS": "2", **LAUNCHERS["openmpi"]().environment})
    assert done.returncode != 0 and "MPI sees 1" in done.stdout
