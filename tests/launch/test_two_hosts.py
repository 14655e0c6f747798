"""Two hosts on one machine, as network namespaces: what crosses the wire is what the program says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gaian_hpc.errors import BackendError
from gaian_hpc.jobs.hosts import TwoHosts, two_hosts
from tests.launch.launchers import LAUNCHERS

GAIAN = (sys.executable, "-m", "gaian_hpc.cli")
LIBRARY = ("MPI4PY_MPIABI", "MPI4PY_LIBMPI", "LD_LIBRARY_PATH")


@pytest.fixture(scope="module")
def hosts():
    """Return two hosts that a virtual cable joins."""
    try:
        with two_hosts() as pair:
            yield pair
    except BackendError as error:
        pytest.skip(str(error))


def command_of(mpi: str, hosts: TwoHosts, n: int) -> tuple[list[str], dict[str, str]]:
    """Return the launch of ``n`` ranks on each host, and its environment."""
    launcher = LAUNCHERS[mpi]()
    words = (hosts.mpich(str(launcher.mpirun), n) if mpi == "mpich" else
             hosts.openmpi(str(launcher.mpirun), n, LIBRARY))
    return words, {**os.environ, **launcher.environment}


def bytes_said(run: Path) -> tuple[int, int]:
    """Return the bytes between hosts and within them that a run told of."""
    lines = [json.loads(line)["exchange"] for line in (run / "metrics.jsonl").read_text().splitlines()
             if '"exchange"' in line]
    return tuple(sum(phase[link] for line in lines for phase in line.values()) for link in ("other_host", "same_host"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mpi, n, codec, sync", [
    ("mpich", 1, "fp32", "barrier"), ("mpich", 2, "fp16", "barrier"), ("openmpi", 1, "fp32", "barrier"),
    ("mpich", 1, "fp32", "quality"), ("openmpi", 1, "fp32", "quality")])
def test_the_wire_carries_what_the_program_says(hosts, shared_dir, tmp_path, mpi, n, codec, sync):
    words, environment = command_of(mpi, hosts, n)
    run, before = tmp_path / "run", hosts.sent()
    done = subprocess.run(
        [*words, *GAIAN, "train", str(shared_dir / "data/fox"), "-o", str(run), "--steps", "60", "--threads", "1",
         "--log_every", "1", "--data.factor", "2", "--data.test_every", "0", "--placement.method", "random",
         "--exchange.codec", codec, "--sync", sync], env=environment, capture_output=True, text=True, timeout=400,
        check=False)
    carried = hosts.sent() - before
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert f"on {2 * n} ranks of 2 hosts" in done.stderr
    said, within = bytes_said(run)
    print(f"{said:,} bytes by the program, {carried:,} on the wire")
    assert said > 10e6
    assert said <= carried <= 1.1 * said, f"{said:,} bytes by the program, {carried:,} on the wire"
    assert (within > 0) == (n > 1)
