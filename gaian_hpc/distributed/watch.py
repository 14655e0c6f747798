"""Watching over the ranks of a host: each says when it ends in good order, a process beside them tells who did not."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from ..errors import ExchangeError
from .world import World


class Watch:
    """Collective. The watch over all ranks; the first rank of each host keeps the process (:mod:`.watcher`).

    Parameters
    ----------
    world : World
    program : str
        What a message begins with.

    Raises
    ------
    ExchangeError
        If the process cannot be started.
    """

    def __init__(self, world: World, program: str):
        self._rank, self._process = world.rank, None
        host = world.hosts[world.rank]
        leader = int((world.hosts == host).argmax())
        path = ""
        if world.rank == leader:
            descriptor, path = tempfile.mkstemp(prefix="gaian-ranks-")
            os.write(descriptor, bytes(world.size))
            os.close(descriptor)
        pids, paths = zip(*world.collect((os.getpid(), path)), strict=True)
        with open(paths[leader], "r+b") as file:
            self._marks = mmap.mmap(file.fileno(), world.size)
        fault = None
        if world.rank == leader:
            places = [f"{rank}:{pid}" for rank, pid in enumerate(pids) if world.hosts[rank] == host]
            try:
                self._process = _start(program, world.size, path, places)
            except (OSError, ExchangeError) as error:
                fault = str(error)
        faults = world.collect(fault)
        if world.rank == leader:
            os.unlink(path)
        for rank, cause in enumerate(faults):
            if cause is not None:
                raise ExchangeError(f"rank {rank} of {world.size}: {cause}")

    def leave(self) -> None:
        """Say that this rank ends for a reason it has told, or because all is done."""
        self._marks[self._rank] = 1

    def close(self) -> None:
        """End the watching process, once all ranks have left."""
        if self._process is not None:
            self._process.stdin.close()
            self._process.wait()


def _start(program: str, size: int, path: str, places: list[str]) -> subprocess.Popen:
    script = Path(__file__).with_name("watcher.py")
    process = subprocess.Popen([sys.executable, "-I", "-S", str(script), program, str(size), path, *places],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               start_new_session=True)  # launchers signal whole groups of processes
    if process.stdout.readline() != b"ready\n":
        raise ExchangeError(f"the process that watches over ranks ended with code {process.wait()}; run {script} by "
                            "hand to see why")
    process.stdout.close()
    return process
