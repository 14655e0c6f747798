"""The suite of several ranks: one summary, a failure on any rank fails all, and no singletons by a wrong launcher.

Run it as ``mpirun -n 2 python -m pytest tests/mpi --with-mpi --timeout-method=thread``.
"""

import os

import pytest

from gaian_hpc.distributed.world import World, expected_ranks

WITH_RANKS = expected_ranks() > 1 or "GAIAN_MPI_TESTS" in os.environ
if WITH_RANKS:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    wanted = int(os.environ.get("GAIAN_MPI_TESTS", expected_ranks()))
    if comm.size != wanted:
        raise RuntimeError(f"{wanted} ranks were started and MPI sees {comm.size}: the launcher is of another MPI")


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    """Let rank 0 alone print."""
    if WITH_RANKS and comm.rank:
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter._tw._file = open(os.devnull, "w")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Fail a test on all ranks that failed on one, with the text of each."""
    report = (yield).get_result()
    if WITH_RANKS and comm.size > 1:
        theirs = comm.allgather((report.outcome, str(report.longrepr) if report.failed else None))
        failed = [(rank, text) for rank, (outcome, text) in enumerate(theirs) if outcome == "failed"]
        if failed:
            report.outcome = "failed"
            report.longrepr = "\n".join(f"[rank {rank}] {text}" for rank, text in failed)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    """End all ranks with the worst exit status."""
    if WITH_RANKS and comm.size > 1:
        session.exitstatus = comm.allreduce(int(exitstatus), MPI.MAX)


@pytest.fixture(scope="session")
def world() -> World:
    """Return all ranks of the suite."""
    if not WITH_RANKS or comm.size == 1:
        return World()
    from gaian_hpc.distributed.mpi import MpiWorld

    return MpiWorld(comm.size)


@pytest.fixture
def sub_world(world):
    """Return a function: the world of the first ``size`` ranks, None on the others."""
    def of(size: int) -> World | None:
        if world.size == 1 or size == 1:
            return World() if world.rank == 0 else None
        from gaian_hpc.distributed.mpi import MpiWorld

        part = world.comm.Split(0 if world.rank < size else MPI.UNDEFINED, world.rank)
        return MpiWorld(size, part) if world.rank < size else None
    return of


@pytest.fixture
def shared_tmp(world, tmp_path_factory):
    """Return a folder that all ranks see."""
    return world.broadcast(tmp_path_factory.mktemp("run") if world.is_root else None)


@pytest.fixture(scope="session")
def city(world, tmp_path_factory):
    """Return the folder of a COLMAP scene of ten 64 × 48 pictures, two of them for tests; not to be written to."""
    from gaian_hpc.backends.threads import use_threads
    from gaian_hpc.data.synthetic import write_city

    use_threads(1)
    folder = None
    if world.is_root:
        folder = write_city(tmp_path_factory.mktemp("city") / "scene", n_views=10, width=64, height=48, n_points=600,
                            spacing=4.0)
    return world.broadcast(folder)


@pytest.fixture(scope="session")
def alone(world, city, tmp_path_factory):
    """Return a function: the result of one rank, sharded and with a barrier, for some settings, computed once."""
    known = {}

    def result(changes=None, options=None):
        from tests.mpi.test_training import result_of, train

        key = repr((changes, options))
        if key not in known and world.is_root:
            run = tmp_path_factory.mktemp("alone")
            train(city, run, World(), changes, options)
            known[key] = result_of(run)
        return world.broadcast(known.get(key))
    return result
