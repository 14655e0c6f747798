"""Which rank renders which patch of a unit: most splats at home, within a bound on render work (Gaian, "online assignment").

Cost of patch p on rank r: splats that cross to r, those between hosts weighed ``host_factor`` times. A greedy pass takes
patches by how much they lose away from their best rank; sweeps of moves and swaps then lower the cost further.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numba import njit

SWEEPS = 8


def assign(counts: np.ndarray, work: np.ndarray, hosts: np.ndarray, *,
           method: Literal["locality", "contiguous"] = "locality", slack: float = 1.15,
           speeds: np.ndarray | None = None, host_factor: float = 4.0) -> np.ndarray:
    """Return the render rank of each patch; the same for the same input.

    Parameters
    ----------
    counts : (R, P) int64
        Splats of each patch by owner.
    work : (P,) float64
        Render work of each patch.
    hosts : (R,) int
        Host of each rank.
    method : {"locality", "contiguous"}
        ``contiguous`` deals patches out in order, as many to each rank.
    slack : float
        Work of a rank, over its fair share, that is allowed; more only where no assignment stays within.
    speeds : (R,) float64, optional
        Relative speed of each rank, by which fair shares of work are dealt; equal by default.
    host_factor : float
        Cost of a splat between hosts in splats within a host.

    Returns
    -------
    (P,) int64
    """
    size, n_patches = counts.shape
    if method == "contiguous":
        return np.arange(n_patches) * size // max(n_patches, 1)
    if size == 1 or n_patches == 0:
        return np.zeros(n_patches, np.int64)
    speed = np.ones(size) if speeds is None else np.asarray(speeds, np.float64)
    cost = crossing_cost(counts, np.asarray(hosts), host_factor)
    return _solve(cost, np.asarray(work, np.float64), speed / speed.mean(), float(slack))


def crossing_cost(counts: np.ndarray, hosts: np.ndarray, host_factor: float) -> np.ndarray:
    """Return (P, R) float32: the cost of rendering each patch on each rank, less what is the same on all."""
    _, host = np.unique(hosts, return_inverse=True)
    if host.max() == 0:
        return np.ascontiguousarray(-counts.T.astype(np.float32))
    at_host = np.zeros((host.max() + 1, counts.shape[1]), np.float32)
    np.add.at(at_host, host, counts)
    # All splats at host_factor, less those of the same host, which cost 1, less one's own, which cost nothing.
    return np.ascontiguousarray((-(np.float32(host_factor - 1)) * at_host[host] - counts.astype(np.float32)).T)


@njit(cache=True, nogil=True, error_model="numpy")
def _solve(cost, work, speed, slack):
    n_patches, size = cost.shape
    cap = slack * work.sum() / size * speed
    out = np.full(n_patches, -1, np.int64)
    load = np.zeros(size)
    for p in _by_regret(cost):
        best = -1
        for r in range(size):
            if load[r] + work[p] <= cap[r] and (best < 0 or cost[p, r] < cost[p, best]):
                best = r
        if best < 0:  # nowhere within the bound: where it is least exceeded
            best = 0
            for r in range(1, size):
                if (load[r] + work[p]) / speed[r] < (load[best] + work[p]) / speed[best]:
                    best = r
        out[p] = best
        load[best] += work[p]
    _level(cost, work, speed, cap, out, load)
    for _ in range(SWEEPS):
        if not _sweep(cost, work, cap, out, load):
            break
    return out


@njit(cache=True, nogil=True, error_model="numpy")
def _by_regret(cost):
    """Return patches by what they lose on their second-best rank, largest first, ties in order."""
    n_patches, size = cost.shape
    regret = np.empty(n_patches)
    for p in range(n_patches):
        first, second = np.inf, np.inf
        for r in range(size):
            c = cost[p, r]
            if c < first:
                first, second = c, first
            elif c < second:
                second = c
        regret[p] = first - second
    return np.argsort(regret, kind="mergesort")


@njit(cache=True, nogil=True, error_model="numpy")
def _level(cost, work, speed, cap, out, load):
    """Move patches off ranks above their bound as long as that lowers the highest relative load."""
    n_patches, size = cost.shape
    for _ in range(n_patches):
        worst = np.argmax(load / speed)
        if load[worst] <= cap[worst]:
            return
        chosen, target, least = -1, -1, np.inf
        for p in range(n_patches):
            if out[p] != worst or work[p] == 0:
                continue
            for r in range(size):
                if (load[r] + work[p]) / speed[r] < load[worst] / speed[worst]:
                    loss = (cost[p, r] - cost[p, worst]) / work[p]
                    if loss < least:
                        chosen, target, least = p, r, loss
        if chosen < 0:
            return
        out[chosen] = target
        load[worst] -= work[chosen]
        load[target] += work[chosen]


@njit(cache=True, nogil=True, error_model="numpy")
def _sweep(cost, work, cap, out, load):
    """Move every patch, or swap it with one of the rank it wants, where that lowers the cost; tell if any was."""
    n_patches, size = cost.shape
    # Patches by rank, for swaps: heads of linked lists.
    head = np.full(size, -1, np.int64)
    after = np.empty(n_patches, np.int64)
    for p in range(n_patches - 1, -1, -1):
        after[p] = head[out[p]]
        head[out[p]] = p
    changed = False
    for p in range(n_patches):
        here = out[p]
        best, gain = -1, 1e-6
        partner = -1
        for r in range(size):
            saved = cost[p, here] - cost[p, r]
            if r == here or saved <= gain:
                continue
            if load[r] + work[p] <= cap[r]:
                best, gain, partner = r, saved, -1
                continue
            q = head[r]
            while q >= 0:
                if out[q] == r:
                    total = saved + cost[q, r] - cost[q, here]
                    if (total > gain and load[r] - work[q] + work[p] <= max(cap[r], load[r])
                            and load[here] - work[p] + work[q] <= max(cap[here], load[here])):
                        best, gain, partner = r, total, q
                q = after[q]
        if best < 0:
            continue
        changed = True
        out[p] = best
        load[here] -= work[p]
        load[best] += work[p]
        if partner >= 0:
            out[partner] = here
            load[best] -= work[partner]
            load[here] += work[partner]
    return changed
