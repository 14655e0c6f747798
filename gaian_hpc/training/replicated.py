"""Data-parallel training on replicas of all points: the classic with a barrier, which sends everything every step.

Each view of a unit is rendered by one rank from its copy of all points. Gradients are summed by a reduce-scatter of
dense arrays, one a view, so that the owner of a point adds them in the order of views whatever the number of ranks;
an allgather of all updated values completes what an allreduce would do. The lazy variant is in :mod:`.pipeline`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..arrays import ArrayTable, View
from ..distributed.exchange import Exchange
from ..distributed.world import aligned
from ..points.store import PointStore
from ..renderers.base import PointRenderer, make_splats, point_gradients
from .assign import on_one_rank
from .step import SynchronousExecutor, ViewGradients
from .unit import Unit


@dataclass(slots=True)
class AllPoints:
    """The points of all ranks in the order of their ids, with the attributes of a store that renderers read."""

    values: ArrayTable
    ids: np.ndarray
    next_id: int

    @property
    def n(self) -> int:
        """Number of points."""
        return len(self.ids)


@dataclass(slots=True)
class Statistics:
    """Stands for density control where a view is rendered: keeps what the owners' is to observe."""

    v_splats: list[ArrayTable] = field(default_factory=list)

    def observe(self, store: AllPoints, view: View, rows: np.ndarray, v_splats: ArrayTable) -> None:
        """Keep the gradients of a view's splats."""
        self.v_splats.append(v_splats)


@dataclass(slots=True)
class ReplicatedExecutor(SynchronousExecutor):
    """Runs units one after the other, each view whole on one rank, which reads a replica of all points."""

    _local: SynchronousExecutor = field(init=False)
    _step: int = field(init=False, default=0)
    _known: np.ndarray | None = field(init=False, default=None)
    _order: np.ndarray = field(init=False)
    _places: list[np.ndarray] = field(init=False)

    def __post_init__(self) -> None:
        SynchronousExecutor.__post_init__(self)
        everything = AllPoints(self.store.values, self.store.ids, self.store.next_id)
        self._local = SynchronousExecutor(self.renderer, everything, self.optimizer, Statistics(), self.pictures,
                                          self.settings, self.timer, Exchange.local(self.renderer), on_one_rank)

    def _wave(self, renderer: PointRenderer, step: int, views: Sequence[View],
              n_views: int) -> tuple[list[ViewGradients], np.ndarray]:
        rank, size = self.exchange.world.rank, self.exchange.world.size
        if step != self._step:
            with self.timer.region("exchange"):
                self._publish()
            self._step = step
        unit = Unit.of(views, self.settings.patch_size)
        sums = np.zeros((len(unit.patches), 3))
        mine = range(rank, len(views), size)
        gradients: list[ViewGradients] = []
        self._local.density.v_splats.clear()
        for v in mine:
            found, view_sums = self._local._wave(renderer, step, views[v:v + 1], n_views)
            gradients += found
            sums[list(unit.patches_of(v))] = view_sums
        with self.timer.region("exchange"):
            returned = self._return(renderer, views, gradients)
        for view, (g, v_splats) in zip(views, returned, strict=True):
            with self.timer.region("density"):
                self.density.observe(self.store, view, g.rows, v_splats)
        return [g for g, _ in returned], sums

    def _publish(self) -> None:
        """Collective. Give every rank the values of all points."""
        world, store = self.exchange.world, self.store
        if world.sum(np.array([self._known is not store.ids], np.int64))[0]:
            self._known = store.ids
            lengths = world.stack(np.array([store.n]))[:, 0]
            ids = self.exchange.gather(store.ids)
            self._order = np.argsort(ids, kind="stable")
            places = np.empty(len(ids), np.int64)
            places[self._order] = np.arange(len(ids))
            self._places = np.split(places, np.cumsum(lengths)[:-1])
            self._local.store.ids = ids[self._order]
        values = {name: self.exchange.gather(x)[self._order] for name, x in store.values.items()}
        self._local.store.values = ArrayTable(values, len(self._order))
        self._local.store.next_id = store.next_id

    def _return(self, renderer: PointRenderer, views: Sequence[View], gradients: Sequence[ViewGradients]
                ) -> list[tuple[ViewGradients, ArrayTable]]:
        """Collective. Return, for each view, the gradients of own points, and those of their splats for statistics.

        They cross as dense arrays of all points of an owner, with one bit a point for what the view reads.
        """
        world, n_points = self.exchange.world, len(self._order)
        form = DenseForm.of(renderer, views[0], self.store)
        messages: list[list[np.ndarray]] = [[] for _ in range(world.size)]
        for g, v_splats in zip(gradients, self._local.density.v_splats, strict=True):
            for dst, pieces in enumerate(form.pack(g, v_splats, n_points, self._places)):
                messages[dst] += pieces
        n_views = np.array([len(range(src, len(views), world.size)) for src in range(world.size)])
        sizes = np.array([form.size(len(places)) for places in self._places])
        self.exchange.ledger.add("gradients", sizes * n_views[world.rank], self.exchange.links)
        own, messages[world.rank] = messages[world.rank], []
        received = world.alltoall(messages, sizes[world.rank] * n_views)
        received[world.rank] = np.concatenate([np.empty(0, np.uint8), *map(padded, own)])
        return [form.unpack(received[v % world.size][sizes[world.rank] * (v // world.size):], self.store.n)
                for v in range(len(views))]


@dataclass(frozen=True, slots=True)
class DenseForm:
    """Shapes per row of the gradients of points and of splats, in the order in which they cross."""

    points: dict[str, tuple[int, ...]]
    splats: dict[str, tuple[int, ...]]

    @classmethod
    def of(cls, renderer: PointRenderer, view: View, store: PointStore) -> DenseForm:
        """Return what ``renderer`` makes of no points: a gradient may have fewer columns than its attribute."""
        none = np.empty(0, np.int64)
        v_splats = ArrayTable({f.name: np.zeros((0, *f.shape), np.float32) for f in renderer.gradient_fields}, 0)
        splats = make_splats(renderer, view, store.values, none)
        v_points = point_gradients(renderer, view, store.values, none, splats, v_splats)
        return cls(*({name: x.shape[1:] for name, x in table.items()} for table in (v_points, v_splats)))

    def size(self, n: int) -> int:
        """Return the bytes of the gradients of ``n`` points."""
        return aligned(-(-n // 8)) + sum(aligned(4 * n * int(np.prod(shape, dtype=np.int64)))
                                         for shapes in (self.points, self.splats) for shape in shapes.values())

    def pack(self, g: ViewGradients, v_splats: ArrayTable, n: int, places: Sequence[np.ndarray]
             ) -> list[list[np.ndarray]]:
        """Return the pieces for each owner, whose points are at ``places`` among all ``n``."""
        read = np.zeros(n, bool)
        read[g.rows] = True
        pieces = [[np.packbits(read[p])] for p in places]
        for shapes, table in ((self.points, g.v_points), (self.splats, v_splats)):
            for name, shape in shapes.items():
                dense = np.zeros((n, *shape), np.float32)
                dense[g.rows] = table[name]
                for out, p in zip(pieces, places, strict=True):
                    out.append(dense[p].reshape(-1).view(np.uint8))
        return pieces

    def unpack(self, data: np.ndarray, n: int) -> tuple[ViewGradients, ArrayTable]:
        """Return the rows that were read, and their gradients, out of what :meth:`pack` made for ``n`` points."""
        at = aligned(-(-n // 8))
        rows = np.flatnonzero(np.unpackbits(data[:-(-n // 8)], count=n))
        tables = []
        for shapes in (self.points, self.splats):
            columns = {}
            for name, shape in shapes.items():
                n_bytes = 4 * n * int(np.prod(shape, dtype=np.int64))
                columns[name] = data[at:at + n_bytes].view(np.float32).reshape(n, *shape)[rows]
                at += aligned(n_bytes)
            tables.append(ArrayTable(columns, len(rows)))
        return ViewGradients(rows, tables[0]), tables[1]


def padded(piece: np.ndarray) -> np.ndarray:
    """Return a piece of a message with what makes the next begin at a multiple of :data:`..world.ALIGNMENT`."""
    return np.concatenate([piece, np.zeros(aligned(len(piece)) - len(piece), np.uint8)])
