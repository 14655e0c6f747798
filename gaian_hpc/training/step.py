"""One training step: the walk of a unit of views from points to updated points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..arrays import ArrayTable, Patch, View
from ..data.images import Picture, PictureCache
from ..data.patches import make_patches
from ..points.store import PointStore
from ..renderers.base import OutputGradients, Outputs, PointRenderer
from ..settings import Settings
from ..timing import PhaseTimer
from .densify import DensityControl, EditReport
from .loss import photometric
from .optimizer import Adam
from .pixels import alpha_gradient, background_color, over_background, target_pixels


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a step measured before its update: the unit's loss, L1 and SSIM, points in scope, and the edit before it."""

    loss: float
    l1: float
    ssim: float
    n_scope: int
    edit: EditReport | None = None


@dataclass(frozen=True, slots=True)
class RenderedPatch:
    """A patch, the rows of the view's splats that reach it (None = all), these splats, and what they rendered to."""

    patch: Patch
    rows: np.ndarray | None
    splats: ArrayTable
    outputs: Outputs


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

    def run(self, step: int, views: Sequence[View]) -> StepReport:
        """Edit the points where the step before calls for it, then train on one unit; ``step`` counts from 1.

        An edit opens the next step instead of closing its own, so that a run never ends on points that nothing has
        trained since: fresh copies, or opacities just reset.
        """
        renderer = self.renderer.at_step(step)
        with self.timer.region("density"):
            edit = self.density.edit(self.store, step - 1) if step > 1 else None
        gradients, sums = [], np.zeros(3)
        for view in views:
            view_gradients, view_sums = self._view(renderer, step, view, len(views))
            gradients.append(view_gradients)
            sums += view_sums
        with self.timer.region("gather"):
            rows, v_rows = sum_views(gradients)
        with self.timer.region("update"):
            self.density.regularize(self.store, rows, v_rows, self.store.n)
            self.optimizer.update(self.store, rows, v_rows, step)
            self.density.after_update(self.store, step, self.optimizer.learning_rate("means", step)
                                      if "means" in self.store.raw else 0.0)
        loss, l1, ssim = (float(s) / len(views) for s in sums)
        return StepReport(loss, l1, ssim, len(rows), edit)

    def _view(self, renderer: PointRenderer, step: int, view: View, n_views: int) -> tuple[ViewGradients, np.ndarray]:
        """Return a view's gradients, its share of the unit's, and its loss, L1 and SSIM."""
        points, region = self.store.values, self.timer.region
        background = background_color(self.settings.data.background, self.settings.seed, step, view)
        with region("cull"):
            rows = renderer.cull(view, points)
        with region("splat"):
            splats = renderer.splat(view, points, rows)
        with region("render"):
            patches = render_patches(renderer, view, splats, self.settings.patch_size)
        with region("pixels"):
            picture = self.pictures.get(view.index)
            target = target_pixels(picture, view, background)
        with region("loss"):
            image = assemble(patches, view, background)
            v_image, sums = view_loss(image, target, picture, patches, self.settings.ssim_weight)
        with region("render_vjp"):
            v_splats = render_patches_vjp(renderer, splats, patches, v_image, background, n_views)
        with region("splat_vjp"):
            v_points = renderer.splat_vjp(view, points, rows, splats, v_splats)
        with region("density"):
            self.density.observe(self.store, view, rows, v_splats)
        return ViewGradients(rows, v_points), sums


def render_patches(renderer: PointRenderer, view: View, splats: ArrayTable, patch_size: int) -> list[RenderedPatch]:
    """Render a view patch by patch from its splats, which are in the order of their ids."""
    patches = make_patches(view, patch_size)
    if len(patches) == 1:
        return [RenderedPatch(patches[0], None, splats, renderer.render(patches[0], splats))]
    boxes = renderer.footprints(view, splats)
    rendered = []
    for patch in patches:
        reach = ((boxes[:, 0] <= patch.x1) & (boxes[:, 2] >= patch.x0) & (boxes[:, 1] <= patch.y1)
                 & (boxes[:, 3] >= patch.y0))
        rows = np.flatnonzero(reach)
        mine = splats.take(rows)
        rendered.append(RenderedPatch(patch, rows, mine, renderer.render(patch, mine)))
    return rendered


def assemble(patches: Sequence[RenderedPatch], view: View, background: np.ndarray) -> np.ndarray:
    """Return the view's picture (3, H, W) float32 over the background."""
    image = np.empty((3, view.height, view.width), np.float32)
    for p in patches:
        over_background(p.outputs.color, p.outputs.alpha, background,
                        image[:, p.patch.y0:p.patch.y1, p.patch.x0:p.patch.x1])
    return image


def view_loss(image: np.ndarray, target: np.ndarray, picture: Picture, patches: Sequence[RenderedPatch],
              ssim_weight: float) -> tuple[list[np.ndarray], np.ndarray]:
    """Return dL/d(image) of each patch, and the view's loss, mean L1 and mean SSIM, summed in patch order."""
    v_image, l1, ssim = [], 0.0, 0.0
    for p in patches:
        part = photometric(image, target, p.patch, ssim_weight, picture.mask)
        v_image.append(part.v_image)
        l1 += part.l1
        ssim += part.ssim
    l1, ssim = l1 / image.size, ssim / image.size
    return v_image, np.array([(1 - ssim_weight) * l1 + ssim_weight * (1 - ssim), l1, ssim])


def render_patches_vjp(renderer: PointRenderer, splats: ArrayTable, patches: Sequence[RenderedPatch],
                       v_image: Sequence[np.ndarray], background: np.ndarray, n_views: int) -> ArrayTable:
    """Return the gradients of a view's splats, each summed over patches in patch order (design §6)."""
    total: dict[str, np.ndarray] = {}
    for p, v in zip(patches, v_image, strict=True):
        if n_views > 1:
            v = v / np.float32(n_views)
        part = renderer.render_vjp(p.patch, p.splats, p.outputs, OutputGradients(v, alpha_gradient(v, background)))
        if p.rows is None:
            return part
        for name, values in part.items():
            if name not in total:
                total[name] = np.zeros((splats.n_rows, *values.shape[1:]), values.dtype)
            total[name][p.rows] += values
    return ArrayTable(total, splats.n_rows)


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
