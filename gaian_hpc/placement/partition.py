"""Offline placement: which rank owns which cell, first across hosts, then across a host's ranks (Gaian).

Partitioning of the graph whose vertices are cells and patches, an edge weighing the splats of a cell that a patch
reads: a part is what a rank owns and renders, and the cut is what crosses ranks. Rounds of the online assignment, of
patches to the ranks of their cells and of cells to the ranks of their patches, then lower what is really sent.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from ..assignment.solve import assign
from ..errors import PlacementError
from .profile import Profile, row_starts

UNIT = 1 << 20  # weights are whole numbers with this sum
EDGES = 1_000_000  # of more, those of random views: four times as many gained nothing
IMBALANCE = 1.03  # of loads at each of the two levels
CUTS = 4  # tries of which METIS keeps the best, for ranks of a host; for hosts more gained nothing
ROUNDS = 2  # of refinement; further ones gain 0.2 % each
PATCHES = 32_768  # that a round looks at
TABLE = 1 << 25  # cells × ranks above which nothing is refined, for memory
WORK_SLACK = 1.15  # of the assignment that is expected


def partition(profile: Profile, hosts: np.ndarray, *, method: Literal["metis", "morton", "random"] = "metis",
              work_share: float = 0.5, points_slack: float = 1.5, seed: int = 0,
              targets: np.ndarray | None = None) -> np.ndarray:
    """Return the rank that owns each cell; the same for the same input.

    Parameters
    ----------
    profile : Profile
        Cells in the order of a space-filling curve.
    hosts : (R,) int
        Host of each rank; hosts may have different numbers of ranks.
    method : {"metis", "morton", "random"}
        ``morton`` cuts the curve, ``random`` deals cells out as other systems deal out points.
    work_share : float in [0, 1]
        How far a rank's load is measured by the splats that are read of its cells, rather than by its points.
    points_slack : float
        Points of a rank, over the mean, that the load may lead to; work counts less until this holds.
    seed : int
    targets : (R,) float, optional
        Wanted share of each rank; equal by default.

    Returns
    -------
    (G,) int64

    Raises
    ------
    PlacementError
        If the method is not known, or a target not positive.
    """
    hosts = np.asarray(hosts, np.int64)
    wanted = np.ones(len(hosts)) if targets is None else np.asarray(targets, np.float64)
    if not (np.isfinite(wanted) & (wanted > 0)).all():
        worst = int(np.argmin(wanted))
        raise PlacementError(f"the wanted share of rank {worst} is {wanted[worst]}; it must be positive")
    wanted = wanted / wanted.sum()
    if method == "random":
        return _random(profile, wanted, seed)
    if method not in ("morton", "metis"):
        raise PlacementError(f"placement method is {method!r}; it must be metis, morton or random")
    loads = point_and_work_loads(profile)
    affordable = _affordable_share(loads, wanted, work_share, points_slack)
    for share in (affordable, 0.75 * affordable, 0.0):
        weights = _mixed(loads, share)
        owners = (_cut(weights, wanted) if method == "morton" else
                  _metis(profile, hosts, wanted, weights, seed, min(IMBALANCE, points_slack**0.5)))
        if share == 0 or _fullest(loads, owners, wanted) <= points_slack:
            break
    if method == "morton":
        return owners
    return _refined(profile, owners, hosts, wanted, loads, share, points_slack, seed)


def point_and_work_loads(profile: Profile) -> tuple[np.ndarray, np.ndarray]:
    """Return each cell's share of all points, and of all splats that are read, (G,) float64 each.

    Where there are none of one kind, the other's shares stand for it.
    """
    points, work = profile.cell_sizes / max(profile.cell_sizes.sum(), 1), profile.read_work()
    work = work / work.sum() if work.sum() > 0 else points
    return points, work


def _mixed(loads: tuple[np.ndarray, np.ndarray], work_share: float) -> np.ndarray:
    """Return the load of each cell, (G,) float64 of sum 1."""
    return (1 - work_share) * loads[0] + work_share * loads[1]


def _affordable_share(loads: tuple[np.ndarray, np.ndarray], wanted: np.ndarray, work_share: float,
                      points_slack: float) -> float:
    """Return how far work may count, up to ``work_share``, for a cut of the curve to keep to ``points_slack``."""
    def fits(share: float) -> bool:
        return _fullest(loads, _cut(_mixed(loads, share), wanted), wanted) <= points_slack

    low, high = 0.0, work_share
    if fits(high):
        return high
    for _ in range(10):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _fullest(loads: tuple[np.ndarray, np.ndarray], owners: np.ndarray, wanted: np.ndarray) -> float:
    """Return the points of the fullest rank over those it should have."""
    return float((np.bincount(owners, weights=loads[0], minlength=len(wanted)) / wanted).max())


def relabel(owners: np.ndarray, before: np.ndarray, sizes: np.ndarray, hosts: np.ndarray,
            targets: np.ndarray | None = None) -> np.ndarray:
    """Return the placement with its parts renamed so that few points move: hosts as a whole first, then ranks of a
    host.

    Parameters
    ----------
    owners, before : (G,) int
        New placement, and the rank that holds most of each cell now.
    sizes : (G,) int64
        Points of each cell.
    hosts : (R,) int
        Host of each rank. Hosts trade places with hosts of as many ranks only.
    targets : (R,) float, optional
        Wanted share of each rank, as for :func:`partition`; only those that want the same trade places.
    """
    hosts = np.unique(np.asarray(hosts), return_inverse=True)[1]
    n_hosts, size = hosts.max() + 1, len(hosts)
    wanted = np.ones(size) if targets is None else np.asarray(targets, np.float64)
    kept = _forbid_unlike(_overlap(hosts[owners], hosts[before], sizes, n_hosts), np.bincount(hosts, weights=wanted))
    host_name = _best(_forbid_unlike(kept, np.bincount(hosts)))
    within = _forbid_unlike(_overlap(owners, before, sizes, size), wanted)
    names = np.empty(size, np.int64)
    for host in range(n_hosts):
        new, old = np.flatnonzero(hosts == host), np.flatnonzero(hosts == host_name[host])
        names[new] = old[_best(within[np.ix_(new, old)])]
    return names[owners]


def _overlap(a: np.ndarray, b: np.ndarray, sizes: np.ndarray, n: int) -> np.ndarray:
    return np.bincount(a.astype(np.int64) * n + b, weights=sizes, minlength=n * n).reshape(n, n)


def _forbid_unlike(kept: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return ``kept`` (n, n) with a loss, larger than any gain, where two parts want different shares."""
    unlike = ~np.isclose(wanted[:, None], wanted[None, :], rtol=1e-2)
    return np.where(unlike, -kept.sum() - 1, kept)


def _best(kept: np.ndarray) -> np.ndarray:
    from scipy.optimize import linear_sum_assignment

    return linear_sum_assignment(kept, maximize=True)[1]


def _random(profile: Profile, wanted: np.ndarray, seed: int) -> np.ndarray:
    """Deal cells out at random, each rank its share of points."""
    order = np.random.default_rng(seed).permutation(profile.n_cells)
    owners = np.empty(profile.n_cells, np.int64)
    owners[order] = _cut(profile.cell_sizes[order] / max(profile.cell_sizes.sum(), 1), wanted)
    return owners


def _cut(weights: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Cut a row of weights into consecutive parts of the wanted shares."""
    middle = np.cumsum(weights) - weights / 2
    return np.searchsorted(np.cumsum(wanted)[:-1] * weights.sum(), middle, side="right").astype(np.int64)


def _metis(profile: Profile, hosts: np.ndarray, wanted: np.ndarray, weights: np.ndarray, seed: int,
           imbalance: float) -> np.ndarray:
    """Partition cells and patches together, first over hosts, then each host's over its ranks."""
    patch, cell, count = _edges(profile, seed)
    names = np.unique(hosts)
    owners = np.zeros(profile.n_cells, np.int64)
    shares = np.array([wanted[hosts == name].sum() for name in names])
    cell_part, patch_part = _bisect(patch, cell, count, weights, shares, seed, imbalance, 1)
    for i, name in enumerate(names):
        ranks = np.flatnonzero(hosts == name)
        mine = np.flatnonzero(cell_part == i)
        if len(ranks) == 1 or len(mine) == 0:
            owners[mine] = ranks[0]
            continue
        inside = (cell_part[cell] == i) & (patch_part[patch] == i)
        number = np.full(profile.n_cells, -1)
        number[mine] = np.arange(len(mine))
        parts, _ = _bisect(patch[inside], number[cell[inside]], count[inside], weights[mine], wanted[ranks], seed,
                           imbalance, CUTS)
        owners[mine] = ranks[parts]
    return owners


def _edges(profile: Profile, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return patch, cell and splats of the entries of all views, or of as many at random as make few enough."""
    patch = profile.patch_of_entry()
    if len(patch) <= EDGES:
        return patch, profile.cells.astype(np.int64), profile.counts
    chosen = np.zeros(profile.n_views, bool)
    chosen[_some_views(profile, EDGES / len(patch), seed)] = True
    kept = chosen[profile.patch_view[patch]]
    return patch[kept], profile.cells[kept].astype(np.int64), profile.counts[kept]


def _some_views(profile: Profile, fraction: float, seed: int | list[int]) -> np.ndarray:
    """Return a random fraction of the views, at least one: neighbours in a list of views look in ever the same ways."""
    n = max(1, int(profile.n_views * min(fraction, 1)))
    return np.random.default_rng(seed).permutation(profile.n_views)[:n]


def _refined(profile: Profile, owners: np.ndarray, hosts: np.ndarray, wanted: np.ndarray,
             loads: tuple[np.ndarray, np.ndarray], work_share: float, points_slack: float, seed: int) -> np.ndarray:
    """Return the owners after rounds of assigning patches to ranks and cells to the ranks of their patches."""
    size = len(hosts)
    if size == 1 or size * profile.n_cells > TABLE or profile.n_patches == 0:
        return owners
    of_view = np.searchsorted(profile.patch_view, np.arange(profile.n_views + 1))
    for k in range(ROUNDS):
        views = np.sort(_some_views(profile, PATCHES / profile.n_patches, [seed, k]))
        part = profile.rows(np.concatenate([np.arange(of_view[v], of_view[v + 1]) for v in views]))
        renders = assign(part.owned(owners, size), part.render_work(), hosts, slack=WORK_SLACK, speeds=wanted)
        readers = np.bincount(renders[part.patch_of_entry()] * profile.n_cells + part.cells, weights=part.counts,
                              minlength=size * profile.n_cells).astype(np.int64).reshape(size, -1)
        readers[owners, np.arange(profile.n_cells)] += 1  # a cell that nobody reads stays
        better = assign(readers, _mixed(loads, work_share), hosts, slack=min(IMBALANCE**2, points_slack),
                        speeds=wanted, receiver_slack=np.inf)
        if _fullest(loads, better, wanted) > max(points_slack, _fullest(loads, owners, wanted)):
            break
        owners = better
    return owners


def _bisect(patch: np.ndarray, cell: np.ndarray, count: np.ndarray, weights: np.ndarray, shares: np.ndarray,
            seed: int, imbalance: float, cuts: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the parts of cells (all of ``weights``) and of patches, by METIS on their graph."""
    import pymetis

    n_parts, n_cells = len(shares), len(weights)
    names, patch_idx = np.unique(patch, return_inverse=True)
    patch_part = np.zeros(int(patch.max()) + 1 if len(patch) else 0, np.int64)
    if n_parts == 1:
        return np.zeros(n_cells, np.int64), patch_part
    if n_cells <= n_parts or len(patch) == 0 or weights.sum() == 0:
        return _cut(weights, shares / shares.sum()), patch_part
    n = n_cells + len(names)
    rows = np.concatenate([cell, patch_idx + n_cells])
    order = np.argsort(rows, kind="stable")
    columns = np.concatenate([patch_idx + n_cells, cell])[order]
    edge_weights = np.concatenate([count, count])[order]
    scaled = np.concatenate([np.maximum(np.rint(weights / weights.sum() * UNIT), 1), np.zeros(len(names))])
    options = pymetis.Options(seed=seed, ufactor=max(1, int(1000 * (imbalance - 1))), ncuts=cuts)
    graph = pymetis.CSRAdjacency(row_starts(rows, n), columns)
    _, parts = pymetis.part_graph(n_parts, graph, vweights=scaled.astype(np.int64), recursive=False, options=options,
                                  eweights=edge_weights.astype(np.int64), tpwgts=(shares / shares.sum()).tolist())
    parts = np.asarray(parts, np.int64)
    patch_part[names] = parts[n_cells:]
    return parts[:n_cells], patch_part
