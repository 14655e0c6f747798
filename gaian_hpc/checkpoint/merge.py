"""Walk the points of all shards in the order of their ids, in bounded memory (a k-way merge)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import h5py
import numpy as np

from ..errors import FormatError


@dataclass(frozen=True, slots=True)
class Block:
    """The points whose ids lie in one interval.

    Attributes
    ----------
    slices : list of (shard, start, stop)
        Rows of shards that hold them.
    order : (B,) int64
        Puts the rows of ``slices``, one slice after the other, in the order of their ids.
    ids : (B,) int64
        Ascending.
    """

    slices: list[tuple[int, int, int]]
    order: np.ndarray
    ids: np.ndarray

    def origin(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the shards and the rows within them of ``rows`` of this block (in id order)."""
        shard = np.concatenate([np.full(stop - start, s) for s, start, stop in self.slices])
        local = np.concatenate([np.arange(start, stop) for _, start, stop in self.slices])
        return shard[self.order[rows]], local[self.order[rows]]


class _Cursor:
    """The ids of one shard that no block holds yet, buffered."""

    def __init__(self, shard: int, ids: h5py.Dataset, rows: int):
        self.shard = shard
        self._dataset = ids
        self._rows = rows
        self._start = 0  # row of the first buffered id
        self._last = -1
        self.buffer = np.empty(0, np.int64)
        self.refill()

    def refill(self) -> None:
        """Fill the buffer up; ids must ascend within a shard."""
        known = self._start + len(self.buffer)
        more = self._dataset[known:self._start + self._rows].astype(np.int64)
        if np.any(np.diff(more, prepend=self._last) <= 0):
            raise FormatError(f"{self._dataset.file.filename}: point ids do not ascend; use an earlier checkpoint")
        if len(more):
            self._last = int(more[-1])
            self.buffer = np.concatenate([self.buffer, more])

    def take(self, below: int) -> tuple[tuple[int, int, int], np.ndarray]:
        """Remove the ids less than ``below`` from the buffer; return their slice and themselves."""
        n = int(np.searchsorted(self.buffer, below))
        ids, self.buffer = self.buffer[:n], self.buffer[n:]
        self._start += n
        return (self.shard, self._start - n, self._start), ids


def id_blocks(datasets: Sequence[h5py.Dataset], rows: int) -> Iterator[Block]:
    """Yield blocks of ascending ids over all shards.

    Parameters
    ----------
    datasets : sequence of (n,) int64 data sets
        The ids of each shard, ascending.
    rows : int
        Ids buffered, and so points of a block, over all shards (but at least 1024 of each shard).

    Raises
    ------
    FormatError
        If ids do not ascend within a shard or two shards hold the same one.
    """
    each = max(1024, rows // max(1, len(datasets)))
    cursors = [_Cursor(s, ids, each) for s, ids in enumerate(datasets)]
    while live := [c for c in cursors if len(c.buffer)]:
        below = min(int(c.buffer[-1]) for c in live) + 1  # nothing unread of any shard is less
        taken = [c.take(below) for c in live]
        ids = np.concatenate([part for _, part in taken])
        order = np.argsort(ids, kind="stable")
        ids = ids[order]
        if len(repeated := ids[:-1][np.diff(ids) == 0]):
            raise FormatError(f"{datasets[0].file.filename}: point {repeated[0]} is also in another shard; use an "
                              f"earlier checkpoint")
        yield Block([where for where, part in taken if len(part)], order, ids)
        for c in live:
            c.refill()
