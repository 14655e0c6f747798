"""Render a view as training does, and measure it against its picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..arrays import ArrayTable, View
from ..data.images import Picture, PictureCache
from ..distributed.exchange import Exchange, Plan
from ..renderers.base import PointRenderer
from ..timing import PhaseTimer
from ..training.loss import ssim_map
from ..training.pixels import over_background, shown_background, target_pixels
from ..training.unit import Unit, splat_unit


@dataclass(frozen=True, slots=True)
class ViewScore:
    """PSNR in dB and mean SSIM of a view, over the pixels that its mask keeps."""

    name: str
    psnr: float
    ssim: float


def render_view(renderer: PointRenderer, points: ArrayTable, view: View, background: np.ndarray,
                patch_size: int = 512) -> np.ndarray:
    """Return the picture of a view, (3, H, W) float32 clipped to [0, 1]; all points are here."""
    ids = np.arange(points.n_rows)
    rendered = render_views(renderer, points, ids, [view], background, patch_size, Exchange.local(renderer))
    return next(iter(rendered))[1]


def render_views(renderer: PointRenderer, points: ArrayTable, ids: np.ndarray, views: Sequence[View],
                 background: np.ndarray, patch_size: int, exchange: Exchange) -> Iterator[tuple[int, np.ndarray]]:
    """Collective. Render views whole, one on each rank at a time; yield those rendered here with their position.

    Parameters
    ----------
    renderer : PointRenderer
    points : ArrayTable of (N, ...)
        Activated values of this rank's points.
    ids : (N,) int64, ascending
        Their global ids.
    views : sequence of View
    background : (3,) float32
    patch_size : int, pixels
    exchange : Exchange

    Yields
    ------
    int, (3, H, W) float32 clipped to [0, 1]
    """
    world = exchange.world
    next_id = int(np.max(world.stack(np.array([ids[-1] + 1 if len(ids) else 0]))))
    for first in range(0, len(views), world.size):
        unit = Unit.of(views[first:first + world.size], patch_size)
        shard = splat_unit(renderer, points, ids, unit, PhaseTimer())
        renders = np.array([unit.view_of(p) for p in range(len(unit.patches))], np.int64)
        plan = Plan(exchange.stack("counts", shard.counts), renders)
        patches = exchange.forward(plan, shard.own, next_id)
        if patches:
            view = unit.views[world.rank]
            image = np.empty((3, view.height, view.width), np.float32)
            for p in patches:
                patch = unit.patches[p.index]
                outputs = renderer.render(patch, p.table)
                over_background(outputs.color, outputs.alpha, background,
                                image[:, patch.y0:patch.y1, patch.x0:patch.x1])
            yield first + world.rank, np.clip(image, 0, 1, out=image)


def score(image: np.ndarray, target: np.ndarray, mask: np.ndarray | None = None) -> tuple[float, float]:
    """Return PSNR (dB) and SSIM of two (3, H, W) pictures in [0, 1]; SSIM as in the loss, with zero padding."""
    keep = np.ones(image.shape[1:], bool) if mask is None else mask
    n = 3 * max(int(keep.sum()), 1)
    image, target = image * keep, target * keep
    mse = float(np.sum((image - target) ** 2, dtype=np.float64)) / n
    ssim = float(np.sum(ssim_map(image, target) * keep, dtype=np.float64)) / n
    return float(-10 * np.log10(max(mse, 1e-12))), ssim


def evaluate_views(renderer: PointRenderer, points: ArrayTable, views: Sequence[View], pictures: PictureCache,
                   background: str = "black", patch_size: int = 512, *, ids: np.ndarray | None = None,
                   exchange: Exchange | None = None) -> list[ViewScore]:
    """Collective. Return the scores of ``views``; a ``random`` training background is evaluated on black.

    Parameters
    ----------
    renderer : PointRenderer
    points : ArrayTable of (N, ...)
        Activated values of this rank's points; of all points without an ``exchange``.
    views : sequence of View
    pictures : PictureCache
    background : str
    patch_size : int, pixels
    ids : (N,) int64, optional
    exchange : Exchange, optional
        Between the ranks that hold the points.
    """
    exchange = exchange or Exchange.local(renderer)
    ids = np.arange(points.n_rows) if ids is None else ids
    world, color = exchange.world, shown_background(background)
    pictures.schedule([v.index for v in views[world.rank::world.size]])
    mine: list[tuple[int, ViewScore]] = []
    for position, image in render_views(renderer, points, ids, views, color, patch_size, exchange):
        view = views[position]
        picture: Picture = pictures.get(view.index)
        target = target_pixels(picture, view, color)
        mine.append((position, ViewScore(view.name, *score(image, target, picture.mask))))
    return [s for _, s in sorted((entry for part in world.collect(mine) for entry in part), key=lambda e: e[0])]


def mean_scores(scores: Sequence[ViewScore]) -> tuple[float, float]:
    """Return mean PSNR and SSIM; NaN without views."""
    if not scores:
        return float("nan"), float("nan")
    return float(np.mean([s.psnr for s in scores])), float(np.mean([s.ssim for s in scores]))
