"""The compiled schedule: every epoch a permutation of the views whose units in flight overlap little."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..data.sampler import EpochSampler
from .graph import ViewTracks, conflicts, locality_graph
from .order import arrange

LEAST_DISTANCE = 16
DISTANCE_SHARE = 3


class ScheduleSampler(EpochSampler):
    """An :class:`EpochSampler` whose epochs are arranged ahead of time.

    Epochs are compiled when they are first asked for, from seed and tracks alone: every rank, and every run that goes
    on, has the same.

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
        16. Statistics over more than twice that are those of the random order.
    """

    def __init__(self, train_idx: Sequence[int], views_per_step: int, seed: int, tracks: ViewTracks, window: int,
                 distance: int = 0):
        super().__init__(train_idx, views_per_step, seed)
        self.tracks, self.window = tracks, window
        self.distance = distance or max(len(self._views) // DISTANCE_SHARE, LEAST_DISTANCE)
        self._graph = locality_graph(tracks)

    def predicted(self, epoch: int = 0) -> np.ndarray:
        """Return the predicted conflict of each unit of an epoch, (U,) float64; see :func:`.graph.conflicts`."""
        return conflicts(self.tracks, self._order(epoch), self._size, self.window)

    def _shuffled(self, epoch: int) -> np.ndarray:
        return arrange(super()._shuffled(epoch), self._graph, self._size, self.window, self.distance)
