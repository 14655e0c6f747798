"""Two hosts on one machine, as network namespaces: what crosses the wire is what the program says."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.launch.launchers import LAUNCHERS

GAIAN = (sys.executable, "-m", "gaian_hpc.cli")
HOSTS = {"gaianA": "10.77.1.1", "gaianB": "10.77.1.2"}
DEVICE = "gaian0"
AGENT = """#!/bin/bash
while [[ "$1" == -* ]]; do shift; done; host=$1; shift
case $host in 10.77.1.1) space=gaianA;; 10.77.1.2) space=gaianB;; *) exit 1;; esac
exec ip netns exec $space unshare -u sh -c "hostname $space; $*"
"""


def ip(*words: str, space: str | None = None, check: bool = True) -> str:
    command = [*(("ip", "netns", "exec", space) if space else ()), *words]
    return subprocess.run(command, check=check, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """Return the stand-in for ssh between two namespaces that a virtual cable joins."""
    if os.getuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and iproute2: apt-get install iproute2")
    for space in HOSTS:
        ip("ip", "netns", "del", space, check=False)
    try:
        for space in HOSTS:
            ip("ip", "netns", "add", space)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
    first, second = HOSTS
    ip("ip", "link", "add", DEVICE, "netns", first, "type", "veth", "peer", "name", DEVICE, "netns", second)
    for space, address in HOSTS.items():
        ip("sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6", space=space, check=False)
        ip("ip", "addr", "add", f"{address}/24", "dev", DEVICE, space=space)
        ip("ip", "link", "set", "lo", "up", space=space)
        ip("ip", "link", "set", DEVICE, "up", space=space)
    deadline = time.monotonic() + 10  # an MPI that starts before the cable is up sees the loopback only
    while any(ip("cat", f"/sys/class/net/{DEVICE}/operstate", space=s).strip() != "up" for s in HOSTS):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(1)
    agent = tmp_path_factory.mktemp("hosts") / "agent"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    yield agent
    for space in HOSTS:
        ip("ip", "netns", "del", space, check=False)


def command_of(mpi: str, agent: Path, n: int) -> tuple[list[str], dict[str, str]]:
    """Return the launch of ``n`` ranks on each host, and its environment."""
    launcher = LAUNCHERS[mpi]()
    addresses = list(HOSTS.values())
    if mpi == "mpich":
        words = ["-launcher", "ssh", "-launcher-exec", str(agent), "-localhost", addresses[0], "-hosts",
                 ",".join(addresses), "-ppn", str(n), "-n", str(2 * n)]
        for name, value in (("UCX_TLS", "tcp,self"), ("UCX_NET_DEVICES", DEVICE), ("FI_TCP_IFACE", DEVICE),
                            ("FI_PROVIDER", "tcp"), ("MPIR_CVAR_CH4_NETMOD", "ucx")):
            words += ["-genv", name, value]
    else:
        words = ["--prtemca", "plm_ssh_agent", str(agent), "--host", ",".join(f"{a}:{n}" for a in addresses), "-n",
                 str(2 * n), "--map-by", "node", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1", "--mca",
                 "pml", "ob1", "--mca", "btl", "tcp,self,sm", "--mca", "btl_tcp_if_include", "10.77.1.0/24",
                 "--prtemca", "prte_if_include", "10.77.1.0/24"]
        for name in ("MPI4PY_MPIABI", "MPI4PY_LIBMPI", "LD_LIBRARY_PATH"):
            words += ["-x", name]
    start = ["ip", "netns", "exec", "gaianA", "unshare", "-u", "sh", "-c", 'hostname gaianA; exec "$@"', "sh"]
    return [*start, str(launcher.mpirun), *words], {**os.environ, **launcher.environment}


def wire_bytes() -> int:
    """Return the bytes that have left either host so far."""
    return sum(int(ip("cat", f"/sys/class/net/{DEVICE}/statistics/tx_bytes", space=s)) for s in HOSTS)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mpi, n, codec", [("mpich", 1, "fp32"), ("mpich", 2, "fp16"), ("openmpi", 1, "fp32")])
def test_the_wire_carries_what_the_program_says(hosts, shared_dir, tmp_path, mpi, n, codec):
    words, environment = command_of(mpi, hosts, n)
    run = tmp_path / "run"
    before = wire_bytes()
    done = subprocess.run(
        [*words, *GAIAN, "train", str(shared_dir / "data/fox"), "-o", str(run), "--steps", "60", "--threads", "1",
         "--log_every", "1", "--data.factor", "2", "--data.test_every", "0", "--placement.method", "random",
         "--exchange.codec", codec], env=environment, capture_output=True, text=True, timeout=400, check=False)
    carried = wire_bytes() - before
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert f"on {2 * n} ranks of 2 hosts" in done.stderr
    lines = [json.loads(line)["exchange"] for line in (run / "metrics.jsonl").read_text().splitlines()
             if '"exchange"' in line]
    said = sum(phase["other_host"] for line in lines for phase in line.values())
    assert said > 10e6
    print(f"{said:,} bytes by the program, {carried:,} on the wire")
    assert said <= carried <= 1.1 * said, f"{said:,} bytes by the program, {carried:,} on the wire"
    within = sum(phase["same_host"] for line in lines for phase in line.values())
    assert (within > 0) == (n > 1)
