"""The MPI window of :mod:`.channels`: counters and rings, one epoch long."""

from __future__ import annotations

from collections import deque

import numpy as np
from mpi4py import MPI

from .engine import HEADER, JOBS, Engine, Rings, framed
from .mpi import MpiWorld


class RingWindow:
    """A rank's counters and rings, and what it sends into those of the others.

    Layout: tails (R, int64), heads with their checksums (R, 2, int64), then R rings, all rings aligned; entry r of
    each is written by rank r.

    Parameters
    ----------
    world : MpiWorld
    ring_bytes : int
        A multiple of the length of a frame's header.
    separate : bool
        Keep to the rules of MPI's separate memory model even where MPI says that its memory is unified.

    Attributes
    ----------
    rings : Rings

    Raises
    ------
    MemoryError
        If MPI cannot allocate it.
    """

    def __init__(self, world: MpiWorld, ring_bytes: int, separate: bool = False):
        self._ring = ring_bytes
        self._rings_at = framed(24 * world.size)
        n_bytes = self._rings_at + world.size * ring_bytes
        try:
            self._win = MPI.Win.Allocate(n_bytes, 1, MPI.INFO_NULL, world.comm)
        except MPI.Exception as error:
            raise MemoryError(str(error)) from None
        self._memory = np.frombuffer(self._win.tomemory(), np.uint8)
        self._memory[:] = 0  # what is left of other windows must not look like frames
        self._win.Lock_all(MPI.MODE_NOCHECK)
        self._win.Sync()
        world.barrier()
        self._comm = world.comm.Dup()
        self.rings = Rings.of(world.size)
        unified = self._win.Get_attr(MPI.WIN_MODEL) == MPI.WIN_UNIFIED and not separate
        self.engine = Engine(self._comm, self._win, self._memory, ring_bytes, self.rings, unified)
        self._waiting: list[deque[np.ndarray]] = [deque() for _ in range(world.size)]
        self._lent: list[deque[np.ndarray]] = [deque() for _ in range(world.size)]  # what MPI may still read

    @property
    def idle(self) -> bool:
        """Whether all that was sent from here is on its way, so that it arrives while this rank waits inside MPI."""
        r = self.rings
        return not any(self._waiting) and bool((r.taken == r.posted).all()) and not r.busy.any()

    def send(self, dst: int, message: np.ndarray) -> None:
        """Queue ``message`` (n,) uint8 for the ring at ``dst``; it must not be written to any more."""
        self._waiting[dst].append(message)
        self._feed(dst)

    def pump(self) -> np.ndarray:
        """Take every ring one step on; return the sources (k,) int64 of which there are bytes."""
        self.engine.drive()
        for dst, waiting in enumerate(self._waiting):
            if waiting or self._lent[dst]:
                self._feed(dst)
        return np.flatnonzero(self.rings.whole > self.rings.consumed)

    def take(self, src: int) -> list[np.ndarray]:
        """Return copies of all whole frames of ``src``, (n,) uint8, and give their room back."""
        at, end = int(self.rings.consumed[src]), int(self.rings.whole[src])
        base, frames = self._rings_at + src * self._ring, []
        while at < end:
            start = base + at % self._ring
            n = int(self._memory[start + 8:start + 16].view(np.int64)[0])
            first = min(n, base + self._ring - start - HEADER)
            start += HEADER
            frames.append(np.concatenate([self._memory[start:start + first], self._memory[base:base + n - first]]))
            at += framed(HEADER + n)
        self.rings.consumed[src] = end
        return frames

    def free(self) -> None:
        """Collective. End the epoch and free the window."""
        self.engine.stop()
        self._memory = None
        self._win.Unlock_all()
        self._win.Free()
        self._comm.Free()

    def _feed(self, dst: int) -> None:
        """Hand messages over to the engine as far as it has places, and let go of those that it has done with."""
        r, lent, waiting = self.rings, self._lent[dst], self._waiting[dst]
        posted = int(r.posted[dst])
        while len(lent) > posted - int(r.taken[dst]):
            lent.popleft()
        while waiting and len(lent) < JOBS:
            message = waiting.popleft()
            lent.append(message)
            r.jobs[dst, posted % JOBS] = message.ctypes.data, len(message)
            posted += 1
        r.posted[dst] = posted  # last: the engine reads the places below it
