"""One training step: the walk of a unit of views from points to updated points, on any number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..arrays import ArrayTable, Patch, View
from ..data.images import Picture, PictureCache
from ..distributed.exchange import Exchange, PatchSplats, Plan
from ..points.store import PointStore
from ..renderers.base import (
    OutputGradients,
    Outputs,
    PointRenderer,
    loss_planes,
    point_gradients,
    splat_gradients,
)
from ..settings import Settings
from ..timing import PhaseTimer
from .assign import Assigner, on_one_rank
from .densify import DensityControl, EditReport
from .loss import Region, region_loss
from .margins import exchange_margins
from .optimizer import Adam
from .pixels import alpha_gradient, background_color, over_background, target_pixels
from .unit import ShardUnit, Unit, splat_unit


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a step measured before its update: the unit's loss, L1 and SSIM, points in scope, and the edit before it.

    ``stop`` tells whether a rank was asked to stop; it is the same on all ranks.
    """

    loss: float
    l1: float
    ssim: float
    n_scope: int
    edit: EditReport | None = None
    stop: bool = False


@dataclass(frozen=True, slots=True)
class ViewGradients:
    """Local rows a view reads, and the gradients of their activated attributes."""

    rows: np.ndarray
    v_points: ArrayTable


@dataclass(slots=True)
class SynchronousExecutor:
    """Runs units one after the other: every point is read after all earlier updates.

    ``store``, ``optimizer`` and ``density`` are the owner's; ``pictures`` decodes the pixels where they are rendered.
    """

    renderer: PointRenderer
    store: PointStore
    optimizer: Adam
    density: DensityControl
    pictures: PictureCache
    settings: Settings
    timer: PhaseTimer
    exchange: Exchange | None = None
    assigner: Assigner = on_one_rank
    n_total: int = field(init=False)
    reads: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.exchange is None:
            self.exchange = Exchange.local(self.renderer)
        self.n_total = int(self.exchange.world.sum(np.array([self.store.n]))[0])

    def segment(self, steps: Sequence[int], unit_of: Callable[[int], Sequence[View]],
                asked_to_stop: Callable[[], bool]) -> Iterator[StepReport]:
        """Collective. Run ``steps``, one after the other, until a rank is asked to stop; yield their reports."""
        for step in steps:
            report = self.run(step, unit_of(step), asked_to_stop())
            yield report
            if report.stop:
                return

    def run(self, step: int, views: Sequence[View], stop: bool = False) -> StepReport:
        """Collective. Edit the points where the step before calls for it, then train on one unit.

        An edit opens the next step instead of closing its own, so that a run never ends on points that nothing has
        trained since: fresh copies, or opacities just reset.

        Parameters
        ----------
        step : int
            Counts from 1.
        views : sequence of View
        stop : bool
            Whether this rank was asked to stop.
        """
        world, region = self.exchange.world, self.timer.region
        renderer = self.renderer.at_step(step)
        with region("density"):
            edit = self.density.edit(self.store, step - 1) if step > 1 else None
        if edit is not None:
            self.n_total = edit.n_points
        gradients, sums = [], []
        for wave in self._waves(views):
            wave_gradients, wave_sums = self._wave(renderer, step, wave, len(views))
            gradients += wave_gradients
            sums.append(wave_sums)
        with region("gather"):
            rows, v_rows = self._sum_views(gradients)
        with region("update"):
            self.density.regularize(self.store, rows, v_rows, self.n_total)
            self.optimizer.update(self.store, rows, v_rows, step)
            self._after_update(step, self.optimizer.learning_rate("means", step) if "means" in self.store.raw else 0.0)
        with region("sums"):
            totals = world.sum(np.concatenate([*(s.reshape(-1) for s in sums), [len(rows), float(stop)]]))
        loss, l1, ssim = unit_loss(views, totals[:-2].reshape(-1, 3), self.settings)
        return StepReport(loss, l1, ssim, int(totals[-2]), edit, bool(totals[-1]))

    def _waves(self, views: Sequence[View]) -> list[Sequence[View]]:
        """Cut a unit into the views that are in flight at once: one on one rank, which bounds its memory."""
        size = self.exchange.world.size
        n = 1 if size == 1 else size * self.settings.exchange.views_in_flight
        return [views[first:first + n] for first in range(0, len(views), n)]

    def _wave(self, renderer: PointRenderer, step: int, views: Sequence[View],
              n_views: int) -> tuple[list[ViewGradients], np.ndarray]:
        """Return the gradients of views, their shares of the unit's, and the sums of all patches, (P, 3), or 0."""
        exchange, region = self.exchange, self.timer.region
        unit = Unit.of(views, self.settings.patch_size)
        backgrounds = [background_color(self.settings.data.background, self.settings.seed, step, v) for v in views]
        shard = self._splat_unit(renderer, unit)
        with region("assign"):
            plan = self._plan(shard)
        with region("exchange"):
            patches = exchange.forward(plan, shard.own, self.store.next_id)
        with region("render"):
            outputs = [renderer.render(unit.patches[p.index], p.table) for p in patches]
        results, sums = self._loss(renderer, unit, plan, patches, outputs, backgrounds, n_views)
        with region("render_vjp"):
            v_splats = [self._render_vjp(renderer, unit.patches[p.index], p.table, o, result.v_outputs)
                        for p, o, result in zip(patches, outputs, results, strict=True)]
        with region("exchange"):
            returned = exchange.reverse(plan, patches, v_splats)
        return [self._view_vjp(renderer, shard, v, returned) for v in range(len(views))], sums

    # What a GPU does in its own way (see gaian_hpc.training.cuda).

    def _splat_unit(self, renderer: PointRenderer, unit: Unit) -> ShardUnit:
        return splat_unit(renderer, self.store.values, self.store.ids, unit, self.timer)

    def _composed(self, renderer: PointRenderer, outputs: Outputs, background: np.ndarray) -> np.ndarray:
        return composed(renderer, outputs, background)

    def _patch_loss(self, renderer: PointRenderer, patch: Patch, canvas: np.ndarray, outputs: Outputs,
                    picture: Picture, background: np.ndarray, n_views: int) -> PatchResult:
        return patch_loss(renderer, patch, canvas, outputs, picture, background, self.settings, n_views, self.timer)

    def _totals(self, results: Sequence[PatchResult]) -> list[tuple[float, float, float]]:
        return [result.sums for result in results]

    def _render_vjp(self, renderer: PointRenderer, patch: Patch, table: ArrayTable, outputs: Outputs,
                    v_outputs: OutputGradients) -> ArrayTable:
        return splat_gradients(renderer, patch, table, outputs, v_outputs)

    def _after_update(self, step: int, lr_means: float) -> None:
        self.density.after_update(self.store, step, lr_means)

    def _sum_views(self, gradients: Sequence[ViewGradients]) -> tuple[np.ndarray, ArrayTable]:
        return sum_views(gradients)

    def _plan(self, shard: ShardUnit) -> Plan:
        """Collective. Count exactly who reads what, and assign patches to ranks: the same plan on every rank."""
        exchange = self.exchange
        known = exchange.stack("counts", np.stack([shard.counts, shard.tiles]))
        return Plan(known[:, 0], self.assigner(shard.unit, known[:, 0], known[:, 1].sum(axis=0)))

    def _loss(self, renderer: PointRenderer, unit: Unit, plan: Plan, patches: Sequence[PatchSplats],
              outputs: Sequence[Outputs], backgrounds: Sequence[np.ndarray],
              n_views: int) -> tuple[list[PatchResult], np.ndarray]:
        """Collective. Return the losses of the patches rendered here, and their sums, (P, 3) float64."""
        sums = np.zeros((len(unit.patches), 3))
        with self.timer.region("pixels"):
            images = {p.index: self._composed(renderer, o, backgrounds[unit.view_of(p.index)])
                      for p, o in zip(patches, outputs, strict=True)}
        with self.timer.region("margins"):
            canvases = exchange_margins(self.exchange, plan, unit, images, loss_planes(renderer),
                                        self.settings.exchange.codec)
        results = []
        for p, o in zip(patches, outputs, strict=True):
            patch = unit.patches[p.index]
            with self.timer.region("pixels"):
                picture = self.pictures.get(patch.view.index)
            results.append(self._patch_loss(renderer, patch, canvases[p.index], o, picture,
                                            backgrounds[unit.view_of(p.index)], n_views))
        for p, totals in zip(patches, self._totals(results), strict=True):
            sums[p.index] = totals
        return results, sums

    def _view_vjp(self, renderer: PointRenderer, shard: ShardUnit, v: int,
                  returned: Sequence[ArrayTable]) -> ViewGradients:
        """Take the gradients of a view's splats back to its points, and gather statistics."""
        view, rows, splats = shard.unit.views[v], shard.rows[v], shard.splats[v]
        with self.timer.region("gather"):
            v_splats = sum_patches(shard, v, returned)
        with self.timer.region("splat_vjp"):
            v_points = point_gradients(renderer, view, self.store.values, rows, splats, v_splats)
        with self.timer.region("density"):
            self.density.observe(self.store, view, rows, v_splats)
        return ViewGradients(rows, v_points)


def composed(renderer: PointRenderer, outputs: Outputs, background: np.ndarray) -> np.ndarray:
    """Return what the loss reads of a rendered patch, (c, h, w) float32: over its background, then the maps."""
    image = np.empty((loss_planes(renderer), *outputs.alpha.shape), np.float32)
    over_background(outputs.color, outputs.alpha, background, image[:3])
    at = 3
    for f in getattr(renderer, "loss_maps", ()):
        image[at:at + f.width] = outputs.alpha if f.name == "alpha" else outputs.maps[f.name]
        at += f.width
    return image


@dataclass(frozen=True, slots=True)
class PatchResult:
    """What a patch adds to the loss of its view, (L1, SSIM, the method's own) summed over pixels, and its gradients."""

    sums: tuple[float, float, float]
    v_outputs: OutputGradients


def patch_loss(renderer: PointRenderer, patch: Patch, canvas: np.ndarray, outputs: Outputs, picture: Picture,
               background: np.ndarray, settings: Settings, n_views: int, timer: PhaseTimer) -> PatchResult:
    """Return the loss of a patch and its gradient as its view's share of ``n_views``.

    Parameters
    ----------
    canvas : (c, h, w) float32
        What :func:`composed` returns, on the patch's :class:`~gaian_hpc.training.loss.Region`.
    """
    view, part = patch.view, Region.of(patch)
    window = (part.rows, part.columns)
    with timer.region("pixels"):
        target = target_pixels(picture, view, background, window)
    with timer.region("loss"):
        mask = None if picture.mask is None else picture.mask[window]
        loss = region_loss(canvas[:3], target, patch, settings.ssim_weight, mask)
        v_image = loss.v_image / np.float32(n_views) if n_views > 1 else loss.v_image
        v = OutputGradients(v_image, alpha_gradient(v_image, background))
        if len(canvas) == 3:
            return PatchResult((loss.l1, loss.ssim, 0.0), v)
        own, v_own = renderer.map_loss(patch, outputs, canvas[3:], (part.columns.start, part.rows.start), mask)
        scale = np.float32(1.0 / (view.width * view.height * n_views))
        if v_own.alpha is not None:
            v.alpha = scale * v_own.alpha + (0 if v.alpha is None else v.alpha)
        v.maps = {name: scale * x for name, x in (v_own.maps or {}).items()}
        return PatchResult((loss.l1, loss.ssim, own), v)


def sum_patches(shard: ShardUnit, v: int, returned: Sequence[ArrayTable]) -> ArrayTable:
    """Return the gradients of view ``v``'s splats, summed over its patches in their order (design §6)."""
    numbers = shard.unit.patches_of(v)
    if len(numbers) == 1:
        return returned[numbers.start]
    n, offset = shard.splats[v].n_rows, sum(t.n_rows for t in shard.splats[:v])
    total: dict[str, np.ndarray] = {}
    for p in numbers:
        rows = shard.own.rows[p] - offset
        for name, values in returned[p].items():
            if name not in total:
                total[name] = np.zeros((n, *values.shape[1:]), values.dtype)
            total[name][rows] += values
    return ArrayTable(total, n)


def sum_views(gradients: Sequence[ViewGradients]) -> tuple[np.ndarray, ArrayTable]:
    """Return the ascending union of the views' rows and their gradients summed in view order."""
    if len(gradients) == 1:
        return gradients[0].rows, gradients[0].v_points
    rows = np.unique(np.concatenate([g.rows for g in gradients]))
    total: dict[str, np.ndarray] = {}
    for g in gradients:
        at = np.searchsorted(rows, g.rows)
        for name, values in g.v_points.items():
            if name not in total:
                total[name] = np.zeros((len(rows), *values.shape[1:]), values.dtype)
            total[name][at] += values
    return rows, ArrayTable(total, len(rows))


def unit_loss(views: Sequence[View], sums: np.ndarray, settings: Settings) -> tuple[float, float, float]:
    """Return loss, mean L1 and mean SSIM of a unit from the sums of its patches, (P, 3), added in their order."""
    unit, weight = Unit.of(views, settings.patch_size), settings.ssim_weight
    totals = np.zeros(3)
    for v, view in enumerate(views):
        n = 3 * view.width * view.height
        l1, ssim, own = (sum(sums[list(unit.patches_of(v)), i].tolist()) / n for i in range(3))
        totals += np.array([(1 - weight) * l1 + weight * (1 - ssim) + 3 * own, l1, ssim])
    loss, l1, ssim = (float(t) / len(views) for t in totals)
    return loss, l1, ssim
