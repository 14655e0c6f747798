"""``gaian plan``: what any number of ranks would send and hold, from a scene's or a survey's access profile alone."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gaian_hpc.assignment.solve import assign
from gaian_hpc.data.patches import make_grid
from gaian_hpc.data.profiles import read_profile
from gaian_hpc.data.sampler import EpochSampler, StratifiedSampler
from gaian_hpc.distributed.exchange import Layout
from gaian_hpc.errors import DataError, PlacementError, SettingsError
from gaian_hpc.placement.partition import partition
from gaian_hpc.placement.profile import Profile, count_patches
from gaian_hpc.placement.report import Cost, homes, measure
from gaian_hpc.points.cells import cell_bounds, cell_of, morton_codes
from gaian_hpc.renderers.base import PointRenderer, build_renderer, positions
from gaian_hpc.settings import Settings
from gaian_hpc.training.placer import CELLS_PER_RANK
from gaian_hpc.training.start import open_scene, start_points
from gaian_hpc.training.unit import PIXEL_WORK

BASELINE = "random-whole-images"
CURVE = (1.6, 1.4, 1.2, 1.1, 1.05)
UNITS, VIEWS = 4, 2048  # that means are taken over, both at least, as far as an epoch has them
ID_BYTES = 4
SCENE_PATCHES = 8
FOLLOWED = 100_000_000  # pairs of a point and a view that a scene's profile looks at; of more, every k-th point


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to place points, to assign the pieces of views, and to batch views."""

    placement: str
    assignment: str
    codec: str
    points_slack: float
    batches: str = "shuffled"


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
        Patches along each side of a picture; 0 = 8, or those of the profile.
    codec : str
        Form of splats and gradients, as far as the method allows; the baseline is in fp32.
    curve : bool
        Also place by ``metis`` with the points ever more even.
    """
    path = Path(path)
    renderer = build_renderer(settings.method, options, "cpu", absgrad=settings.densify.absgrad)
    is_profile = path.is_file() or path.suffix == ".npz"
    whole, fine = from_file(path, patches) if is_profile else from_scene(path, settings, renderer, patches, ranks)
    n_views = min(views_per_rank * ranks, fine.n_views)  # a step cannot hold a view twice; ranks share its patches
    slack = settings.placement.points_slack
    variants = {BASELINE: Variant("random", "contiguous", "fp32", slack),
                **{name: Variant(name, "locality", codec, slack) for name in ("random", "morton", "metis")},
                "metis-stratified": Variant("metis", "locality", codec, slack, "stratified")}
    if curve:
        variants |= {f"metis, points {most:g}": Variant("metis", "locality", codec, most) for most in CURVE}
    host_of_rank, placed, table = np.arange(ranks) * hosts // ranks, {}, {}
    for name, v in variants.items():
        if (v.placement, v.points_slack) not in placed:
            placed[v.placement, v.points_slack] = partition(
                fine, host_of_rank, method=v.placement, work_share=settings.placement.work_share,
                points_slack=v.points_slack, seed=settings.seed)
        cost = measured(v, whole if name == BASELINE else fine, placed[v.placement, v.points_slack], host_of_rank,
                        n_views, settings, record_bytes(renderer, v.codec))
        table[name] = {**dataclasses.asdict(cost), **dataclasses.asdict(v)}
    print(json.dumps(table) if as_json else report_text(table, fine, ranks, hosts, n_views))
    return 0


def measured(variant: Variant, profile: Profile, owners: np.ndarray, hosts: np.ndarray, n_views: int,
             settings: Settings, record: tuple[float, float]) -> Cost:
    """Return what a variant costs in steps of ``n_views`` views."""
    e, views = settings.exchange, np.arange(profile.n_views)
    sampler = EpochSampler(views, n_views, settings.seed)
    if variant.batches == "stratified":
        sampler = StratifiedSampler(views, n_views, settings.seed, homes(profile, owners, len(hosts)))
    n_units = min(max(UNITS, -(-VIEWS // n_views)), max(1, len(views) // n_views))
    units = [np.array(sampler.unit(step)) for step in range(n_units)]

    def assigner(counts: np.ndarray, work: np.ndarray) -> np.ndarray:
        return assign(counts, work, hosts, method=variant.assignment, slack=e.slack, host_factor=e.host_factor)

    return measure(profile, owners, hosts, units, assigner, profile.render_work(PIXEL_WORK), *record)


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
        raise PlacementError(f"{path}: has {side} x {side} patches a view, which --patches {patches} does not divide; "
                             "use a divisor")
    return whole, fine.coarser(side, side // patches)


def from_scene(path: Path, settings: Settings, renderer: PointRenderer, patches: int,
               ranks: int) -> tuple[Profile, Profile]:
    """Return the profiles of a scene's start points over its training views and over their patches."""
    scene = open_scene(path, settings.data)
    points = start_points(scene, settings, renderer.attributes).values
    means = positions(renderer, points)
    codes = morton_codes(means, means.min(axis=0), means.max(axis=0))
    bounds = cell_bounds(np.sort(codes), max(len(codes) // settings.placement.cell_points, CELLS_PER_RANK * ranks))
    views = [scene.views[i] for i in scene.train_idx.tolist()]
    every = -(-len(codes) * len(views) // FOLLOWED)
    whole, fine = (count_patches(renderer, points, cell_of(codes, bounds), len(bounds) + 1,
                                 [make_grid(view, side) for view in views], every)
                   for side in (1, patches or SCENE_PATCHES))
    return whole, fine


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
             f"{profile.n_patches / profile.n_views:.0f} patches; {ranks} ranks on {hosts} hosts, {n_views} "
             "views a step",
             f"{'':<22}{'MB a step':>11}{'less':>7}{'between hosts':>15}{'less':>7}{'most to one':>13}"
             f"{'points':>8}{'work':>6}"]
    for name, row in table.items():
        less, far_less = (f"{1 - row[k] / base[k]:.0%}" if base[k] else "-"
                          for k in ("bytes_total", "bytes_inter_host"))
        lines.append(f"{name:<22}{row['bytes_total'] / 1e6:>11.2f}{less:>7}{row['bytes_inter_host'] / 1e6:>15.2f}"
                     f"{far_less:>7}{row['bytes_max_receiver'] / 1e6:>13.3f}{row['balance_points']:>8.2f}"
                     f"{row['balance_work']:>6.2f}")
    return "\n".join([*lines, "points, work: the fullest rank over the mean; pixels at patch borders are not counted"])
