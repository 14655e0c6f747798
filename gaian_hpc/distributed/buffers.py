"""The memory that messages are laid out in: the one place that decides between device pointers and staging."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..backends.host import HOST, Host
from .world import LINE, aligned

if TYPE_CHECKING:
    from ..backends.cuda import Device


class Buffers:
    """Lays out messages for MPI, and takes them apart.

    Parameters
    ----------
    place : Host or Device
        Where the arrays that cross ranks lie.
    direct : bool
        Whether MPI takes pointers of that memory. If not, messages of a device are staged in memory of the host that
        its copies are fast from: copied there to be sent, and back when received.
    """

    def __init__(self, place: Host | Device = HOST, direct: bool = True):
        self._place, self._direct = place, direct

    def empty(self, n_lines: int) -> Any:
        """Return memory for ``n_lines`` lines, (n · LINE,) uint8, that MPI can write to."""
        n = n_lines * LINE
        return self._place.xp.empty(n, np.uint8) if self._direct else self._place.staging(n)

    def joined(self, messages: Sequence[Sequence[Any]], starts: np.ndarray, n_lines: int) -> Any:
        """Return messages one after another, each from its line on, its pieces at multiples of the alignment.

        What is returned is written when this returns: MPI may read it.

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
                if self._direct:
                    out[at:at + len(piece)] = piece
                elif len(piece):
                    self._place.fetch(piece, out[at:at + len(piece)])
                at += aligned(len(piece))
        self._place.synchronize()
        return out

    def part(self, memory: Any, start: int, n_bytes: int) -> Any:
        """Return the bytes of one received message as the arrays' own kind, from line ``start`` on."""
        data = memory[start * LINE:start * LINE + n_bytes]
        return data if self._direct else self._place.upload(data)
