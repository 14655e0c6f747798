"""The memory that messages are laid out in: the one place that decides between device pointers and staging."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .world import LINE, aligned


class Buffers:
    """Lays out messages for MPI, and takes them apart.

    Parameters
    ----------
    xp : module
        ``numpy``, or ``cupy`` where the arrays that cross ranks live on a device.
    direct : bool
        Whether MPI takes pointers of that memory. If not, messages of a device are staged in host memory: copied
        there to be sent, and back when received.
    synchronize : callable
        Waits until the device has written what is to be sent; called before MPI reads device memory.
    """

    def __init__(self, xp: Any = np, direct: bool = True, synchronize: Callable[[], None] | None = None):
        self._arrays = xp
        self._memory = xp if direct else np
        self._synchronize = synchronize

    def empty(self, n_lines: int) -> Any:
        """Return memory for ``n_lines`` lines, (n · LINE,) uint8, that MPI can write to."""
        return self._memory.empty(n_lines * LINE, np.uint8)

    def joined(self, messages: Sequence[Sequence[Any]], starts: np.ndarray, n_lines: int) -> Any:
        """Return messages one after another, each from its line on, its pieces at multiples of the alignment.

        Parameters
        ----------
        messages : sequence of sequence of (n,) uint8
        starts : (R,) int64
            First line of each.
        n_lines : int
            Lines of all.
        """
        out = self.empty(n_lines)
        for start, pieces in zip(starts.tolist(), messages, strict=True):
            at = start * LINE
            for piece in pieces:
                out[at:at + len(piece)] = self._outgoing(piece)
                at += aligned(len(piece))
        if self._synchronize is not None and self._memory is self._arrays:
            self._synchronize()
        return out

    def part(self, memory: Any, start: int, n_bytes: int) -> Any:
        """Return the bytes of one received message as the arrays' own kind, from line ``start`` on."""
        data = memory[start * LINE:start * LINE + n_bytes]
        return data if self._memory is self._arrays else self._arrays.asarray(data)

    def _outgoing(self, piece: Any) -> Any:
        """Return a piece in the memory that messages are laid out in."""
        if self._memory is self._arrays or isinstance(piece, np.ndarray):
            return piece
        return piece.get()
