"""Copies of other ranks' points, kept by sending what is read and has changed since (Gaian's lazy synchronisation).

An owner knows of each of its points what each rank holds: its present value, an earlier one, or none. What a rank is
about to read goes with the rows that it reads, and nothing else does. A lossy codec sends the difference to what the
rank holds, of which the owner keeps the same copy: what rounding loses now is part of the next difference (error
feedback), so errors do not add up.
"""

from __future__ import annotations

import numpy as np

from ..arrays import ArrayTable, Attribute
from ..distributed.codecs import decode, encode, encoded_bytes
from ..distributed.exchange import id_form
from ..distributed.world import aligned
from ..points.store import PointStore

CURRENT, CHANGED, UNKNOWN = range(3)


class Publisher:
    """What an owner has published of its points, to whom.

    Parameters
    ----------
    store : PointStore
    size : int
        Number of ranks.
    codec : str
        Of values that a rank holds an earlier version of; others cross as fp32.
    """

    def __init__(self, store: PointStore, size: int, codec: str = "fp32"):
        self.store, self.codec = store, codec
        self._size = size
        self._ids: np.ndarray | None = None
        self.refresh()

    def refresh(self) -> None:
        """Take all points for changed, or for unknown to all ranks if rows came or went since the last call."""
        store = self.store
        if self._ids is store.ids:  # edits that add, drop or move rows always make new ids
            self.states[self.states == CURRENT] = CHANGED
            return
        self._ids = store.ids
        self.states = np.full((self._size, store.n), UNKNOWN, np.uint8)
        self._held: list[dict[str, np.ndarray]] = []
        if self.codec != "fp32":
            self._held = [{name: np.zeros_like(x) for name, x in store.values.items()} for _ in range(self._size)]

    @property
    def is_current(self) -> bool:
        """Whether rows are still those that were there at the last :meth:`refresh`."""
        return self._ids is self.store.ids

    def change(self, rows: np.ndarray) -> None:
        """Note that the values of ``rows`` are new."""
        states = self.states[:, rows]
        states[states == CURRENT] = CHANGED
        self.states[:, rows] = states

    def pack(self, dst: int, rows: np.ndarray) -> list[np.ndarray]:
        """Return the pieces of a message with ``rows`` (U,) int64 and those of their values that ``dst`` lacks."""
        states = self.states[dst, rows]
        new, changed = rows[states == UNKNOWN], rows[states == CHANGED]
        values = self.store.values
        pieces = [np.array([len(rows), self.store.next_id], np.int64), rows.astype(np.uint32),
                  np.packbits(states == UNKNOWN), np.packbits(states == CHANGED),
                  self.store.ids[new].astype(id_form(self.store.next_id))]
        for a in self.store.attributes:
            pieces.append(encode(values[a.name][new], "fp32"))
            if not self._held:
                pieces.append(encode(values[a.name][changed], "fp32"))
                continue
            held = self._held[dst][a.name]
            held[new] = values[a.name][new]
            piece = encode(values[a.name][changed] - held[changed], self.codec)
            held[changed] += decode(piece, len(changed), a.shape, self.codec)
            pieces.append(piece)
        self.states[dst, rows] = CURRENT
        return [p.view(np.uint8) for p in pieces]


class Replica:
    """The points of one other rank, as far as they were published here.

    Parameters
    ----------
    attributes : tuple of Attribute
    codec : str
        Of the owner's :class:`Publisher`.
    """

    def __init__(self, attributes: tuple[Attribute, ...], codec: str = "fp32"):
        self._attributes, self._codec = attributes, codec
        self._ids = np.empty(0, np.int64)
        self._values = {a.name: np.empty((0, *a.shape), np.float32) for a in attributes}

    def take(self, data: np.ndarray) -> tuple[np.ndarray, ArrayTable, int]:
        """Take what :meth:`Publisher.pack` sent.

        Returns
        -------
        ids : (U,) int64
        table : ArrayTable of (U, ...)
            Values of the rows that are read.
        n_bytes : int
            Where the message ends in ``data``.
        """
        at = 0

        def read(n_bytes: int) -> np.ndarray:
            nonlocal at
            piece = data[at:at + n_bytes]
            at += aligned(n_bytes)
            return piece

        n, next_id = read(16).view(np.int64).tolist()
        rows = read(4 * n).view(np.uint32).astype(np.int64)
        new, changed = (rows[np.unpackbits(read(-(-n // 8)), count=n).astype(bool)] for _ in range(2))
        self._reserve(int(rows.max(initial=-1)) + 1)
        form = id_form(next_id)
        self._ids[new] = read(form.itemsize * len(new)).view(form)
        for a in self._attributes:
            values = self._values[a.name]
            values[new] = decode(read(encoded_bytes(len(new) * a.width, "fp32")), len(new), a.shape, "fp32")
            piece = read(encoded_bytes(len(changed) * a.width, self._codec))
            received = decode(piece, len(changed), a.shape, self._codec)
            values[changed] = received if self._codec == "fp32" else values[changed] + received
        return self._ids[rows], ArrayTable({name: x[rows] for name, x in self._values.items()}, n), at

    def _reserve(self, n: int) -> None:
        """Make room for rows below ``n``."""
        if n <= len(self._ids):
            return
        more = n + n // 4 - len(self._ids)
        self._ids = np.concatenate([self._ids, np.zeros(more, np.int64)])
        self._values = {name: np.concatenate([x, np.zeros((more, *x.shape[1:]), np.float32)])
                        for name, x in self._values.items()}
