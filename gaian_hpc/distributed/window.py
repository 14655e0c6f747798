"""The MPI window of :mod:`.channels`: counters and rings, one epoch long."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from .mpi import MpiWorld


class RingWindow:
    """A rank's counters and rings, and access to those of the others.

    Layout, in bytes: tails (R, int64), heads (R, int64), a word that nobody writes, then R rings; entry r of each
    belongs to rank r.

    Parameters
    ----------
    world : MpiWorld
    ring_bytes : int

    Attributes
    ----------
    tails, heads : (R,) int64
        As last read by :meth:`read_counters`.

    Raises
    ------
    MemoryError
        If MPI cannot allocate it.
    """

    def __init__(self, world: MpiWorld, ring_bytes: int):
        self._size, self._ring, self._rank = world.size, ring_bytes, world.rank
        self._rings_at = 16 * world.size + 8
        n_bytes = self._rings_at + world.size * ring_bytes
        try:
            self._win = MPI.Win.Allocate(n_bytes, 1, MPI.INFO_NULL, world.comm)
        except MPI.Exception as error:
            raise MemoryError(str(error)) from None
        self._memory = np.frombuffer(self._win.tomemory(), np.uint8)
        self._memory[:self._rings_at] = 0
        self._comm = world.comm
        self._win.Lock_all(MPI.MODE_NOCHECK)
        self._win.Sync()
        world.barrier()
        self._counters = np.zeros(2 * world.size, np.int64)
        self.tails, self.heads = self._counters[:world.size], self._counters[world.size:]
        self._lent: list[list[np.ndarray]] = [[] for _ in range(world.size)]  # what MPI may still read, by target
        self._answers = np.zeros(world.size, np.int64)

    def read_counters(self) -> None:
        """Let MPI work for others, then read this rank's own counters, atomically with those who raise them."""
        self._comm.Iprobe()  # what concerns only a rank's own memory need not enter MPI's progress
        nothing = np.empty(0, np.int64)
        n = len(self._counters)
        self._win.Get_accumulate([nothing, 0, MPI.INT64_T], [self._counters, n, MPI.INT64_T], self._rank,
                                 (0, n, MPI.INT64_T), MPI.NO_OP)
        self._win.Flush(self._rank)

    def put(self, dst: int, at: int, data: np.ndarray) -> None:
        """Begin to write bytes ``at`` … of this rank's stream into its ring at ``dst``; done after :meth:`flush`."""
        start = at % self._ring
        first = min(len(data), self._ring - start)
        base = self._rings_at + self._rank * self._ring
        self._win.Put([data[:first], first, MPI.BYTE], dst, (base + start, first, MPI.BYTE))
        if first < len(data):
            rest = len(data) - first
            self._win.Put([data[first:], rest, MPI.BYTE], dst, (base, rest, MPI.BYTE))
        self._lent[dst].append(data)

    def ask(self, dst: int) -> MPI.Request:
        """Begin to read a word of ``dst``: networks that keep order answer when what went before has arrived."""
        answer = self._answers[dst:dst + 1].view(np.uint8)
        return self._win.Rget([answer, 8, MPI.BYTE], dst, (self._rings_at - 8, 8, MPI.BYTE))

    def flush(self, dst: int) -> None:
        """Wait until all that this rank has begun at ``dst`` is done there."""
        self._win.Flush(dst)
        self._lent[dst].clear()

    def raise_tail(self, dst: int, value: int) -> None:
        """Begin to tell ``dst`` how many bytes of this rank's stream are in its ring."""
        self._set(dst, 8 * self._rank, value)

    def raise_head(self, src: int, value: int) -> None:
        """Begin to tell ``src`` how many bytes of its stream have been taken out."""
        self._set(src, 8 * (self._size + self._rank), value)

    def take(self, src: int, at: int, n: int) -> np.ndarray:
        """Return a copy of bytes ``at`` … ``at + n`` of the stream of ``src``, which its tail has announced."""
        self._win.Sync()
        base, start = self._rings_at + src * self._ring, at % self._ring
        first = min(n, self._ring - start)
        return np.concatenate([self._memory[base + start:base + start + first], self._memory[base:base + n - first]])

    def free(self) -> None:
        """Collective. End the epoch and free the window."""
        self._memory = None
        self._win.Unlock_all()
        self._win.Free()

    def _set(self, target: int, at: int, value: int) -> None:
        word = np.array([value], np.int64)
        self._win.Accumulate([word, 1, MPI.INT64_T], target, (at, 1, MPI.INT64_T), MPI.REPLACE)
        self._lent[target].append(word)
