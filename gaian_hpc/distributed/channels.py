"""Ordered messages between ranks over one-sided MPI: no receiver has to be inside a receive (Odin's transport).

Each rank has one window, allocated by MPI, with a ring of bytes for every other rank that writes to it. Bytes come in
frames: a number, a length and a checksum of the bytes, a checksum of these three, then the bytes. For each rank that it
writes to, a rank has a *head* in its own window: how many bytes that rank has taken out so far, with a checksum.

Why this is correct under MPI's rules, and without progress that MPI does not promise:

- One epoch (``Lock_all``) lasts as long as the window. A writer puts a frame only where the reader has taken all bytes
  out: between the head it has read and one ring's length beyond. So no byte is ever read for good and written at once.
- *Unified model* (MPICH and Open MPI say that theirs is). Put bytes become visible to loads after ``Win.Sync`` in any
  order and in pieces, some time. MPI allows such loads; only their value is not known. So a reader believes a frame
  only when it has the number that is due and both checksums are right; else it looks again later. The checksum
  begins with the number: what an earlier lap left in the ring is never taken for the frame that is due. A head is
  believed when its checksum is right and it is higher than before. Nothing is flushed, so no writer ever waits for the
  target, which over TCP answers only when it enters MPI; the memory of a frame is used again when the request of its
  ``Rput`` is done.
- *Separate model*. Loads must not meet puts. After a ``Put`` follows ``Flush``: the bytes are in the target's public
  copy. Only then the *tail* there, the bytes written so far, is raised by ``Accumulate`` with ``REPLACE``, and flushed.
  The reader reads its tails by ``Get_accumulate`` with ``NO_OP``, atomically with those who raise them, calls
  ``Win.Sync``, which brings the public copy into the private one, and looks at frames below the tail only. Heads
  are put, and read under their checksum, only after such a ``Win.Sync``.
- Nothing happens at a target that does not enter MPI (over TCP both MPICH and Open MPI move nothing until it does).
  Every :meth:`Channels.pump` enters MPI, or a thread does all the time, and a rank that waits pumps; so two ranks
  that wait for each other always progress.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..backends.memory import free_memory
from .ledger import Ledger
from .world import ALIGNMENT, AgreedError, World, aligned

FRAME = 32  # bytes of the header of a frame; rings are multiples of it
_HEADER = 4  # int64 of a message: bytes, kind, unit, part


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
    progress : bool
        Move bytes in a thread of its own, while Python and kernels run.
    separate : bool
        Keep to the rules of MPI's separate memory model even where MPI says that its memory is unified.

    Raises
    ------
    ExchangeError
        If MPI cannot allocate the windows (names what was asked for), or allows no calls from a second thread.
    """

    def __init__(self, world: World, ring_bytes: int, ledger: Ledger | None = None, progress: bool = False,
                 separate: bool = False):
        self._world, self._ring, self._separate = world, max(_framed(ring_bytes), 8 * FRAME), separate
        self._ledger, self._links = ledger, world.links()
        self._delivered: deque[Message] = deque()
        self._window = None
        if world.size > 1:
            self._open(progress)

    def __enter__(self) -> Channels:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def window_bytes(self) -> int:
        """Bytes of this rank's window."""
        return _framed(24 * self._world.size) + self._world.size * self._ring if self._world.size > 1 else 0

    @property
    def idle(self) -> bool:
        """Whether all that was posted here is on its way, so that it arrives while this rank waits inside MPI."""
        return self._window is None or self._window.idle

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
        self._window.send(dst, np.concatenate([header, *(_padded(p) for p in pieces)]))

    def pump(self) -> list[Message]:
        """Send what fits, receive what is there, and return all messages that have arrived whole.

        Never waits for other hosts as long as their network keeps order.
        """
        if self._window is not None:
            for src in self._window.pump().tolist():
                for frame in self._window.take(src):
                    self._inboxes[src].append(frame, self._delivered)
        messages = list(self._delivered)
        self._delivered.clear()
        return messages

    def close(self) -> None:
        """Collective. Free the windows."""
        if self._window is not None:
            self._window.free()
            self._window = None

    def _open(self, progress: bool) -> None:
        from .window import RingWindow

        world, size = self._world, self._world.size
        # MPI gives out shared memory that is not there, and the first who writes to it dies.
        fits = world.collect(self.window_bytes * world.local_size < free_memory())
        if all(fits):
            try:
                self._window = RingWindow(world, self._ring, self._separate)
            except MemoryError:
                pass
            fits = world.collect(self._window is not None)
        if not all(fits):
            raise AgreedError(f"rank {fits.index(False)} of {size}: MPI cannot allocate a window of "
                              f"{self.window_bytes / 2**20:.0f} MiB ({size} rings of {self._ring / 2**20:.2f} MiB); "
                              "lower --pipeline.window_mb", 1)
        self._inboxes = [_Inbox(src) for src in range(size)]
        if progress:
            self._window.engine.start()


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


def _framed(n: int) -> int:
    return -(-n // FRAME) * FRAME


def _padded(piece: np.ndarray) -> np.ndarray:
    """Return the bytes of a piece up to the next multiple of the alignment."""
    n = len(piece)
    if n % ALIGNMENT == 0:
        return piece
    out = np.zeros(aligned(n), np.uint8)
    out[:n] = piece
    return out
