"""``gaian plan``: what any number of ranks would send and hold, from a scene's or a survey's access profile alone."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gaian_hpc.assignment.solve import assign
from gaian_hpc.data.profiles import read_profile
from gaian_hpc.distributed.exchange import Layout
from gaian_hpc.errors import DataError, PlacementError, SettingsError
from gaian_hpc.placement.partition import partition
from gaian_hpc.placement.profile import Profile, count_access
from gaian_hpc.placement.report import Cost, measure, sample_units
from gaian_hpc.points.cells import cell_bounds, cell_of, morton_codes
from gaian_hpc.renderers.base import build_renderer
from gaian_hpc.settings import Settings
from gaian_hpc.training.start import open_scene, start_points

BASELINE = "random-whole-images"
CURVE = (1.6, 1.4, 1.2, 1.1, 1.05)
UNITS = 4
ID_BYTES = 4
SCENE_PATCHES = 8
CELL_POINTS = 256


def run_plan(path: Path | str, settings: Settings, options: Any, *, ranks: int, hosts: int, views_per_rank: int,
             patches: int, codec: str, curve: bool = False, as_json: bool = False) -> int:
    """Print what each way to place and assign costs, and return the exit code.

    Parameters
    ----------
    path : path
        Folder of a scene, or a profile (.npz).
    settings, options
        Of a training run; ``placement`` and ``exchange`` say how cells are placed and patches assigned.
    ranks, hosts, views_per_rank : int
    patches : int
        Patches along a picture's longer side; 0 = 8, or those of the profile.
    codec : str
        Form of splats and gradients, as far as the method allows; the baseline is in fp32.
    curve : bool
        Also place by ``metis`` with the points ever more even.
    """
    host_of_rank = np.arange(ranks) * hosts // ranks
    path = Path(path)
    whole, fine = from_file(path, patches) if path.is_file() else from_scene(path, settings, options, patches)
    renderer = build_renderer(settings.method, options, "cpu")
    units = sample_units(fine.n_views, min(views_per_rank * ranks, fine.n_views), UNITS, settings.seed)
    s, e = settings.placement, settings.exchange

    def locality(counts: np.ndarray, work: np.ndarray) -> np.ndarray:
        return assign(counts, work, host_of_rank, slack=e.slack, host_factor=e.host_factor)

    def contiguous(counts: np.ndarray, work: np.ndarray) -> np.ndarray:
        return assign(counts, work, host_of_rank, method="contiguous")

    def cost(profile: Profile, method: str, assigner: Callable, used: str, slack: float) -> Cost:
        share = s.work_share if slack > CURVE[-1] else 0.0
        owners = partition(fine, host_of_rank, method=method, work_share=share, points_slack=slack, seed=settings.seed)
        return measure(profile, owners, host_of_rank, units, assigner, *record_bytes(renderer, used))

    variants = {BASELINE: (whole, "random", contiguous, "fp32", s.points_slack),
                **{m: (fine, m, locality, codec, s.points_slack) for m in ("random", "morton", "metis")}}
    if curve:
        variants |= {f"metis, points {slack:g}": (fine, "metis", locality, codec, slack) for slack in CURVE}
    table = {name: {**dataclasses.asdict(cost(*variant)), "placement": variant[1],
                    "assignment": "contiguous" if name == BASELINE else "locality", "codec": variant[3]}
             for name, variant in variants.items()}
    print(json.dumps(table) if as_json else report_text(table, fine, ranks, hosts, len(units[0])))
    return 0


def check_plan(ranks: int, hosts: int, views_per_rank: int, patches: int) -> None:
    """Refuse numbers that make no plan.

    Raises
    ------
    SettingsError
    """
    for name, value, least in (("ranks", ranks, 1), ("hosts", hosts, 1), ("views-per-rank", views_per_rank, 1),
                               ("patches", patches, 0)):
        if value < least:
            raise SettingsError(f"argument --{name} is {value}; it must be at least {least}")
    if hosts > ranks:
        raise SettingsError(f"argument --hosts is {hosts} with --ranks {ranks}; a host needs at least one rank")


def from_file(path: Path, patches: int) -> tuple[Profile, Profile]:
    """Return the profiles of a file over whole views and over patches."""
    whole, fine = read_profile(path)
    if fine is None:
        if patches > 1:
            raise DataError(f"{path}: has no patches, so it cannot be planned with --patches {patches}; write it with "
                            "patch_indptr, patch_indices and patch_counts, or leave out --patches")
        return whole, whole
    side = round((fine.n_patches / fine.n_views) ** 0.5)
    if not patches or patches == side:
        return whole, fine
    if side % patches:
        raise PlacementError(f"{path}: has {side} x {side} patches a view, which --patches {patches} does not divide; use "
                             "a divisor")
    return whole, fine.coarser(side, side // patches)


def from_scene(path: Path, settings: Settings, options: Any, patches: int) -> tuple[Profile, Profile]:
    """Return the profiles of a scene's start points over its training views and over their patches."""
    scene = open_scene(path, settings.data)
    renderer = build_renderer(settings.method, options, "cpu")
    store = start_points(scene, settings, renderer.attributes)
    means = store.raw["means"]
    codes = morton_codes(means, means.min(axis=0), means.max(axis=0))
    bounds = cell_bounds(np.sort(codes), max(store.n // CELL_POINTS, min(store.n, 4096)))
    views = [scene.views[i] for i in scene.train_idx.tolist()]
    longest = max(max(v.width, v.height) for v in views)
    every = max(1, store.n // settings.placement.profile_points)

    def profile(patch_size: int) -> Profile:
        return count_access(renderer, store.values, cell_of(codes, bounds), len(bounds) + 1, views, patch_size, every)

    return profile(longest), profile(-(-longest // (patches or SCENE_PATCHES)))


def record_bytes(renderer: Any, codec: str) -> tuple[float, float]:
    """Return the bytes of a splat with its id, and of its gradients, as the exchange sends them."""
    n = 1 << 16
    forward, back = (Layout(fields, codec, {}).size(n) / n
                     for fields in (renderer.splat_fields, renderer.gradient_fields))
    return forward + ID_BYTES, back


def report_text(table: dict[str, dict[str, Any]], profile: Profile, ranks: int, hosts: int, n_views: int) -> str:
    """Return the costs side by side."""
    base = table[BASELINE]
    lines = [f"{profile.cell_sizes.sum():,} points in {profile.n_cells:,} cells, {profile.n_views:,} views of "
             f"{profile.n_patches / profile.n_views:.0f} patches; {ranks} ranks on {hosts} hosts, {n_views} views a step",
             f"{'':<22}{'MB a step':>11}{'less':>7}{'between hosts':>15}{'less':>7}{'most to one':>13}"
             f"{'points':>8}{'work':>6}"]
    for name, row in table.items():
        less, far_less = (f"{1 - row[k] / base[k]:.0%}" if base[k] else "-" for k in ("bytes_total", "bytes_inter_host"))
        lines.append(f"{name:<22}{row['bytes_total'] / 1e6:>11.2f}{less:>7}{row['bytes_inter_host'] / 1e6:>15.2f}"
                     f"{far_less:>7}{row['bytes_max_receiver'] / 1e6:>13.3f}{row['balance_points']:>8.2f}"
                     f"{row['balance_work']:>6.2f}")
    return "\n".join([*lines, "points, work: the fullest rank over the mean; pixels at patch borders are not counted"])
