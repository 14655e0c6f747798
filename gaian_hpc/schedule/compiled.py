"""The compiled schedule: every epoch a permutation of the views whose units in flight overlap little."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..data.sampler import EpochSampler
from ..errors import DataError
from .graph import ViewTracks, conflicts, locality_graph
from .order import Strip, arrange
from .swaps import EMPTY
from .unions import bitsets

LEAST_DISTANCE = 16
DISTANCE_SHARE = 3
CACHED = 32  # epochs: decoding ahead asks for later ones than training does
VERSION = 1  # of the order: another for the same input is another version


class ScheduleSampler(EpochSampler):
    """An :class:`EpochSampler` whose epochs are arranged ahead of time.

    Epochs are compiled when they are first asked for, from seed and tracks alone: every rank, and every run that goes
    on, has the same. Even epochs are arranged by themselves and odd ones between their two neighbours, so that windows
    over the seams are arranged as well and yet no epoch needs more than three to be compiled. Epochs of fewer than
    three units are left as :class:`EpochSampler` has them.

    Parameters
    ----------
    train_idx, views_per_step, seed
        As for :class:`EpochSampler`.
    tracks : ViewTracks
        Of the training views, in the order of ``train_idx``.
    window : int
        K: units in flight.
    distance : int
        How far, in positions, a view may stand from its place in the random epoch; 0 = a third of the epoch, at least
        16. See :func:`.order.arrange` for what that bounds.
    """

    def __init__(self, train_idx: Sequence[int], views_per_step: int, seed: int, tracks: ViewTracks, window: int,
                 distance: int = 0):
        super().__init__(train_idx, views_per_step, seed)
        self.tracks, self.window = tracks, window
        self.distance = distance or max(len(self._views) // DISTANCE_SHARE, LEAST_DISTANCE)
        self._graph = locality_graph(tracks)
        self._unions = bitsets(tracks)

    def predicted(self, epoch: int = 0, window: int = 0) -> np.ndarray:
        """Return the predicted conflict of each unit that begins in ``epoch``, (U,) float64; see
        :func:`.graph.conflicts`.

        Parameters
        ----------
        epoch : int
            In the first epoch of a run the first units have less than a window before them.
        window : int
            K to measure with; 0 = the one that was arranged for.
        """
        k, n, size = window or self.window, len(self._views), self._size
        first, stop = -(-epoch * n // size), -(-(epoch + 1) * n // size)
        start = max(0, first - k + 1)
        run = [self._order(i // n)[i % n] for i in range(start * size, stop * size)]
        return conflicts(self.tracks, np.array(run), size, k)[first - start:]

    def record(self) -> dict[str, Any]:
        """Return what the schedule follows from, as JSON takes it; :meth:`check_record` compares it."""
        h = hashlib.sha256()
        for array in (self._views, self.tracks.indptr, self.tracks.tracks):
            h.update(len(array).to_bytes(8, "little") + np.ascontiguousarray(array, "<i8").tobytes())
        return {"version": VERSION, "tracks": h.hexdigest(), "views_per_step": self._size, "seed": self._seed,
                "window": self.window, "distance": self.distance}

    def check_record(self, record: Mapping[str, Any], where: str) -> None:
        """Refuse the record of another schedule.

        Parameters
        ----------
        record : mapping
        where : str
            What holds it, for the message.

        Raises
        ------
        DataError
        """
        for name, value in self.record().items():
            if record.get(name) != value:
                what = "of another scene" if name == "tracks" else f"with {name} {record.get(name)!r}, not {value!r}"
                raise DataError(f"{where}: its schedule is one {what}; go on with the scene and the settings it was "
                                "made for, or start another run")

    def _order(self, epoch: int) -> np.ndarray:
        if len(self._views) < 3 * self._size:
            return super()._order(epoch)
        if epoch not in self._orders:
            strip = self._between(epoch) if epoch % 2 else self._alone(epoch)
            order = arrange(strip, self._graph, self._size, self.window, self.distance, self._unions)
            self._orders = dict([*self._orders.items(), (epoch, order)][-CACHED:])
        return self._orders[epoch]

    def _alone(self, epoch: int) -> Strip:
        """Return an epoch behind as many empty places as its first unit has before it."""
        n_before = epoch * len(self._views) % self._size
        order = np.concatenate([np.full(n_before, EMPTY, np.int64), self._shuffled(epoch)])
        return Strip(order, n_before, len(order))

    def _between(self, epoch: int) -> Strip:
        """Return an epoch between the windows before and after it, no unit holding a view twice."""
        n, size = len(self._views), self._size
        before, after = self._order(epoch - 1), self._order(epoch + 1)
        n_begun, n_left = epoch * n % size, -(epoch + 1) * n % size
        order = self._joined(before, epoch)
        if n_left:
            _free(order, n - (size - n_left), size - n_begun if n_begun else 0, after[:n_left])
        n_before = n_begun + size * min(self.window - 1, (n - n_begun) // size)
        n_after = min(n, n_left + size * (self.window - 1))
        return Strip(np.concatenate([before[n - n_before:], order, after[:n_after]]), n_before, n_before + n)


def _free(order: np.ndarray, tail: int, head: int, taken: np.ndarray) -> None:
    """Swap the views of ``order[tail:]`` that are in ``taken`` for the last ones of ``order[head:tail]`` that are not.
    """
    repeats = np.isin(order, taken)
    out = tail + np.flatnonzero(repeats[tail:])
    free = head + np.flatnonzero(~repeats[head:tail])[::-1][:len(out)]
    order[out], order[free] = order[free], order[out]
