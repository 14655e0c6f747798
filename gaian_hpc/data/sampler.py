"""The order in which training visits its views: a pure function of seed and step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import DataError
from ..rng import random_bits


class EpochSampler:
    """Cut an endless row of epochs, each a permutation of the training views, into units of equal size.

    A unit may begin in one epoch and end in the next; each epoch still visits each view once, and no unit holds a
    view twice. Any step's unit can be asked for, in any order: there is no state to store.

    Parameters
    ----------
    train_idx : sequence of int
        View indices to visit.
    views_per_step : int
    seed : int

    Raises
    ------
    DataError
        If there are fewer training views than ``views_per_step``.
    """

    def __init__(self, train_idx: Sequence[int], views_per_step: int, seed: int):
        self._views = np.asarray(train_idx, np.int64)
        self._size, self._seed = int(views_per_step), int(seed)
        if not 1 <= self._size <= len(self._views):
            raise DataError(f"views_per_step is {views_per_step} but the scene has {len(self._views)} training views; "
                            "choose a number from 1 to that")
        self._orders: dict[int, np.ndarray] = {}

    @property
    def steps_per_epoch(self) -> float:
        """Number of steps in which each view is visited once."""
        return len(self._views) / self._size

    def unit(self, step: int) -> tuple[int, ...]:
        """Return the view indices of ``step``, counted from 0."""
        first = step * self._size
        n = len(self._views)
        chosen = [self._order(i // n)[i % n] for i in range(first, first + self._size)]
        return tuple(int(self._views[i]) for i in chosen)

    def _order(self, epoch: int) -> np.ndarray:
        """Return the permutation of ``epoch``, from the nearest one known or from scratch."""
        if epoch in self._orders:
            return self._orders[epoch]
        n = len(self._views)
        if n >= 3 * self._size:  # the tail of an epoch is then out of reach of the repair of its head
            order = self._joined(self._shuffled(epoch - 1), epoch) if epoch else self._shuffled(0)
        else:
            known = max((e for e in self._orders if e < epoch), default=0)
            order = self._orders.get(known, self._shuffled(0))
            for e in range(known + 1, epoch + 1):
                order = self._joined(order, e)
        self._orders = {e: o for e, o in self._orders.items() if e == epoch - 1} | {epoch: order}
        return order

    def _joined(self, before: np.ndarray, epoch: int) -> np.ndarray:
        """Return the shuffle of ``epoch`` its head free of views of the unit begun ``before``."""
        order = self._shuffled(epoch)
        n_tail = epoch * len(order) % self._size
        if n_tail == 0:
            return order
        tail = before[-n_tail:]
        n_head = self._size - n_tail
        repeats = np.isin(order, tail)
        out = np.flatnonzero(repeats[:n_head])
        free = n_head + np.flatnonzero(~repeats[n_head:])[:len(out)]
        order[out], order[free] = order[free], order[out]
        return order

    def _shuffled(self, epoch: int) -> np.ndarray:
        """Return positions 0 … n - 1 sorted by random 64-bit keys, ties by position."""
        words = random_bits(self._seed, "data.views", epoch, np.arange(len(self._views)), 2).astype(np.uint64)
        return np.argsort(words[:, 0] << np.uint64(32) | words[:, 1], kind="stable")


class StratifiedSampler(EpochSampler):
    """An :class:`EpochSampler` whose units draw evenly from each home of the views.

    Each home's views are spread evenly over the epoch in a random order and from a random start, so that any stretch of
    an epoch holds each home's share of views, less than two more or fewer.

    Parameters
    ----------
    train_idx, views_per_step, seed
        As for :class:`EpochSampler`.
    homes : (V,) int
        Home of each entry of ``train_idx``: the rank that holds most of what it sees.
    """

    def __init__(self, train_idx: Sequence[int], views_per_step: int, seed: int, homes: np.ndarray):
        super().__init__(train_idx, views_per_step, seed)
        self._homes = np.unique(np.asarray(homes), return_inverse=True)[1]

    def _shuffled(self, epoch: int) -> np.ndarray:
        order = super()._shuffled(epoch)
        home = self._homes[order]
        by_home = np.argsort(home, kind="stable")
        n = np.bincount(home)
        position = np.arange(len(home)) - np.repeat(np.cumsum(n) - n, n)
        words = random_bits(self._seed, "data.homes", epoch, np.arange(len(n)), 1)[:, 0]
        places = (position + np.repeat(words / 2.0**32, n)) / np.repeat(n, n)
        return order[by_home[np.argsort(places, kind="stable")]]
