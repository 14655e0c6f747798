"""Which rank renders which patch of a unit (Gaian, "online assignment"): splats at home, work and receipt bounded.

Cost of patch p on rank r: splats that cross to r, those between hosts weighed ``host_factor`` times. The bounds are met
on average first, by prices of work and of receipt that rise where a rank has too much (subgradient steps on the
Lagrangian dual of the assignment problem: Fisher 1981). A greedy pass at these prices keeps the bound on work patch by
patch; sweeps of moves and swaps then lower the cost itself.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numba import njit

ROUNDS = 40  # of prices; at 128 ranks and 32,768 patches 20 rounds cost 0.3 % more, 100 rounds 0.1 % less
STEP = 0.25  # of a price per round, in the cost of a crossing splat, for a rank at twice its bound
SLOWING = 8  # rounds after which steps are half as long
SWEEPS = 8
BLOCK = 1024


def assign(counts: np.ndarray, work: np.ndarray, hosts: np.ndarray, *,
           method: Literal["locality", "contiguous"] = "locality", slack: float = 1.15,
           speeds: np.ndarray | None = None, host_factor: float = 4.0, receiver_slack: float = 2.0) -> np.ndarray:
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
    receiver_slack : float
        Splats and gradients that a rank receives, over the mean, from which receipt costs more. What it owns and cannot
        render itself comes back to it in any case.

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
    work, counts = np.ascontiguousarray(work, np.float64), np.ascontiguousarray(counts, np.int64)
    host = np.unique(np.asarray(hosts), return_inverse=True)[1].astype(np.int64)
    dearest = float(host_factor) if host.max() else 1.0
    cost = crossing_cost(counts, host, np.float32(dearest))
    speed = speed / speed.mean()
    cap = slack * work.sum() / size * speed
    work_price, receipt_price = _prices(cost, counts, work, cap, float(receiver_slack), STEP * dearest)
    _charge_receipt(cost, counts, receipt_price)
    return _solve(np.ascontiguousarray(cost.T), work, speed, cap, work_price)


@njit(cache=True, nogil=True, error_model="numpy")
def crossing_cost(counts, host, host_factor):
    """Return (R, P) float32: the cost of what each patch makes cross when rendered on each rank.

    Parameters
    ----------
    counts : (R, P) int64
    host : (R,) int64
        Host of each rank, 0 … H − 1.
    host_factor : float32
    """
    size, n_patches = counts.shape
    at_host = np.zeros((host.max() + 1, n_patches), np.float32)
    total = np.zeros(n_patches, np.float32)
    for r in range(size):
        for p in range(n_patches):
            n = np.float32(counts[r, p])
            at_host[host[r], p] += n
            total[p] += n
    cost = np.empty((size, n_patches), np.float32)
    for r in range(size):
        for p in range(n_patches):
            near = at_host[host[r], p]
            cost[r, p] = host_factor * (total[p] - near) + near - np.float32(counts[r, p])
    return cost


@njit(cache=True, nogil=True, error_model="numpy")
def _prices(cost, counts, work, cap, receiver_slack, step):
    """Return prices (R,) of a unit of work on each rank, and of a splat or gradient that it receives."""
    size, n_patches = cost.shape
    price, price_sum = np.zeros(size, np.float32), np.zeros(size)
    receipt, receipt_sum = np.zeros(size, np.float32), np.zeros(size)
    total, owned = np.zeros(n_patches), np.zeros(size)
    for r in range(size):
        for p in range(n_patches):
            total[p] += counts[r, p]
        owned[r] = counts[r].sum()
    # In splats, so that a price of work compares with a cost.
    scale = total.sum() / work.sum() if work.sum() > 0 else 0.0
    short = (work * scale).astype(np.float32)
    load, received = np.empty(size), np.empty(size)
    best = np.empty(n_patches, np.int32)
    for k in range(ROUNDS):
        _cheapest(cost, price, short, best)
        load[:] = 0
        received[:] = owned  # as gradients, were nothing rendered at home
        for p in range(n_patches):
            load[best[p]] += work[p]
            received[best[p]] += total[p] - 2 * counts[best[p], p]
        length = step / (1 + k / SLOWING)
        most = receiver_slack * received.mean()
        for r in range(size):
            price[r] = max(np.float32(0), price[r] + np.float32(length * (load[r] / max(cap[r], 1e-300) - 1)))
            receipt[r] = max(np.float32(0), receipt[r] + np.float32(length * (received[r] / max(most, 1e-300) - 1)))
        if 2 * k >= ROUNDS:
            price_sum += price
            receipt_sum += receipt
    n = ROUNDS - (ROUNDS + 1) // 2
    return price_sum / n * scale, receipt_sum / n


@njit(cache=True, nogil=True, error_model="numpy")
def _charge_receipt(cost, counts, receipt_price):
    """Add to the cost of each patch on each rank what the rank then receives more: splats, less gradients."""
    size, n_patches = cost.shape
    total = counts.sum(axis=0)
    for r in range(size):
        for p in range(n_patches):
            cost[r, p] += np.float32(receipt_price[r] * (total[p] - 2 * counts[r, p]))


@njit(cache=True, nogil=True, error_model="numpy")
def _cheapest(cost, price, short, best):
    """Set ``best`` to the rank where each patch is cheapest with the price of its work, the first of several."""
    size, n_patches = cost.shape
    lowest = np.empty(BLOCK, np.float32)
    for start in range(0, n_patches, BLOCK):  # blocks stay in the nearest cache; their inner loop is vectorised
        n = min(BLOCK, n_patches - start)
        block, weight, low = best[start:start + n], short[start:start + n], lowest[:n]
        low[:] = np.inf
        for r in range(size):
            row, rank, dear = cost[r, start:start + n], np.int32(r), price[r]
            for i in range(n):
                value = row[i] + dear * weight[i]
                block[i] = rank if value < low[i] else block[i]
                low[i] = min(value, low[i])


@njit(cache=True, nogil=True, error_model="numpy")
def _solve(cost, work, speed, cap, price):
    """Return the ranks of patches: greedily at the prices of work, then by moves and swaps at the cost itself."""
    n_patches, size = cost.shape
    out = np.full(n_patches, -1, np.int64)
    load = np.zeros(size)
    for p in _by_regret(cost, work, price):
        best, lowest = -1, np.inf
        for r in range(size):
            value = cost[p, r] + price[r] * work[p]
            if value < lowest and load[r] + work[p] <= cap[r]:
                best, lowest = r, value
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
def _by_regret(cost, work, price):
    """Return patches by what they lose on their second-best rank, largest first, ties in order."""
    n_patches, size = cost.shape
    regret = np.empty(n_patches)
    for p in range(n_patches):
        first, second = np.inf, np.inf
        for r in range(size):
            c = cost[p, r] + price[r] * work[p]
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
