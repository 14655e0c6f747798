"""The program beside the ranks of a host that tells which of them was killed; run by path, it needs nothing but Python.

A rank that is killed (by the kernel for its memory, most often) cannot say so itself, launchers tell a process number
at best, and they kill the other ranks before these could notice. So a process of its own waits for the end of all of
them. Arguments: what a message begins with, the number of ranks of the run, a file with a byte per rank that is one
once the rank has told why it ends, then RANK:PID for each rank of this host. It ends when its standard input does.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import socket
import sys


def watch(program: str, size: int, marks: mmap.mmap, pids: dict[int, int]) -> int:
    """Wait until a rank ends without a word, tell it and end the others; or until there is nothing more to watch."""
    rank = first_end(pids)
    if rank is None or marks[rank]:
        return 0
    print(f"{program}: error: rank {rank} of {size} ({socket.gethostname()}): process {pids[rank]} was killed; "
          "most often its host was out of memory: use more hosts, fewer ranks a host or a smaller --densify.cap, and "
          "go on with --resume", file=sys.stderr, flush=True)
    for pid in set(pids.values()) - {pids[rank]}:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return 1


def first_end(pids: dict[int, int]) -> int | None:
    """Return the rank whose process ends first, None if the standard input does before."""
    poll, ranks = select.poll(), {}
    poll.register(sys.stdin.fileno(), select.POLLIN | select.POLLHUP)
    for rank, pid in pids.items():
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return rank
        except OSError:
            return first_end_by_asking(pids, poll)  # Linux before 5.3
        ranks[descriptor] = rank
        poll.register(descriptor, select.POLLIN)
    # Ranks before the standard input, which ends with the rank that holds its other side.
    ready = sorted((d for d, _ in poll.poll()), key=lambda d: d not in ranks)
    return ranks.get(ready[0])


def first_end_by_asking(pids: dict[int, int], poll: select.poll) -> int | None:
    """As :func:`first_end`, by asking again and again."""
    while True:
        over = poll.poll(200)
        for rank, pid in pids.items():
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return rank
        if over:
            return None


def main(words: list[str]) -> int:
    """Take the arguments apart and watch."""
    program, size, path, *places = words
    with open(path, "r+b") as file:
        marks = mmap.mmap(file.fileno(), 0)
    print("ready", flush=True)
    return watch(program, int(size), marks, {int(r): int(p) for r, _, p in (place.partition(":") for place in places)})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
