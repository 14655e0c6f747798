"""A step on a GPU: where its arrays live, and its phases besides rendering (``kernels/training``).

The functions take and return device arrays and follow their namesakes of the cpu backend; only sums of a loss come
back to the host.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ..arrays import ArrayTable, Patch, View
from ..backends import cuda as backend
from ..backends.cuda import Device, DeviceMemoryError
from ..backends.sorting import sort_pairs
from ..data.images import Picture
from ..distributed.world import World
from ..errors import BackendError
from ..points.activation import CODES
from ..points.store import PointStore
from ..renderers.base import OutputGradients, Outputs, PointRenderer, loss_planes
from ..rng import stream_key
from ..timing import PhaseTimer
from .densify.default import GradientDensity
from .densify.mcmc import NOISE, NOISE_MARGIN, MarkovDensity
from .loss import RADIUS, PatchLoss, Region
from .optimizer import Adam
from .pixels import check_size
from .step import PatchResult, StepReport, SynchronousExecutor, ViewGradients
from .unit import ShardUnit, Unit, deal_out, edges

LOSS, POINTS, PATCHES = "training/loss.cu", "training/points.cu", "training/patches.cu"
NOISE_SOURCE = "training/noise.cu"
_SIDE = 16


def device_of_rank(world: World, *, deterministic: bool = False) -> Device:
    """Collective over ``world``. Return the GPU of this rank, which no other rank of its host has.

    Raises
    ------
    BackendError
        If there is none; on all ranks if on one.
    """
    with world.agreed():
        mine = backend.visible_devices()
    here = world.hosts == world.hosts[world.rank]
    seen = [devices for devices, near in zip(world.collect(mine), here, strict=True) if near]
    with world.agreed():
        number = backend.choose_device(seen, int(np.count_nonzero(here[:world.rank])))
        return backend.open_device(number, deterministic=deterministic)


@dataclass(frozen=True, slots=True)
class PartialSums:
    """A patch's sums as its blocks left them, on the device.

    Attributes
    ----------
    parts : (B,) float32
        SSIM of ``n_ssim`` blocks, then L1 of the others.
    n_ssim : int
    own : float
        The method's own loss.
    """

    parts: Any
    n_ssim: int
    own: float = 0.0

    def totals(self, parts: np.ndarray) -> tuple[float, float, float]:
        """Return L1, SSIM and the method's own loss from ``parts`` on the host."""
        return (float(parts[self.n_ssim:].sum(dtype=np.float64)), float(parts[:self.n_ssim].sum(dtype=np.float64)),
                self.own)


def region_loss(device: Device, x: Any, y: Any, patch: Patch, ssim_weight: float, mask: Any = None) -> PatchLoss:
    """Return a patch's part of the loss of its view; see :func:`gaian_hpc.training.loss.region_loss`.

    Parameters
    ----------
    x, y : (3, h, w) float32 on the device
        Render and target in the patch's :class:`~gaian_hpc.training.loss.Region`.
    mask : (h, w) bool on the device, optional
        Pixels that count.
    """
    sums, v_image = begin_loss(device, x, y, patch, ssim_weight, mask)
    l1, ssim, _ = sums.totals(device.host(sums.parts))
    return PatchLoss(l1, ssim, v_image)


def begin_loss(device: Device, x: Any, y: Any, patch: Patch, ssim_weight: float,
               mask: Any = None) -> tuple[PartialSums, Any]:
    """Return the sums and the gradient (3, h, w) of :func:`region_loss` without waiting for them."""
    region, kernels = Region.of(patch), device.kernels(LOSS)
    if mask is not None:
        x, y = x * mask, y * mask
    channels, height, width = x.shape
    map_size = (patch.height + 2 * RADIUS, patch.width + 2 * RADIUS)
    n_ssim, n_l1 = channels * _n_tiles(*map_size), channels * _n_tiles(patch.height, patch.width)
    maps, parts = device.empty((3, channels, *map_size)), device.empty(n_ssim + n_l1)
    whole, n = (np.int32(height), np.int32(width)), 3.0 * patch.view.width * patch.view.height
    kernels.launch("ssim_maps", n_ssim, x, y, *whole, np.int32(region.top - RADIUS),
                   np.int32(region.left - RADIUS), np.int32(map_size[0]), np.int32(map_size[1]), np.int32(channels),
                   maps, parts[:n_ssim])
    v_image = device.empty((channels, patch.height, patch.width))
    kernels.launch("loss_gradient", n_l1, x, y, *whole, np.int32(region.top), np.int32(region.left),
                   np.int32(patch.height), np.int32(patch.width), np.int32(channels), maps,
                   np.float32((1 - ssim_weight) / n), np.float32(ssim_weight / n), v_image, parts[n_ssim:])
    if mask is not None:
        v_image *= mask[region.top:region.top + patch.height, region.left:region.left + patch.width]
    return PartialSums(parts, n_ssim), v_image


def _n_tiles(height: int, width: int) -> int:
    return -(-height // _SIDE) * -(-width // _SIDE)


class DeviceAdam(Adam):
    """:class:`~gaian_hpc.training.optimizer.Adam` for a store whose arrays lie on ``device``."""

    def __init__(self, device: Device, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self._device = device

    def _pairs(self, n: int, rows: Any) -> tuple[Any, Any]:
        """Return the rows to move and where the gradient of each lies (-1: it is zero), on the device."""
        device, order = self._device, self._device.xp.arange(len(rows), dtype=np.int64)
        if self._settings.kind == "selective":
            return rows, order
        sources = device.zeros(n, np.int64) - 1
        sources[rows] = order
        return device.xp.arange(n, dtype=np.int64), sources

    def update(self, store: PointStore, rows: Any, v_rows: ArrayTable, step: int) -> None:
        """Move stored values, moments and activated values by one step, in one kernel an attribute."""
        device = self._device
        targets, sources = self._pairs(store.n, rows)
        values = store.values
        for name in v_rows:
            attribute, gradient = self._attributes[name], v_rows[name]
            columns = int(np.prod(gradient.shape[1:], dtype=np.int64))
            rates, root_scale = self._rates(attribute, columns, step)
            coefficients = np.array([self.beta1, 1 - self.beta1, self.beta2, 1 - self.beta2, root_scale, self.eps],
                                    np.float32)
            device.kernels(POINTS).over(
                "adam", len(targets) * columns, np.int32(columns), np.int32(attribute.width),
                np.int32(CODES[attribute.activation]), targets, sources, gradient, device.array(rates),
                device.array(coefficients), store.raw[name], store.first_moments[name], store.second_moments[name],
                values[name])


def observe(device: Device, view: View, rows: Any, gradient: Any, views_per_step: int, grad_sum: Any,
            count: Any) -> None:
    """Add the norms of screen gradients (M, 2) in normalised device coordinates to the statistics of ``rows``."""
    half = 0.5 * views_per_step
    device.kernels(POINTS).over("observe", len(rows), rows, gradient, np.float32(half * view.width),
                                np.float32(half * view.height), grad_sum, count)


def reach(device: Device, renderer: PointRenderer, view: View, splats: ArrayTable, patches: Sequence[Patch],
          offset: int = 0) -> tuple[list[Any], np.ndarray]:
    """Return the rows on the device, counted from ``offset``, of the splats that reach each patch of a view.

    And (P,) int64 on the host: (tile, splat) pairs of each patch. See :func:`gaian_hpc.training.unit.reach`; how many
    rows there are of each is all else that comes back.
    """
    n, n_patches, kernels = splats.n_rows, len(patches), device.kernels(PATCHES)
    boxes = renderer.footprints(view, splats)
    grid = [x for edge in edges(view, patches) for x in (device.array(edge), np.int32(len(edge) - 1))]
    counts, tiles = device.empty(n, np.int64), device.zeros(n_patches, np.uint64)
    kernels.over("count_reach", n, boxes, *grid, counts, tiles)
    if n_patches == 1 or n == 0:
        empty = slice(offset, offset + n)
        return [empty] * n_patches, device.host(tiles).astype(np.int64)
    ends = device.xp.cumsum(counts)
    n_pairs = int(ends[-1])
    numbers, rows = device.empty(n_pairs, np.uint32), device.empty(n_pairs, np.uint32)
    kernels.over("list_reach", n, boxes, *grid, counts, ends, numbers, rows)
    numbers, rows = sort_pairs(device, kernels, numbers, rows, (n_patches - 1).bit_length())
    sizes = device.empty(n_patches, np.int64)
    kernels.launch("patch_sizes", -(-n_patches // 256), np.int64(n_patches), np.int64(n_pairs), numbers, sizes)
    rows, stops = rows.astype(np.int64) + offset, np.cumsum(device.host(sizes)).tolist()
    return [rows[start:stop] for start, stop in itertools.pairwise([0, *stops])], device.host(tiles).astype(np.int64)


def splat_unit(device: Device, renderer: PointRenderer, points: ArrayTable, ids: Any, unit: Unit,
               timer: PhaseTimer) -> ShardUnit:
    """Cull and splat a shard's points, which lie on the device; see :func:`gaian_hpc.training.unit.splat_unit`."""
    with timer.region("cull"):
        rows = [renderer.cull(view, points) for view in unit.views]
    with timer.region("splat"):
        splats = [renderer.splat(view, points, r) for view, r in zip(unit.views, rows, strict=True)]
    with timer.region("patches"):
        return deal_out(renderer, unit, rows, splats, ids, partial(reach, device), device.xp)


def shake(device: Device, density: MarkovDensity, store: PointStore, step: int, lr_means: float) -> None:
    """Move faint points at random, as :meth:`MarkovDensity.after_update`, in one kernel."""
    amount, values, settings = lr_means * density.settings.noise_lr, store.values, density.settings
    if amount == 0:
        return
    key = (np.uint32(word) for word in stream_key(density.seed, NOISE))
    device.kernels(NOISE_SOURCE).over(
        "shake", store.n, store.ids, values["opacities"], values["quats"], values["scales"],
        np.int32(values["scales"].shape[1]), *key, np.uint32(step), np.float64(amount),
        np.float64(settings.prune_opacity), np.float32(settings.prune_opacity + NOISE_MARGIN), store.raw["means"])


class DeviceExecutor(SynchronousExecutor):
    """Runs units with points, moments and statistics on ``device``, where edits find them, too.

    What comes back to the host of a step are counts and sums. Whoever else reads the points (checkpoints, placement)
    moves the store; it comes back here with the next segment.
    """

    def __init__(self, device: Device, *parts: Any):
        super().__init__(*parts)
        self._device = device

    def segment(self, steps: Sequence[int], unit_of: Callable[[int], Sequence[View]],
                asked_to_stop: Callable[[], bool]) -> Iterator[StepReport]:
        """Collective. Run ``steps``, one after the other, until a rank is asked to stop; yield their reports."""
        with self._room():
            self.store.move(self._device)
        return super().segment(steps, unit_of, asked_to_stop)

    def run(self, step: int, views: Sequence[View], stop: bool = False) -> StepReport:
        """Collective. Edit the points where it is due, then train on one unit; see the base class.

        Raises
        ------
        BackendError
            If the GPU has too little memory; tells how many points it could hold.
        """
        with self._room():
            return super().run(step, views, stop)

    @contextmanager
    def _room(self) -> Iterator[None]:
        try:
            yield
        except (DeviceMemoryError, self._device.memory_error) as error:
            n, (free, total) = max(self.store.n, 1), self._device.memory()
            point = self.store.bytes_per_point()
            # More than there is, at least by a little where what was asked for is not known.
            needed = max(total - free + getattr(error, "wanted", 0), n * point, 1.05 * total)
            raise BackendError(
                f"the GPU's {total / 2**20:,.0f} MiB are too few for {n:,} points of {point} bytes and a step on them; "
                f"about {int(n * (total / needed)):,} points fit a GPU this way: bound them (--densify.cap), use "
                "smaller patches (--patch_size), or more ranks with a GPU each") from error

    def _after_update(self, step: int, lr_means: float) -> None:
        if isinstance(self.density, MarkovDensity):
            shake(self._device, self.density, self.store, step, lr_means)
        else:
            super()._after_update(step, lr_means)

    def _splat_unit(self, renderer: PointRenderer, unit: Unit) -> ShardUnit:
        return splat_unit(self._device, renderer, self.store.values, self.store.ids, unit, self.timer)

    def _composed(self, renderer: PointRenderer, outputs: Outputs, background: np.ndarray) -> Any:
        image = self._device.empty((loss_planes(renderer), *outputs.alpha.shape))
        for c in range(3):
            image[c] = outputs.color[c]
            if background[c]:
                image[c] += (np.float32(1) - outputs.alpha) * background[c]
        at = 3
        for f in getattr(renderer, "loss_maps", ()):
            image[at:at + f.width] = outputs.alpha if f.name == "alpha" else outputs.maps[f.name]
            at += f.width
        return image

    def _patch_loss(self, renderer: PointRenderer, patch: Patch, canvas: Any, outputs: Outputs, picture: Picture,
                    background: np.ndarray, n_views: int) -> PatchResult:
        device, view, part = self._device, patch.view, Region.of(patch)
        window = (part.rows, part.columns)
        with self.timer.region("pixels"):
            mask = None if picture.mask is None else device.array(picture.mask[window])
            target = target_on(device, picture, view, background, window)
        with self.timer.region("loss"):
            sums, v_image = begin_loss(device, canvas[:3], target, patch, self.settings.ssim_weight, mask)
            v_image = v_image / np.float32(n_views)
            v = OutputGradients(v_image)
            if background.any():
                v.alpha = -(v_image[0] * background[0] + v_image[1] * background[1] + v_image[2] * background[2])
            if len(canvas) == 3:
                return PatchResult(sums, v)
            own, v_own = renderer.map_loss(patch, outputs, canvas[3:], (part.columns.start, part.rows.start), mask)
            scale = np.float32(1.0 / (view.width * view.height * n_views))
            if v_own.alpha is not None:
                v_alpha = scale * v_own.alpha
                v.alpha = v_alpha if v.alpha is None else v.alpha + v_alpha
            v.maps = {name: scale * x for name, x in (v_own.maps or {}).items()}
            return PatchResult(replace(sums, own=own), v)

    def _totals(self, results: Sequence[PatchResult]) -> list[tuple[float, float, float]]:
        if not results:
            return []
        with self.timer.region("loss"):
            parts = self._device.host(self._device.xp.concatenate([r.sums.parts for r in results]))
            ends = np.cumsum([len(r.sums.parts) for r in results])
            return [r.sums.totals(part) for r, part in zip(results, np.split(parts, ends[:-1]), strict=True)]

    def _render_vjp(self, renderer: PointRenderer, patch: Patch, table: ArrayTable, outputs: Outputs,
                    v_outputs: OutputGradients) -> ArrayTable:
        return renderer.render_vjp(patch, table, outputs, v_outputs)

    def _view_vjp(self, renderer: PointRenderer, shard: ShardUnit, v: int,
                  returned: Sequence[ArrayTable]) -> ViewGradients:
        view, rows, splats = shard.unit.views[v], shard.rows[v], shard.splats[v]
        with self.timer.region("gather"):
            v_splats = self._summed(self._parts(shard, v, returned), splats.n_rows)
        with self.timer.region("splat_vjp"):
            v_points = renderer.splat_vjp(view, self.store.values, rows, splats, v_splats)
        with self.timer.region("density"):
            if isinstance(self.density, GradientDensity):
                gradient = v_splats["absgrad" if self.density.settings.absgrad else "means2d"]
                observe(self._device, view, rows, gradient, self.density.views_per_step,
                        *(self.store.statistics[name] for name in ("grad_sum", "count")))
        return ViewGradients(rows, v_points)

    def _parts(self, shard: ShardUnit, v: int, returned: Sequence[ArrayTable]) -> list[tuple[Any, ArrayTable]]:
        """Return the rows, within view ``v``, that each of its patches reads, and their gradients."""
        numbers, n = shard.unit.patches_of(v), shard.splats[v].n_rows
        if len(numbers) == 1 or n == 0:
            return [(None, returned[numbers.start])]
        offset = sum(t.n_rows for t in shard.splats[:v])
        return [(shard.own.rows[p] - offset, returned[p]) for p in numbers]

    def _summed(self, parts: Iterable[tuple[Any, ArrayTable]], n: int) -> ArrayTable:
        """Return tables of rows, each once in its table, added up in their order; rows None are all of ``n``."""
        total: dict[str, Any] = {}
        for rows, table in parts:
            if rows is None:
                return table
            for name, values in table.items():
                if name not in total:
                    total[name] = self._device.zeros((n, *values.shape[1:]))
                total[name][rows] += values
        return ArrayTable(total, n)

    def _sum_views(self, gradients: Sequence[ViewGradients]) -> tuple[Any, ArrayTable]:
        if len(gradients) == 1:
            return gradients[0].rows, gradients[0].v_points
        xp, read = self._device.xp, self._device.zeros(self.store.n, np.bool_)
        for g in gradients:
            read[g.rows] = True
        rows, places = xp.flatnonzero(read), self._device.cumsum(read) - 1
        return rows, self._summed(((xp.take(places, g.rows), g.v_points) for g in gradients), len(rows))


def target_on(device: Device, picture: Picture, view: View, background: np.ndarray,
              part: tuple[slice, slice]) -> Any:
    """Return :func:`gaian_hpc.training.pixels.target_pixels` on the device; its bytes are what crosses."""
    check_size(picture, view)
    scale = np.float32(1 / 255)
    target = device.array(picture.rgb[:, *part]) * scale
    if picture.alpha is None:
        return target
    alpha = device.array(picture.alpha[part]) * scale
    for c in range(3):
        target[c] = target[c] * alpha + (np.float32(1) - alpha) * background[c]
    return target
