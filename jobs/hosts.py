"""Two hosts on one machine, for benches and tests: namespaces joined by a virtual cable whose rate can be set."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gaian_hpc.errors import BackendError

SPACES = {"gaianA": "10.77.1.1", "gaianB": "10.77.1.2"}
DEVICE = "gaian0"
NETWORK = "10.77.1.0/24"
AGENT = """#!/bin/bash
while [[ "$1" == -* ]]; do shift; done; host=$1; shift
case $host in 10.77.1.1) space=gaianA;; 10.77.1.2) space=gaianB;; *) exit 1;; esac
exec ip netns exec $space unshare -u sh -c "hostname $space; $*"
"""


@dataclass(frozen=True, slots=True)
class TwoHosts:
    """The pair of hosts; ``agent`` stands in for ssh between them."""

    agent: Path

    def mpich(self, mpirun: str, ranks: int) -> list[str]:
        """Return the words that start ``ranks`` ranks on each host with MPICH."""
        addresses = list(SPACES.values())
        words = [mpirun, "-launcher", "ssh", "-launcher-exec", str(self.agent), "-localhost", addresses[0], "-hosts",
                 ",".join(addresses), "-ppn", str(ranks), "-n", str(2 * ranks)]
        for name, value in (("UCX_TLS", "tcp,self"), ("UCX_NET_DEVICES", DEVICE), ("FI_TCP_IFACE", DEVICE),
                            ("FI_PROVIDER", "tcp"), ("MPIR_CVAR_CH4_NETMOD", "ucx")):
            words += ["-genv", name, value]
        return self._within(words)

    def openmpi(self, mpirun: str, ranks: int, passed_on: tuple[str, ...] = ()) -> list[str]:
        """Return the words that start ``ranks`` ranks on each host with Open MPI; variables to pass on by name."""
        hosts = ",".join(f"{address}:{ranks}" for address in SPACES.values())
        words = [mpirun, "--prtemca", "plm_ssh_agent", str(self.agent), "--host", hosts, "-n", str(2 * ranks),
                 "--map-by", "node", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1", "--mca", "pml", "ob1",
                 "--mca", "btl", "tcp,self,sm", "--mca", "btl_tcp_if_include", NETWORK, "--prtemca",
                 "prte_if_include", NETWORK]
        for name in passed_on:
            words += ["-x", name]
        return self._within(words)

    def shape(self, rate: str) -> None:
        """Limit the cable to ``rate``, as ``tc`` writes it (200mbit), in each direction; an empty one lifts it."""
        for space in SPACES:
            _run("ip", "netns", "exec", space, "tc", "qdisc", "del", "dev", DEVICE, "root", check=False)
            if rate:
                _run("ip", "netns", "exec", space, "tc", "qdisc", "add", "dev", DEVICE, "root", "tbf", "rate", rate,
                     "burst", "32kb", "latency", "50ms")

    def sent(self) -> int:
        """Return the bytes that have left either host so far."""
        path = f"/sys/class/net/{DEVICE}/statistics/tx_bytes"
        return sum(int(_run("ip", "netns", "exec", space, "cat", path)) for space in SPACES)

    @staticmethod
    def _within(words: list[str]) -> list[str]:
        return ["ip", "netns", "exec", next(iter(SPACES)), "unshare", "-u", "sh", "-c",
                f'hostname {next(iter(SPACES))}; exec "$@"', "sh", *words]


@contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    """Make two hosts and take them away again.

    Raises
    ------
    BackendError
        Without root, iproute2 or a kernel that has network namespaces.
    """
    if os.getuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        raise BackendError("two hosts on one machine need root and iproute2; apt-get install iproute2, or run as root")
    _remove()
    try:
        _make()
        with tempfile.TemporaryDirectory() as folder:
            agent = Path(folder) / "agent"
            agent.write_text(AGENT)
            agent.chmod(0o755)
            yield TwoHosts(agent)
    finally:
        _remove()


def _make() -> None:
    for space in SPACES:
        _run("ip", "netns", "add", space)
    first, second = SPACES
    _run("ip", "link", "add", DEVICE, "netns", first, "type", "veth", "peer", "name", DEVICE, "netns", second)
    for space, address in SPACES.items():
        within = ("ip", "netns", "exec", space)
        _run(*within, "sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6", check=False)
        _run(*within, "ip", "addr", "add", f"{address}/24", "dev", DEVICE)
        _run(*within, "ip", "link", "set", "lo", "up")
        _run(*within, "ip", "link", "set", DEVICE, "up")
    deadline = time.monotonic() + 10  # an MPI that starts before the cable is up sees the loopback only
    state = f"/sys/class/net/{DEVICE}/operstate"
    while any(_run("ip", "netns", "exec", s, "cat", state).strip() != "up" for s in SPACES):
        if time.monotonic() > deadline:
            raise BackendError("the virtual cable between two namespaces does not come up")
        time.sleep(0.1)
    time.sleep(1)


def _remove() -> None:
    for space in SPACES:
        _run("ip", "netns", "del", space, check=False)


def _run(*words: str, check: bool = True) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise BackendError(f"two hosts on one machine: {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
