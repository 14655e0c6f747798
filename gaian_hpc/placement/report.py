"""What a placement and an assignment cost, from the profile alone: bytes per step and how even the ranks are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .profile import Profile


@dataclass(frozen=True, slots=True)
class Cost:
    """Means over sampled units.

    Attributes
    ----------
    bytes_total, bytes_inter_host : int
        Splats forward and gradients back that cross ranks, and hosts, in one step.
    bytes_max_receiver : int
        Most that one rank receives: splats of the patches it renders and gradients of its own points.
    balance_points, balance_work : float
        Most over mean: points of a rank, and splats of the patches a rank renders in a unit.
    remote_share, inter_host_share : float
        Of all splats read, those that cross ranks, and hosts.
    """

    bytes_total: int
    bytes_inter_host: int
    bytes_max_receiver: int
    balance_points: float
    balance_work: float
    remote_share: float
    inter_host_share: float


def sample_units(n_views: int, views_per_step: int, n_units: int, seed: int) -> list[np.ndarray]:
    """Return up to ``n_units`` units of views, cut from a shuffled epoch."""
    order = np.random.default_rng(seed).permutation(n_views)
    return [order[i * views_per_step:(i + 1) * views_per_step]
            for i in range(max(1, min(n_units, n_views // views_per_step)))]


def measure(profile: Profile, owners: np.ndarray, hosts: np.ndarray, units: Sequence[np.ndarray],
            assigner: Callable[[np.ndarray, np.ndarray], np.ndarray], forward: float, back: float) -> Cost:
    """Return what units cost.

    Parameters
    ----------
    profile : Profile
    owners : (G,) int64
        Rank of each cell.
    hosts : (R,) int64
        Host of each rank.
    units : sequence of (B,) int64
        Views of each unit.
    assigner : callable
        ``assigner(counts (R, P), work (P,)) -> (P,) int64`` render ranks.
    forward, back : float
        Bytes of a splat with its id, and of its gradients.
    """
    size = len(hosts)
    first = np.searchsorted(profile.patch_view, np.arange(profile.n_views + 1))
    sums = np.zeros(5)
    for views in units:
        patches = np.concatenate([np.arange(first[v], first[v + 1]) for v in views.tolist()])
        counts = unit_counts(profile, owners, patches, size)
        work = counts.sum(axis=0).astype(np.float64)
        renders = assigner(counts, work)
        flow = np.zeros((size, size), np.int64)  # owner → render rank
        for rank in range(size):
            flow[:, rank] = counts[:, renders == rank].sum(axis=1)
        crossing = flow * (1 - np.eye(size, dtype=np.int64))
        far = (crossing * (hosts[:, None] != hosts[None, :])).sum()
        received = crossing.sum(axis=0) * forward + crossing.sum(axis=1) * back
        rendered = flow.sum(axis=0)
        sums += [crossing.sum(), far, received.max(), rendered.max() / max(rendered.mean(), 1e-9), flow.sum()]
    crossed, far, receiver, balance, total = (sums / len(units)).tolist()
    points = np.bincount(owners, weights=profile.cell_sizes, minlength=size)
    return Cost(round(crossed * (forward + back)), round(far * (forward + back)), round(receiver),
                float(points.max() / points.mean()), balance, crossed / max(total, 1), far / max(total, 1))


def unit_counts(profile: Profile, owners: np.ndarray, patches: np.ndarray, size: int) -> np.ndarray:
    """Return how many splats of each rank the given patches read, (size, P) int64."""
    lengths = profile.indptr[patches + 1] - profile.indptr[patches]
    column = np.repeat(np.arange(len(patches)), lengths)
    within = np.arange(len(column)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    entry = np.repeat(profile.indptr[patches], lengths) + within
    key = owners[profile.cells[entry]] * len(patches) + column
    table = np.bincount(key, weights=profile.counts[entry], minlength=size * len(patches))
    return table.astype(np.int64).reshape(size, len(patches))
