"""What a placement costs on many ranks, reckoned from the profile alone: splats that cross, receivers, balance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .profile import Profile

Assign = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""``assign(counts (R, P) int64, work (P,) float64, hosts (R,)) -> (P,) int64`` render ranks of a unit."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Splats that a step reads and moves, by unit; a splat of a patch crosses where its owner does not render it.

    Attributes
    ----------
    total, remote, inter_host : (U,) int64
        Splats read, those that cross ranks, and those of them that cross hosts.
    received, returned : (U, R) int64
        Splats that each rank receives to render, and that it receives gradients of as their owner.
    balance_work : (U,) float64
        Largest render work of a rank over the mean.
    balance_points : float
        Largest number of points of a rank over the mean.
    """

    total: np.ndarray
    remote: np.ndarray
    inter_host: np.ndarray
    received: np.ndarray
    returned: np.ndarray
    balance_work: np.ndarray
    balance_points: float


@dataclass(frozen=True, slots=True)
class Cost:
    """Means over units of what a step moves.

    Attributes
    ----------
    bytes_total, bytes_inter_host : int
        That cross ranks, and those of them that cross hosts; splats one way and gradients the other.
    bytes_max_receiver : int
        Received by the rank that receives most.
    balance_points, balance_work : float
        Largest share of a rank over the mean, 1 at best.
    remote_share, inter_host_share : float
        Shares of all splats read.
    """

    bytes_total: int
    bytes_inter_host: int
    bytes_max_receiver: int
    balance_points: float
    balance_work: float
    remote_share: float
    inter_host_share: float


def measure(profile: Profile, owners: np.ndarray, hosts: np.ndarray, units: Sequence[np.ndarray], work: np.ndarray,
            assign: Assign) -> Traffic:
    """Return the traffic of the given units.

    Parameters
    ----------
    profile : Profile
    owners : (G,) int
        Rank of each cell.
    hosts : (R,) int
        Host of each rank.
    units : sequence of (v,) int
        Views of each unit.
    work : (P,) float64
        Render work of every patch of the profile.
    assign : callable
        See :data:`Assign`.
    """
    size, starts = len(hosts), np.searchsorted(profile.patch_view, np.arange(profile.n_views + 1))
    same_host = hosts[:, None] == hosts[None, :]
    rows = []
    for views in units:
        patches = np.concatenate([np.arange(starts[v], starts[v + 1]) for v in views])
        part = profile.rows(patches)
        counts = part.owned(owners, size)
        renders = assign(counts, work[patches], hosts)
        pairs = crossings(part, owners, renders, size)
        load = np.bincount(renders, weights=work[patches], minlength=size)
        own = np.diag(pairs)
        rows.append((pairs.sum(), pairs.sum() - own.sum(), pairs[~same_host].sum(), pairs.sum(axis=0) - own,
                     pairs.sum(axis=1) - own, _imbalance(load)))
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    points = np.bincount(owners, weights=profile.cell_sizes, minlength=size)
    return Traffic(*columns, balance_points=_imbalance(points))


def crossings(profile: Profile, owners: np.ndarray, renders: np.ndarray, size: int) -> np.ndarray:
    """Return (R, R) int64: splats that each owner (row) reads for each render rank (column)."""
    key = owners[profile.cells] * size + renders[profile.patch_of_entry()]
    return np.bincount(key, weights=profile.counts, minlength=size * size).astype(np.int64).reshape(size, size)


def cost(traffic: Traffic, forward: float, back: float) -> Cost:
    """Return the mean cost of a step whose splats take ``forward`` bytes, and their gradients ``back`` bytes."""
    received = (traffic.received * forward + traffic.returned * back).max(axis=1)
    total, per_splat = max(traffic.total.sum(), 1), forward + back
    return Cost(round(traffic.remote.mean() * per_splat), round(traffic.inter_host.mean() * per_splat),
                round(received.mean()), round(traffic.balance_points, 4), round(float(traffic.balance_work.mean()), 4),
                round(float(traffic.remote.sum() / total), 4), round(float(traffic.inter_host.sum() / total), 4))


def homes(profile: Profile, owners: np.ndarray, size: int) -> np.ndarray:
    """Return the rank that owns most of what each view reads, (V,) int64."""
    key = profile.patch_view[profile.patch_of_entry()].astype(np.int64) * size + owners[profile.cells]
    held = np.bincount(key, weights=profile.counts, minlength=profile.n_views * size)
    return held.reshape(-1, size).argmax(axis=1)


def _imbalance(loads: np.ndarray) -> float:
    return float(loads.max() / max(loads.mean(), 1e-300))
