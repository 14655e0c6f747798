"""Splats from their owners to where they are rendered, and their gradients back, by one plan.

A unit of views is cut into patches; rank r reads counts[r, p] splats of patch p from its own shard, and renders[p] is
the rank that renders the patch. Both are known alike on every rank, so no message says how long it is. A pair (splat,
patch) crosses once each way. Splats of a patch are merged by their ids: what a patch is made of does not depend on
who sent what.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..arrays import ArrayTable, Field
from ..backends.host import HOST, Host
from .codecs import Feedback, codec_of, decode, encode, encoded_bytes
from .ledger import Ledger
from .world import World, aligned

if TYPE_CHECKING:
    from ..backends.cuda import Device

Encode = Callable[[Any, str], Any]
"""``encode(values, codec)`` returns bytes, as :func:`gaian_hpc.distributed.codecs.encode`."""

Decode = Callable[[Any, int, tuple[int, ...], str], Any]
"""``decode(data, n_rows, shape, codec)`` returns values, as :func:`gaian_hpc.distributed.codecs.decode`."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Who sends how many splats where; the same on every rank.

    Attributes
    ----------
    counts : (R, P) int64
        Splats of each patch by owner.
    renders : (P,) int64
        Rank that renders each patch.
    """

    counts: np.ndarray
    renders: np.ndarray

    def patches_of(self, rank: int) -> np.ndarray:
        """Return the patches that ``rank`` renders, ascending int64."""
        return np.flatnonzero(self.renders == rank)

    def pairs(self) -> np.ndarray:
        """Return (R, R) int64: splats that each owner (row) reads for each render rank (column)."""
        size = len(self.counts)
        out = np.zeros((size, size), np.int64)
        for rank in range(size):
            out[:, rank] = self.counts[:, self.renders == rank].sum(axis=1)
        return out


@dataclass(frozen=True, slots=True)
class OwnSplats:
    """What this rank's shard adds to a unit.

    Attributes
    ----------
    ids : (M,) int64
        Global ids of the splats of all views, view after view.
    table : ArrayTable of (M, ...)
    rows : list of (m,) int64, or slice
        Rows of ``table`` that each of the unit's patches reads, in the order of their ids.
    centers : (P, 2) float32
        Middle of each patch in pixels.
    """

    ids: np.ndarray
    table: ArrayTable
    rows: Sequence[np.ndarray | slice]
    centers: np.ndarray


@dataclass(frozen=True, slots=True)
class PatchSplats:
    """The splats of one patch in the order of their ids, and where they came from.

    Attributes
    ----------
    index : int
        Patch within the unit.
    table : ArrayTable of (m, ...)
    ids : (m,) int64
    order : (m,) int64 or None
        Positions of these rows among those of all sources one after another; None where these are in order.
    """

    index: int
    table: ArrayTable
    ids: np.ndarray
    order: np.ndarray | None

    def to_sources(self, xp: Any = np) -> np.ndarray | None:
        """Return, for each row in the order of the sources, its row here, (m,) int64; None where they are the same.

        ``xp`` is the array module of ``order``.
        """
        if self.order is None:
            return None
        rows = xp.empty(len(self.order), np.int64)
        rows[self.order] = xp.arange(len(self.order), dtype=np.int64)
        return rows


class Fields(Protocol):
    """What of a renderer crosses ranks."""

    splat_fields: tuple[Field, ...]
    gradient_fields: tuple[Field, ...]


class Exchange:
    """Moves splats and gradients between the ranks of ``world`` by alltoallv.

    What of the arguments is by splat lies at ``place``, the host, or the GPU of :class:`DeviceExchange`; so do results.

    Parameters
    ----------
    world : World
    splat_fields, gradient_fields : tuple of Field
        What crosses forward and back.
    codec : str
        Form of all fields, as far as each allows it.
    overrides : mapping of str to str
        Codec by field name, in both directions.
    """

    place: Host | Device = HOST

    def __init__(self, world: World, splat_fields: tuple[Field, ...], gradient_fields: tuple[Field, ...],
                 codec: str = "fp32", overrides: Mapping[str, str] | None = None):
        overrides = overrides or {}
        self.world, self.ledger = world, Ledger()
        self.links = world.links()
        self._forward = Layout(splat_fields, codec, overrides, self.encode, self.decode)
        self._reverse = Layout(gradient_fields, codec, overrides, self.encode, self.decode)
        self._feedback = {f.name: Feedback(f.shape) for f, used in self._reverse.fields
                          if used == "int8" and f.additive and world.size > 1}

    @classmethod
    def local(cls, fields: Fields, place: Host | Device = HOST) -> Exchange:
        """Return the exchange of one rank for a renderer's ``splat_fields`` and ``gradient_fields``."""
        exchange = cls(World(), fields.splat_fields, fields.gradient_fields)
        exchange.place = place
        return exchange

    def stack(self, phase: str, row: np.ndarray) -> np.ndarray:
        """Collective. Return the equally shaped arrays of all ranks, (R, …), and count the bytes."""
        self._count_copies(phase, row)
        return self.world.stack(row)

    def gather(self, rows: np.ndarray) -> np.ndarray:
        """Collective. Return the rows of all ranks in rank order, on every rank, and count the bytes."""
        self._count_copies("points", rows)
        return self.world.gather(rows)

    def encode(self, values: Any, codec: str) -> Any:
        """Return values at ``place`` as bytes there; see :func:`gaian_hpc.distributed.codecs.encode`."""
        return encode(values, codec)

    def decode(self, data: Any, n_rows: int, shape: tuple[int, ...], codec: str) -> Any:
        """Return values at ``place`` from bytes there; see :func:`gaian_hpc.distributed.codecs.decode`."""
        return decode(data, n_rows, shape, codec)

    def transfer(self, messages: Sequence[Sequence[Any]], sizes: np.ndarray) -> list[Any]:
        """Collective. Exchange messages at ``place``; see :meth:`World.alltoall`."""
        return self.world.alltoall(messages, sizes)

    def _count_copies(self, phase: str, rows: np.ndarray) -> None:
        if self.world.size > 1:
            self.ledger.add(phase, np.full(self.world.size, rows.nbytes) * (self.links > 0), self.links)

    def forward(self, plan: Plan, own: OwnSplats, next_id: int) -> list[PatchSplats]:
        """Collective. Return the splats of the patches that this rank renders.

        Parameters
        ----------
        plan : Plan
        own : OwnSplats
        next_id : int
            All ids are below it; the same on every rank.
        """
        rank, pairs = self.world.rank, plan.pairs()
        id_type = id_form(next_id)

        def sizes(counts: np.ndarray) -> np.ndarray:
            return np.array([self._forward.size(n) + aligned(n * id_type.itemsize) for n in counts.tolist()])

        self.ledger.add("splats", sizes(pairs[rank]), self.links)
        messages = [self.pack_splats(own, plan.patches_of(dst), plan.counts[rank], id_type) if dst != rank else []
                    for dst in range(self.world.size)]
        received = self.transfer(messages, sizes(pairs[:, rank]))
        mine = plan.patches_of(rank)
        parts = [self.unpack_splats(data, plan.counts[src, mine], own.centers[mine], id_type) if src != rank else
                 [(own.ids[own.rows[p]], own.table.take(own.rows[p])) for p in mine.tolist()]
                 for src, data in enumerate(received)]
        return [merge(int(p), [part[i] for part in parts], self.place.xp) for i, p in enumerate(mine)]

    def reverse(self, plan: Plan, patches: Sequence[PatchSplats], v_splats: Sequence[ArrayTable]) -> list[ArrayTable]:
        """Collective. Return, for every patch of the unit, the gradients of this rank's own rows of it.

        Parameters
        ----------
        plan : Plan
        patches : sequence of PatchSplats
            As :meth:`forward` returned them.
        v_splats : sequence of ArrayTable
            Gradients of their rows.
        """
        rank, size, pairs = self.world.rank, self.world.size, plan.pairs()
        segments = [self._segments(plan, patch, v) for patch, v in zip(patches, v_splats, strict=True)]
        messages = [self.pack_gradients([s[owner] for s in segments]) if owner != rank else []
                    for owner in range(size)]
        self.ledger.add("gradients", np.array([self._reverse.size(n) for n in pairs[:, rank].tolist()]), self.links)
        sizes = np.array([self._reverse.size(n) for n in pairs[rank].tolist()])
        received = self.transfer(messages, sizes)
        out: list[ArrayTable | None] = [None] * len(plan.renders)
        for src, data in enumerate(received):
            indices = plan.patches_of(src)
            if src == rank:
                tables = [s[rank][1] for s in segments]
            else:
                tables = split(self._reverse.unpack(data, int(pairs[rank, src])), plan.counts[rank, indices])
            for p, table in zip(indices.tolist(), tables, strict=True):
                out[p] = table
        return out

    def pack_splats(self, own: OwnSplats, patches: np.ndarray, counts: np.ndarray, id_type: np.dtype
                    ) -> list[np.ndarray]:
        """Return the pieces of a message with the ids and splats that ``patches`` read here, one after another.

        Parameters
        ----------
        own : OwnSplats
        patches : (Q,) int64
        counts : (P,) int64
            Splats that each patch of the unit reads here.
        id_type : dtype
            Of :func:`id_form`.
        """
        xp = self.place.xp
        every = xp.arange(own.table.n_rows, dtype=np.int64)
        rows = xp.concatenate([every[:0], *(every[own.rows[p]] for p in patches.tolist())])
        if len(rows) == 0:
            return []
        centers = self._centers(own.centers[patches], counts[patches])
        return [own.ids[rows].astype(id_type).view(np.uint8), *self._forward.pack(own.table.take(rows), centers)]

    def unpack_splats(self, data: np.ndarray, counts: np.ndarray, centers: np.ndarray,
                      id_type: np.dtype) -> list[tuple[np.ndarray, ArrayTable]]:
        """Return ids and splats for each of some patches out of the message that :meth:`pack_splats` made.

        Parameters
        ----------
        data : (n,) uint8
        counts : (Q,) int64
            Splats of each patch.
        centers : (Q, 2) float32
            Middle of each patch in pixels.
        id_type : dtype
        """
        n = int(counts.sum())
        ids = data[:n * id_type.itemsize].view(id_type).astype(np.int64)
        table = self._forward.unpack(data[aligned(n * id_type.itemsize):], n, self._centers(centers, counts))
        ends = np.cumsum(counts)
        return [(ids[stop - k:stop], part) for stop, k, part in zip(ends, counts, split(table, counts), strict=True)]

    def _centers(self, centers: np.ndarray, counts: np.ndarray) -> Any:
        """Return the middle of its patch for each splat, (n, 2), at ``place``; None where no form needs it."""
        if not self._forward.is_relative or not counts.any():
            return None
        return self.place.xp.repeat(self.place.array(centers), counts.tolist(), axis=0)

    def pack_gradients(self, parts: list[tuple[np.ndarray, ArrayTable]]) -> list[np.ndarray]:
        """Return the pieces of a message with the gradients of ids, given in parts, one after another.

        What rounding lost of additive fields is kept, and made up for by the next message, on the host.
        """
        parts = [part for part in parts if len(part[0])]
        if not parts:
            return []
        columns = {f.name: self.place.xp.concatenate([t[f.name] for _, t in parts]) for f, _ in self._reverse.fields}
        if not self._feedback:
            return self._reverse.pack(columns)
        ids = np.concatenate([self.place.host(i) for i, _ in parts])
        for name, feedback in self._feedback.items():
            columns[name] = self.place.array(feedback.add(ids, self.place.host(columns[name])))
        pieces = self._reverse.pack(columns)
        for (field, codec), piece in zip(self._reverse.fields, pieces, strict=True):
            if field.name in self._feedback:
                arrived = self.decode(piece, len(ids), field.shape, codec)
                self._feedback[field.name].keep(ids, self.place.host(columns[field.name] - arrived))
        return pieces

    def unpack_gradients(self, data: np.ndarray, n_rows: int) -> ArrayTable:
        """Return the gradients of a message that :meth:`pack_gradients` made."""
        return self._reverse.unpack(data, n_rows)

    def _segments(self, plan: Plan, patch: PatchSplats, v: ArrayTable) -> list[tuple[np.ndarray, ArrayTable]]:
        """Return ids and gradients of a patch by owner."""
        counts = plan.counts[:, patch.index]
        ids, rows = patch.ids, patch.to_sources(self.place.xp)
        table = ArrayTable({f.name: v[f.name] for f, _ in self._reverse.fields}, v.n_rows)
        if rows is not None:
            ids, table = ids[rows], table.take(rows)
        ends = np.cumsum(counts)
        return [(ids[stop - k:stop], part) for stop, k, part in zip(ends, counts, split(table, counts), strict=True)]


class Layout:
    """The fields of a message, each with its codec, one after another."""

    def __init__(self, fields: tuple[Field, ...], wanted: str, overrides: Mapping[str, str],
                 encode: Encode = encode, decode: Decode = decode):
        self.encode, self.decode = encode, decode
        self.fields = tuple((f, overrides.get(f.name) or codec_of(f, wanted)) for f in fields)
        self.is_relative = any(f.in_pixels and codec != "fp32" for f, codec in self.fields)

    def size(self, n_rows: int) -> int:
        """Return the bytes of ``n_rows`` rows."""
        return sum(aligned(encoded_bytes(n_rows * f.width, codec)) for f, codec in self.fields)

    def pack(self, columns: Mapping[str, np.ndarray], centers: np.ndarray | None = None) -> list[np.ndarray]:
        """Return the pieces of a message; pixel positions that lose digits are taken relative to ``centers``."""
        return [self.encode(columns[f.name] - centers if self._moved(f, codec, centers) else columns[f.name], codec)
                for f, codec in self.fields]

    def unpack(self, data: np.ndarray, n_rows: int, centers: np.ndarray | None = None) -> ArrayTable:
        """Return the rows of a message."""
        columns, at = {}, 0
        for f, codec in self.fields:
            n_bytes = encoded_bytes(n_rows * f.width, codec)
            values = self.decode(data[at:at + n_bytes], n_rows, f.shape, codec)
            columns[f.name] = values + centers if self._moved(f, codec, centers) else values
            at += aligned(n_bytes)
        return ArrayTable(columns, n_rows)

    @staticmethod
    def _moved(field: Field, codec: str, centers: np.ndarray | None) -> bool:
        return field.in_pixels and codec != "fp32" and centers is not None


def id_form(next_id: int) -> np.dtype:
    """Return the type that ids below ``next_id`` cross ranks as."""
    return np.dtype(np.uint32 if next_id <= 1 << 32 else np.int64)


def split(table: ArrayTable, counts: np.ndarray) -> list[ArrayTable]:
    """Return consecutive parts of ``counts`` rows each, without copying."""
    ends = np.cumsum(counts).tolist()
    return [ArrayTable({name: x[stop - n:stop] for name, x in table.items()}, n)
            for stop, n in zip(ends, counts.tolist(), strict=True)]


def merge(index: int, parts: Sequence[tuple[np.ndarray, ArrayTable]], xp: Any = np) -> PatchSplats:
    """Return the splats of a patch, given by source in ascending ids, in the order of their ids.

    ``xp`` is the array module of all.
    """
    filled = [part for part in parts if len(part[0])] or [parts[0]]
    if len(filled) == 1:
        return PatchSplats(index, filled[0][1], filled[0][0], None)
    ids = xp.concatenate([i for i, _ in filled])
    order = xp.argsort(ids, kind="stable")
    table = ArrayTable({name: xp.concatenate([t[name] for _, t in filled])[order] for name in filled[0][1]}, len(ids))
    return PatchSplats(index, table, ids[order], order)
