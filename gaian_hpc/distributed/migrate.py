"""Points that change their owner, with their optimizer state and statistics."""

from __future__ import annotations

import numpy as np

from ..points.store import PointStore
from .exchange import Exchange
from .world import aligned


def migrate(exchange: Exchange, store: PointStore, owners: np.ndarray) -> int:
    """Collective. Send every point to its owner, one array at a time to bound the memory; rows stay in id order.

    Parameters
    ----------
    exchange : Exchange
    store : PointStore
        This rank's points; edited in place.
    owners : (N,) int
        Rank that shall own each of them.

    Returns
    -------
    int
        Points of the whole scene that moved.
    """
    world = exchange.world
    if world.size == 1:
        return 0
    order = np.argsort(owners, kind="stable")
    leaving = np.bincount(owners, minlength=world.size)
    table = world.stack(leaving)  # (R, R): from the row's rank to the column's
    n_moved = int(table.sum() - np.trace(table))
    if n_moved == 0:
        return 0
    starts = np.cumsum(leaving) - leaving
    arriving = table[:, world.rank]
    ids = _move(exchange, store.ids, order, starts, leaving, arriving)
    by_id = np.argsort(ids, kind="stable")
    for group in store.columns():
        for name in group:
            group[name] = _move(exchange, group[name], order, starts, leaving, arriving)[by_id]
    store.ids = ids[by_id]
    return n_moved


def _move(exchange: Exchange, column: np.ndarray, order: np.ndarray, starts: np.ndarray, leaving: np.ndarray,
          arriving: np.ndarray) -> np.ndarray:
    """Return one array's rows after the move, by source."""
    world = exchange.world
    width = column.dtype.itemsize * int(np.prod(column.shape[1:], dtype=np.int64))
    parts = [column[order[s:s + n]] for s, n in zip(starts.tolist(), leaving.tolist(), strict=True)]
    messages = [[part.reshape(-1).view(np.uint8)] for part in parts]
    exchange.ledger.add("points", leaving * width, exchange.links)
    received = world.alltoall(messages, np.array([aligned(n * width) for n in arriving.tolist()]))
    rows = [data[:n * width].view(column.dtype).reshape(n, *column.shape[1:])
            for data, n in zip(received, np.where(np.arange(world.size) == world.rank, 0, arriving).tolist(),
                               strict=True)]
    rows[world.rank] = parts[world.rank]
    return np.concatenate(rows)
