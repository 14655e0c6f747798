"""Ordered messages between ranks over one-sided MPI: no receiver has to be inside a receive (Odin's transport).

Each rank has one window, allocated by MPI, with a ring of bytes for every other rank that writes to it, and two
counters for each: *tail*, the bytes its writer has put into the ring so far, and *head*, the bytes that the reader at
the other side has taken out of this rank's own messages to it. Only the writer of a ring raises its tail, only its
reader raises its head.

Why this is correct under MPI's rules, in the separate as in the unified memory model, and without progress that MPI
does not promise:

- One epoch (``Lock_all``) lasts as long as the window. A writer puts bytes only where the reader has taken them out:
  between the head it has read and one ring's length beyond. So no byte is ever read and written at once.
- ``Put``, then ``Flush``: the bytes are in the target's public copy. Only then the tail is raised, by ``Accumulate``
  with ``REPLACE``. Accumulates of one writer to one counter are applied in order, so no counter ever falls.
- ``Flush`` waits for the target, which over TCP answers only when it enters MPI. So a writer to another host never
  flushes before it has reason to believe that there is nothing to wait for: behind what it put it begins to read a
  word of the target, and flushes when that has come. Where the network does not keep order, the flush waits longer,
  and the tail is still raised only after it.
- A reader reads counters by ``Get_accumulate`` with ``NO_OP`` from its own window: atomic with the writers'
  accumulates, element by element. Having seen a tail it calls ``Win.Sync``, which brings the public copy into the
  private one; what it then loads are the bytes that were flushed before the tail was raised.
- Nothing happens at a target that does not enter MPI (over TCP both MPICH and Open MPI move nothing until it does).
  Every :meth:`Channels.pump` enters MPI, and a rank that waits pumps; so two ranks that wait for each other always
  progress.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..backends.memory import free_memory
from .ledger import Ledger
from .world import ALIGNMENT, AgreedError, World, aligned

_HEADER = 4  # int64 of a message: bytes, kind, unit, part
CHUNK = 1 << 16
"""Bytes put at once to another host: enough to keep a cable busy between two looks (measured, README), few enough
to leave at once."""
CREDIT = 4  # a reader tells its head when a ring is this fraction consumed


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it arrives.

    Attributes
    ----------
    src, kind, unit, part : int
    data : (n,) uint8
        Its pieces, each from a multiple of the alignment on.
    """

    src: int
    kind: int
    unit: int
    part: int
    data: np.ndarray


class Channels:
    """Collective. Rings between all ranks of a world; close them together, or use as a context manager.

    Parameters
    ----------
    world : World
    ring_bytes : int
        Bytes of each ring; a rank's window has one for every other rank. Longer messages pass in parts.
    ledger : Ledger, optional
        Where bytes are counted, by the phase that :meth:`post` names.

    Raises
    ------
    ExchangeError
        If MPI cannot allocate the windows; names what was asked for.
    """

    def __init__(self, world: World, ring_bytes: int, ledger: Ledger | None = None):
        self._world, self._ring = world, max(aligned(ring_bytes), 64)
        self._ledger, self._links = ledger, world.links()
        self._delivered: deque[Message] = deque()
        self._window = None
        if world.size > 1:
            self._open()

    def __enter__(self) -> Channels:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def window_bytes(self) -> int:
        """Bytes of this rank's window."""
        return self._world.size * (16 + self._ring) + 8 if self._world.size > 1 else 0

    @property
    def idle(self) -> bool:
        """Whether all that was posted here has arrived."""
        return self._world.size == 1 or not any(lane.queue or lane.answer is not None for lane in self._lanes)

    def post(self, dst: int, kind: int, unit: int, part: int, pieces: Sequence[np.ndarray], phase: str = "") -> None:
        """Queue a message of ``pieces`` (n,) uint8 to ``dst``; they must not be written to any more."""
        n_bytes = sum(aligned(len(p)) for p in pieces)
        if self._ledger is not None and phase:
            self._ledger.add(phase, np.array([n_bytes]), self._links[dst:dst + 1])
        if dst == self._world.rank:
            data = np.concatenate([_padded(p) for p in pieces]) if pieces else np.empty(0, np.uint8)
            self._delivered.append(Message(dst, kind, unit, part, data))
            return
        header = np.array([n_bytes, kind, unit, part], np.int64).view(np.uint8)
        self._lanes[dst].queue.extend([header, *(_padded(p) for p in pieces if len(p))])

    def pump(self) -> list[Message]:
        """Send what fits, receive what is there, and return all messages that have arrived whole.

        Never waits for other hosts as long as their network keeps order.
        """
        if self._window is not None:
            self._window.read_counters()
            self._receive()
            for lane in self._lanes:
                self._send(lane)
        messages = list(self._delivered)
        self._delivered.clear()
        return messages

    def close(self) -> None:
        """Collective. Free the windows."""
        if self._window is not None:
            for lane in self._lanes:
                if lane.answer is not None:
                    lane.answer.Wait()
            self._window.free()
            self._window = None

    def _open(self) -> None:
        from .window import RingWindow

        world, size = self._world, self._world.size
        # MPI gives out shared memory that is not there, and the first who writes to it dies.
        fits = world.collect(self.window_bytes * world.local_size < free_memory())
        if all(fits):
            try:
                self._window = RingWindow(world, self._ring)
            except MemoryError:
                pass
            fits = world.collect(self._window is not None)
        if not all(fits):
            raise AgreedError(f"rank {fits.index(False)} of {size}: MPI cannot allocate a window of "
                              f"{self.window_bytes / 2**20:.0f} MiB ({size} rings of {self._ring / 2**20:.2f} MiB); "
                              "lower --pipeline.window_mb", 1)
        self._lanes = [_Lane(dst, bool(self._links[dst] < 2)) for dst in range(size)]
        self._inboxes = [_Inbox(src) for src in range(size)]
        self._taken = np.zeros(size, np.int64)
        self._told = np.zeros(size, np.int64)

    def _send(self, lane: _Lane) -> None:
        """Take a lane one step on: see what has arrived, announce it, and put the next bytes that have room."""
        window, dst = self._window, lane.dst
        if lane.answer is not None:
            if not lane.answered:
                lane.answered = lane.answer.Test()
                return  # a flush right behind an answer still waits for acknowledgements: leave it to the next call
            window.flush(dst)
            lane.answer = None
        if lane.written > lane.told:
            lane.told = lane.written
            window.raise_tail(dst, lane.told)
            lane.has_begun = True
        room = self._ring - int(lane.written - window.heads[dst])
        if lane.queue and room >= ALIGNMENT:
            data = lane.take(room if lane.is_near else min(room, CHUNK))
            window.put(dst, lane.written, data)
            lane.written += len(data)
            lane.has_begun = True
        if not lane.has_begun:
            return
        if lane.is_near:
            window.flush(dst)
            if lane.written > lane.told:
                lane.told = lane.written
                window.raise_tail(dst, lane.told)
                window.flush(dst)
        else:
            lane.answer, lane.answered = window.ask(dst), False
        lane.has_begun = False

    def _receive(self) -> None:
        """Take out of the rings what their writers have announced."""
        window = self._window
        for src in np.flatnonzero(window.tails > self._taken).tolist():
            n = int(window.tails[src] - self._taken[src])
            self._inboxes[src].append(window.take(src, int(self._taken[src]), n), self._delivered)
            self._taken[src] += n
            if self._taken[src] - self._told[src] >= self._ring // CREDIT:
                self._told[src] = self._taken[src]
                window.raise_head(src, int(self._taken[src]))
                self._lanes[src].has_begun = True


@dataclass(slots=True)
class _Lane:
    """What is on its way to one rank.

    Attributes
    ----------
    dst : int
    is_near : bool
        Whether the rank is on this host, where MPI needs nobody's help to write into its memory.
    queue : deque of (n,) uint8
        Bytes to put.
    written, told : int
        Bytes put so far, and those of them that its tail tells of.
    has_begun : bool
        Whether something was begun since :attr:`answer` was asked for.
    answer : MPI.Request or None
        Completes when all that was begun before has very likely arrived.
    answered : bool
    """

    dst: int
    is_near: bool
    queue: deque[np.ndarray] = field(default_factory=deque)
    written: int = 0
    told: int = 0
    has_begun: bool = False
    answer: Any = None
    answered: bool = False

    def take(self, n: int) -> np.ndarray:
        """Take the first ``n`` bytes out of the queue, or as many as there are."""
        parts = []
        while self.queue and n > 0:
            piece = self.queue.popleft()
            if len(piece) > n:
                self.queue.appendleft(piece[n:])
                piece = piece[:n]
            parts.append(piece)
            n -= len(piece)
        return np.concatenate(parts)


class _Inbox:
    """Puts the bytes of one source together to messages."""

    def __init__(self, src: int):
        self._src = src
        self._header: np.ndarray | None = None
        self._buffer = np.empty(8 * _HEADER, np.uint8)
        self._filled = 0

    def append(self, data: np.ndarray, out: deque[Message]) -> None:
        """Take bytes in; whole messages go to ``out``."""
        at = 0
        while True:
            n = min(len(self._buffer) - self._filled, len(data) - at)
            self._buffer[self._filled:self._filled + n] = data[at:at + n]
            self._filled += n
            at += n
            if self._filled < len(self._buffer):
                return
            self._next(out)

    def _next(self, out: deque[Message]) -> None:
        self._filled = 0
        if self._header is None:
            self._header = self._buffer.view(np.int64)
            self._buffer = np.empty(int(self._header[0]), np.uint8)
            if len(self._buffer):
                return
        _, kind, unit, part = self._header.tolist()
        out.append(Message(self._src, kind, unit, part, self._buffer))
        self._header, self._buffer = None, np.empty(8 * _HEADER, np.uint8)


def _padded(piece: np.ndarray) -> np.ndarray:
    """Return the bytes of a piece up to the next multiple of the alignment."""
    n = len(piece)
    if n % ALIGNMENT == 0:
        return piece
    out = np.zeros(aligned(n), np.uint8)
    out[:n] = piece
    return out
