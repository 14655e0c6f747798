"""``gaian plan``: what each placement costs on any number of ranks, from who reads what alone; no ranks are needed."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gaian_hpc.arrays import Field
from gaian_hpc.assignment.solve import assign
from gaian_hpc.data.patches import make_grid, make_patches
from gaian_hpc.data.profiles import read_profile
from gaian_hpc.data.sampler import EpochSampler, StratifiedSampler
from gaian_hpc.distributed.codecs import BLOCK, codec_of, encoded_bytes
from gaian_hpc.errors import SettingsError
from gaian_hpc.placement.partition import partition
from gaian_hpc.placement.profile import Profile, count_patches
from gaian_hpc.placement.report import Cost, Traffic, cost, homes, measure
from gaian_hpc.points.cells import cell_bounds, cell_of, morton_codes
from gaian_hpc.renderers.base import PointRenderer, build_renderer
from gaian_hpc.settings import Settings
from gaian_hpc.training.start import open_scene, start_points
from gaian_hpc.training.unit import PIXEL_WORK

CELLS_PER_RANK = 64
FOLLOWED = 100_000_000  # pairs of a point and a view that a scene's profile looks at; of more, every k-th point
UNIT_VIEWS = 2048  # views, at least, that means are taken over,
UNITS = 4  # and units
MAX_VIEWS_PER_RANK = 4
ID_BYTES = 4  # of a splat's global id, forward only
MANY = 1 << 20


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked of ``gaian plan``; the arguments of its command line."""

    ranks: int
    hosts: int
    views_per_rank: int | None = None
    patches: int | None = None
    codec: str = "fp32"
    points_slack: tuple[float, ...] = ()
    units: int | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """Who reads what: by patches, and by whole views for comparison."""

    patches: Profile
    images: Profile
    text: str


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to place points, to cut and to batch views, and to assign the pieces."""

    placement: str
    assignment: str
    pieces: str
    batches: str
    points_slack: float | None

    @property
    def name(self) -> str:
        """The name in tables, in one line."""
        slack = "" if self.points_slack is None else f", points {self.points_slack:g}"
        return f"{self.placement}{slack}; {self.assignment} {self.pieces}; {self.batches}"


BASELINE = Variant("random", "contiguous", "images", "shuffled", None)


def run_plan(source: Path, settings: Settings, options: Any, plan: Plan, *, as_json: bool = False) -> int:
    """Print what a training step on ``source``, a scene's folder or a profile, moves under every partitioner."""
    if plan.hosts > plan.ranks:
        raise SettingsError(f"argument --hosts is {plan.hosts} but --ranks is {plan.ranks}; give at most a host a rank")
    renderer = build_renderer(settings.method, options, settings.backend, absgrad=settings.densify.absgrad)
    work = from_file(source, plan) if source.suffix == ".npz" else from_scene(source, settings, renderer, plan)
    plan = dataclasses.replace(plan, views_per_rank=views_per_rank(source, plan, work.patches.n_views),
                               points_slack=plan.points_slack or (settings.placement.points_slack,))
    print(work.text, file=sys.stderr)
    rows = []
    for variant, traffic in measured(work, settings, plan):
        for codec in dict.fromkeys(["fp32", plan.codec] if variant == BASELINE else [plan.codec]):
            forward, back = splat_bytes(renderer.splat_fields, codec) + ID_BYTES, splat_bytes(renderer.gradient_fields,
                                                                                              codec)
            rows.append((variant, codec, cost(traffic, forward, back)))
    print(json.dumps(as_dict(source, plan, rows)) if as_json else table(plan, rows))
    return 0


def measured(work: Workload, settings: Settings, plan: Plan) -> list[tuple[Variant, Traffic]]:
    """Return what every variant moves, the baseline first."""
    hosts = np.arange(plan.ranks) * plan.hosts // plan.ranks
    variants = [BASELINE, Variant("random", "locality", "patches", "shuffled", None)]
    variants += [Variant(method, "locality", "patches", "shuffled", slack) for method in ("morton", "metis")
                 for slack in plan.points_slack]
    variants.append(Variant("metis", "locality", "patches", "stratified", plan.points_slack[0]))
    placed: dict[tuple[str, float | None], np.ndarray] = {}
    out = []
    for v in variants:
        if (v.placement, v.points_slack) not in placed:
            placed[v.placement, v.points_slack] = partition(
                work.patches, hosts, method=v.placement, work_share=settings.placement.work_share,
                points_slack=v.points_slack or settings.placement.points_slack, seed=settings.seed)
        owners = placed[v.placement, v.points_slack]
        profile = work.images if v.pieces == "images" else work.patches
        solve = partial(assign, method=v.assignment, slack=settings.exchange.slack,
                        host_factor=settings.exchange.host_factor)
        out.append((v, measure(profile, owners, hosts, units(v, profile, owners, settings.seed, plan),
                               profile.render_work(PIXEL_WORK), solve)))
    return out


def units(variant: Variant, profile: Profile, owners: np.ndarray, seed: int, plan: Plan) -> list[np.ndarray]:
    """Return the views of the units that means are taken over."""
    size, views = plan.ranks * plan.views_per_rank, np.arange(profile.n_views)
    sampler = (StratifiedSampler(views, size, seed, homes(profile, owners, plan.ranks))
               if variant.batches == "stratified" else EpochSampler(views, size, seed))
    n = plan.units or max(UNITS, -(-UNIT_VIEWS // size))
    return [np.array(sampler.unit(step)) for step in range(n)]


def views_per_rank(source: Path, plan: Plan, n_views: int) -> int:
    """Return the views a rank and step that are asked for, else as many as there are, up to four.

    Raises
    ------
    SettingsError
        If a step would need more views than there are.
    """
    most = n_views // plan.ranks
    wanted = plan.views_per_rank or max(1, min(MAX_VIEWS_PER_RANK, most))
    if wanted > most:
        raise SettingsError(f"{source} has {n_views} views to train on, but --ranks {plan.ranks} x --views-per-rank "
                            f"{wanted} needs {plan.ranks * wanted} a step; lower one of them")
    return wanted


def from_file(path: Path, plan: Plan) -> Workload:
    """Read a profile and join its patches to those asked for.

    Raises
    ------
    SettingsError
        If the file's patches cannot be joined to them.
    """
    data = read_profile(path)
    n_views = len(data.views.indptr) - 1
    images = Profile.of_rows(data.sizes, data.centers, data.views.indptr, data.views.groups, data.views.counts, n_views)
    side = plan.patches or data.side
    if data.side % side:
        mend = f"a divisor of {data.side}" if data.patches else "1, or write the profile with patches"
        raise SettingsError(f"argument --patches is {side} but {path} has {data.side} x {data.side} patches a view; "
                            f"give {mend}")
    patches = images
    if side > 1:
        rows = data.patches
        patches = Profile.of_rows(data.sizes, data.centers, rows.indptr, rows.groups, rows.counts, n_views)
        patches = patches.coarser(data.side, data.side // side)
    return Workload(patches, images, f"{path}: {describe(patches)}")


def from_scene(path: Path, settings: Settings, renderer: PointRenderer, plan: Plan) -> Workload:
    """Profile a scene by projecting its start points into its training views."""
    scene = open_scene(path, settings.data)
    points = start_points(scene, settings, renderer.attributes).values
    means = points["means"]
    codes = morton_codes(means, means.min(axis=0), means.max(axis=0))
    bounds = cell_bounds(np.sort(codes), max(len(codes) // settings.placement.cell_points, CELLS_PER_RANK * plan.ranks))
    cells, views = cell_of(codes, bounds), [scene.views[i] for i in scene.train_idx.tolist()]
    every = -(-len(codes) * len(views) // FOLLOWED)
    grids = [make_grid(v, plan.patches) if plan.patches else make_patches(v, settings.patch_size) for v in views]
    patches, images = (count_patches(renderer.at_step(1), points, cells, len(bounds) + 1, parts, every)
                       for parts in (grids, [make_grid(v, 1) for v in views]))
    return Workload(patches, images, f"{path}: {describe(patches)}")


def describe(profile: Profile) -> str:
    """Return the size of a profile in words."""
    return (f"{profile.cell_sizes.sum():,} points in {profile.n_cells:,} cells, {profile.n_views:,} views in "
            f"{profile.n_patches:,} patches that read {profile.counts.sum() / max(profile.n_views, 1):,.0f} splats a view")


def splat_bytes(fields: Sequence[Field], codec: str) -> float:
    """Return the bytes a row of ``fields`` in long messages."""
    return sum(encoded_bytes(MANY * BLOCK * f.width, codec_of(f, codec)) for f in fields) // MANY / BLOCK


def as_dict(source: Path, plan: Plan, rows: Sequence[tuple[Variant, str, Cost]]) -> dict[str, Any]:
    """Return the report as plain values."""
    return {"source": str(source), "ranks": plan.ranks, "hosts": plan.hosts, "views_per_rank": plan.views_per_rank,
            "variants": [{"variant": v.name, **dataclasses.asdict(v), "codec": codec, **dataclasses.asdict(c)}
                         for v, codec, c in rows]}


def table(plan: Plan, rows: Sequence[tuple[Variant, str, Cost]]) -> str:
    """Return the report as text; changes are against the first row."""
    first = rows[0][2]
    lines = [f"{plan.ranks} ranks on {plan.hosts} hosts, {plan.views_per_rank} views a rank and step; MB a step (shares of "
             "splats; change)", "",
             f"{'placement; assignment; batches':<50}{'codec':<6}{'all':>20}{'between hosts':>22}{'largest':>9}"
             f"{'points':>8}{'work':>6}"]
    for v, codec, c in rows:
        total = f"{c.bytes_total / 1e6:.1f} ({c.remote_share:.0%}{change(c.bytes_total, first.bytes_total)})"
        inter = (f"{c.bytes_inter_host / 1e6:.1f} ({c.inter_host_share:.0%}"
                 f"{change(c.bytes_inter_host, first.bytes_inter_host)})")
        lines.append(f"{v.name:<50}{codec:<6}{total:>20}{inter:>22}{c.bytes_max_receiver / 1e6:>9.2f}"
                     f"{c.balance_points:>8.2f}{c.balance_work:>6.2f}")
    return "\n".join([*lines, "", "largest: received by one rank; points, work: largest of a rank over the mean"])


def change(value: int, reference: int) -> str:
    """Return the change from a reference in per cent, or nothing where there is none."""
    return f"; {value / reference - 1:+.1%}" if reference and value != reference else ""
