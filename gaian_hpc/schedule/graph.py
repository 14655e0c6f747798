"""The relative locality graph of Odin: views as vertices, joined by the share of SfM tracks that both see."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit, prange

NEIGHBOURS = 64
TRACKS = 256  # of a view that neighbours are looked for by; every k-th where it has more


@dataclass(frozen=True, slots=True)
class ViewTracks:
    """The tracks that each view sees, as compressed sparse rows.

    Attributes
    ----------
    indptr : (V + 1,) int64
    tracks : (E,) int32
        Ascending within a view.
    n_tracks : int
    """

    indptr: np.ndarray
    tracks: np.ndarray
    n_tracks: int

    @classmethod
    def of(cls, offsets: np.ndarray, view_idx: np.ndarray, views: np.ndarray) -> ViewTracks:
        """Return the tracks of ``views`` from the views of each track.

        Parameters
        ----------
        offsets : (T + 1,) int64
        view_idx : (E,) int64
            Views that see each track.
        views : (V,) int64
            Those that are wanted; tracks that none of them sees do not count.
        """
        from scipy.sparse import csr_matrix

        n_views = int(max(view_idx.max(initial=-1), views.max(initial=-1))) + 1
        seen = csr_matrix((np.ones(len(view_idx), np.int8), view_idx, offsets), shape=(len(offsets) - 1, n_views))
        by_view = seen.tocsc()
        if not np.array_equal(views, np.arange(n_views)):
            by_view = by_view[:, views]
        return cls(by_view.indptr.astype(np.int64), by_view.indices.astype(np.int32), len(offsets) - 1)

    @property
    def n_views(self) -> int:
        """Number of views."""
        return len(self.indptr) - 1

    def sizes(self) -> np.ndarray:
        """Return the number of tracks of each view, (V,) int64."""
        return np.diff(self.indptr)


@dataclass(frozen=True, slots=True)
class LocalityGraph:
    """The heaviest neighbours of each view.

    Attributes
    ----------
    neighbours : (V, N) int32, ascending within a row
        −1 where there are fewer.
    jaccard : (V, N) float32
        |P_i ∩ P_j| / |P_i ∪ P_j|.
    overlap : (V, N) float32
        |P_i ∩ P_j| / |P_i|: the share of view i's points that view j holds.
    """

    neighbours: np.ndarray
    jaccard: np.ndarray
    overlap: np.ndarray


def locality_graph(views: ViewTracks, n_neighbours: int = NEIGHBOURS, n_tracks: int = TRACKS) -> LocalityGraph:
    """Return the relative locality graph; memory is bounded by V × ``n_neighbours``.

    Parameters
    ----------
    views : ViewTracks
    n_neighbours : int
        Neighbours kept of each view, the heaviest ones.
    n_tracks : int
        Tracks of a view that are counted; where it has more, an even sample stands for them.
    """
    n = views.n_views
    width = max(1, min(n_neighbours, n - 1))
    by_track, views_of = _transposed(views)
    neighbours = np.full((n, width), -1, np.int32)
    shared = np.zeros((n, width), np.float32)
    _count_shared(views.indptr, views.tracks, by_track, views_of, n_tracks, neighbours, shared)
    sizes = views.sizes().astype(np.float32)
    other = sizes[np.maximum(neighbours, 0)]
    union = np.maximum(sizes[:, None] + other - shared, 1)
    return LocalityGraph(neighbours, shared / union, shared / np.maximum(sizes[:, None], 1))


def conflicts(views: ViewTracks, order: np.ndarray, views_per_step: int, window: int) -> np.ndarray:
    """Return the share of each unit's tracks that the units before it in its window also hold, (U,) float64.

    Parameters
    ----------
    views : ViewTracks
    order : (V,) int64
        Cut into units of ``views_per_step``; what is left at the end is no unit.
    views_per_step : int
    window : int
        K: a unit and the K − 1 before it.
    """
    n_units = len(order) // views_per_step
    out = np.zeros(n_units)
    _conflicts(views.indptr, views.tracks, np.asarray(order, np.int64), views_per_step, window,
               np.full(views.n_tracks, -window - 1, np.int64), out)
    return out


def _transposed(views: ViewTracks) -> tuple[np.ndarray, np.ndarray]:
    from scipy.sparse import csc_matrix

    shape = (views.n_tracks, views.n_views)
    by_track = csc_matrix((np.ones(len(views.tracks), np.int8), views.tracks, views.indptr), shape=shape).tocsr()
    return by_track.indptr.astype(np.int64), by_track.indices.astype(np.int32)


@njit(cache=True, nogil=True, error_model="numpy", parallel=True)
def _count_shared(indptr, tracks, starts, views_of, n_tracks, neighbours, shared):
    n, width = neighbours.shape
    n_jobs = 16
    for job in prange(n_jobs):
        count = np.zeros(n, np.float32)
        touched = np.empty(n, np.int32)
        for v in range(n * job // n_jobs, n * (job + 1) // n_jobs):
            first, size = indptr[v], indptr[v + 1] - indptr[v]
            every = max(1, (size + n_tracks - 1) // n_tracks)
            n_touched = 0
            for e in range(first, indptr[v + 1], every):
                t = tracks[e]
                for k in range(starts[t], starts[t + 1]):
                    other = views_of[k]
                    if other != v:
                        if count[other] == 0:
                            touched[n_touched] = other
                            n_touched += 1
                        count[other] += every
            found = touched[:n_touched]
            if n_touched > width:
                weights = np.empty(n_touched, np.float32)
                for i in range(n_touched):
                    weights[i] = -count[found[i]]
                found = found[np.argsort(weights, kind="mergesort")[:width]]
            found = np.sort(found)
            for i in range(len(found)):
                neighbours[v, i] = found[i]
                shared[v, i] = min(count[found[i]], np.float32(size))
            for i in range(n_touched):
                count[touched[i]] = 0


@njit(cache=True, nogil=True, error_model="numpy")
def _conflicts(indptr, tracks, order, views_per_step, window, last, out):
    for u in range(len(out)):
        total, held = 0, 0
        for i in range(u * views_per_step, (u + 1) * views_per_step):
            for e in range(indptr[order[i]], indptr[order[i] + 1]):
                seen = last[tracks[e]]
                if seen == u:
                    continue
                total += 1
                if u - seen < window:
                    held += 1
                last[tracks[e]] = u
        out[u] = held / max(total, 1)
