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
        Most over mean: points of a rank, and render work of a rank in a unit.
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


def measure(profile: Profile, owners: np.ndarray, hosts: np.ndarray, units: Sequence[np.ndarray],
            assigner: Callable[[np.ndarray, np.ndarray], np.ndarray], work: np.ndarray, forward: float,
            back: float) -> Cost:
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
    work : (P,) float64
        Render work of all patches of the profile.
    forward, back : float
        Bytes of a splat with its id, and of its gradients.
    """
    size = len(hosts)
    first = np.searchsorted(profile.patch_view, np.arange(profile.n_views + 1))
    sums = np.zeros(5)
    for views in units:
        patches = np.concatenate([np.arange(first[v], first[v + 1]) for v in views.tolist()])
        part = profile.rows(patches)
        renders = assigner(part.owned(owners, size), work[patches])
        flow = crossings(part, owners, renders, size)
        crossing = flow * (1 - np.eye(size, dtype=np.int64))
        far = (crossing * (hosts[:, None] != hosts[None, :])).sum()
        received = crossing.sum(axis=0) * forward + crossing.sum(axis=1) * back
        rendered = np.bincount(renders, weights=work[patches], minlength=size)
        sums += [crossing.sum(), far, received.max(), rendered.max() / max(rendered.mean(), 1e-9), flow.sum()]
    crossed, far, receiver, balance, total = (sums / len(units)).tolist()
    points = np.bincount(owners, weights=profile.cell_sizes, minlength=size)
    return Cost(round(crossed * (forward + back)), round(far * (forward + back)), round(receiver),
                float(points.max() / points.mean()), balance, crossed / max(total, 1), far / max(total, 1))


def crossings(profile: Profile, owners: np.ndarray, renders: np.ndarray, size: int) -> np.ndarray:
    """Return (R, R) int64: splats that each owner (row) reads for each render rank (column)."""
    key = owners[profile.cells] * size + renders[profile.patch_of_entry()]
    return np.bincount(key, weights=profile.counts, minlength=size * size).astype(np.int64).reshape(size, size)


def homes(profile: Profile, owners: np.ndarray, size: int) -> np.ndarray:
    """Return the rank that owns most of what each view reads, (V,) int64."""
    key = profile.patch_view[profile.patch_of_entry()].astype(np.int64) * size + owners[profile.cells]
    held = np.bincount(key, weights=profile.counts, minlength=profile.n_views * size)
    return held.reshape(-1, size).argmax(axis=1)
