"""The points of one shard: stored values, activated values, Adam moments, statistics and ids, edited together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arrays import ArrayTable, Attribute
from ..backends.host import HOST, Host
from .activation import activate, deactivate

if TYPE_CHECKING:
    from ..backends.cuda import Device

__all__ = ["PointStore", "activate", "deactivate"]


class PointStore:
    """Points of one shard, in ascending order of their global ids.

    Parameters
    ----------
    attributes : tuple of Attribute
    raw : mapping of str to (N, *shape) float32
        Stored values by ``Attribute.name``.
    ids : (N,) int64, ascending
    next_id : int
        First global id never used yet; the same on every rank.

    Attributes
    ----------
    place : Host or Device
        Where all arrays lie, ids included; rows and values given to methods lie there too, unless said otherwise.
    """

    def __init__(self, attributes: tuple[Attribute, ...], raw: Mapping[str, np.ndarray], ids: np.ndarray,
                 next_id: int):
        self.attributes = attributes
        self.place: Host | Device = HOST
        self.ids = np.ascontiguousarray(ids, np.int64)
        self.next_id = int(next_id)
        self.raw = {a.name: np.ascontiguousarray(raw[a.name], np.float32).reshape(len(ids), *a.shape)
                    for a in attributes}
        self.first_moments = {name: np.zeros_like(x) for name, x in self.raw.items()}
        self.second_moments = {name: np.zeros_like(x) for name, x in self.raw.items()}
        self.statistics: dict[str, np.ndarray] = {}
        self._active: dict[str, np.ndarray] = {}
        self.refresh()

    @property
    def n(self) -> int:
        """Number of points in this shard."""
        return len(self.ids)

    @property
    def values(self) -> ArrayTable:
        """Activated values of all points, as renderers read them; do not write to them."""
        return ArrayTable({a.name: self._active[a.name] if a.activation != "identity" else self.raw[a.name]
                           for a in self.attributes}, self.n)

    def refresh(self, rows: np.ndarray | None = None) -> None:
        """Recompute activated values from stored ones, all or the given rows."""
        for a in self.attributes:
            if a.activation == "identity":
                continue
            if rows is None:
                self._active[a.name] = activate(a, self.raw[a.name], self.place)
            else:
                self._active[a.name][rows] = activate(a, self.raw[a.name][rows], self.place)

    def columns(self) -> list[dict[str, np.ndarray]]:
        """Return the dictionaries of per-point arrays that edits keep aligned."""
        return [self.raw, self.first_moments, self.second_moments, self.statistics, self._active]

    def move(self, place: Host | Device) -> None:
        """Put all arrays at ``place``, unless they are there."""
        if place is self.place:
            return
        self.ids = place.array(self.place.host(self.ids))
        for group in self.columns():
            for name in group:
                group[name] = place.array(self.place.host(group[name]))
        self.place = place
        if place is not HOST:  # its functions round differently; a run that went on from a file must not show it
            self.refresh()

    def keep(self, mask: np.ndarray) -> None:
        """Keep the rows where ``mask`` (N,) bool is true, one array at a time to bound the peak memory."""
        self.ids = self.ids[mask]
        for group in self.columns():
            for name in group:
                group[name] = group[name][mask]

    def append(self, raw: Mapping[str, np.ndarray], ids: np.ndarray) -> None:
        """Append points with zero moments and statistics, given on the host; ``ids`` must exceed all present ones."""
        k, place, concatenate = len(ids), self.place, self.place.xp.concatenate
        self.ids = concatenate([self.ids, place.array(ids, np.int64)])
        for a in self.attributes:
            self.raw[a.name] = concatenate([self.raw[a.name], place.array(raw[a.name], np.float32)])
        for group in (self.first_moments, self.second_moments, self.statistics):
            for name, x in group.items():
                group[name] = concatenate([x, place.xp.zeros((k, *x.shape[1:]), x.dtype)])
        for a in self.attributes:
            if a.activation != "identity":
                tail = activate(a, self.raw[a.name][len(self.ids) - k:], place)
                self._active[a.name] = concatenate([self._active[a.name], tail])

    def read_rows(self, rows: Any) -> tuple[dict[str, np.ndarray], ArrayTable]:
        """Return stored and activated values of ``rows``, on the host."""
        host, values = self.place.host, self.values
        return ({name: host(x[rows]) for name, x in self.raw.items()},
                ArrayTable({name: host(x[rows]) for name, x in values.items()}, len(rows)))

    def write_rows(self, name: str, rows: Any, raw: Any) -> None:
        """Overwrite stored values of one attribute by those given on the host, and refresh their activation."""
        self.raw[name][rows] = self.place.array(raw, np.float32)
        for a in self.attributes:
            if a.name == name and a.activation != "identity":
                self._active[name][rows] = activate(a, self.raw[name][rows], self.place)

    def zero_moments(self, rows: np.ndarray | slice = slice(None), names: tuple[str, ...] | None = None) -> None:
        """Zero both Adam moments of ``rows`` for the named attributes (all by default)."""
        for name in names or tuple(self.raw):
            self.first_moments[name][rows] = 0.0
            self.second_moments[name][rows] = 0.0

    def bytes_per_point(self) -> int:
        """Return the bytes a point occupies between steps."""
        arrays = [x for group in self.columns() for x in group.values()]
        return 8 + sum(x[:1].nbytes if len(x) else 0 for x in arrays)
