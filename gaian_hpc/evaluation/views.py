"""Render a view as training does, and measure it against its picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..arrays import ArrayTable, View
from ..backends.host import HOST
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


@dataclass(frozen=True, slots=True)
class Rendering:
    """A whole view: its position among those asked for, the picture (3, H, W) in [0, 1], α (H, W), and the maps."""

    position: int
    image: np.ndarray
    alpha: np.ndarray
    maps: dict[str, np.ndarray]


def render_view(renderer: PointRenderer, points: ArrayTable, view: View, background: np.ndarray,
                patch_size: int = 512) -> np.ndarray:
    """Return the picture of a view, (3, H, W) float32 clipped to [0, 1]; all points are here."""
    return render_whole(renderer, points, view, background, patch_size).image


def render_whole(renderer: PointRenderer, points: ArrayTable, view: View, background: np.ndarray,
                 patch_size: int = 512) -> Rendering:
    """Return all that is rendered of a view; all points are here."""
    return next(render_all(renderer, points, [view], background, patch_size))


def render_all(renderer: PointRenderer, points: ArrayTable, views: Sequence[View], background: np.ndarray,
               patch_size: int = 512) -> Iterator[Rendering]:
    """Yield the renderings of views, one after another; all points are here."""
    exchange = Exchange.local(renderer, getattr(renderer, "device", HOST))
    return render_views(renderer, points, np.arange(points.n_rows), views, background, patch_size, exchange)


def surface_maps(view: View, rendering: Rendering) -> dict[str, np.ndarray]:
    """Return depth and normal maps of a method that renders ``depth`` = Σ weight · depth, where it hits anything.

    Returns
    -------
    dict of str to array
        ``depth`` (H, W) float32: expected camera depth in world units, 0 where α is below one half; ``median`` the
        same of the median, if the method has one. ``normals`` (3, H, W) float32, unit length, in camera coordinates (x
        right, y down, z forward), towards the camera: the method's own, or those of the depth map.
    """
    hit, maps = rendering.alpha >= 0.5, rendering.maps
    depth = np.where(hit, maps["depth"] / np.maximum(rendering.alpha, np.float32(0.5)), np.float32(0))
    out = {"depth": depth}
    if "median" in maps:
        out["median"] = np.where(hit, maps["median"], np.float32(0))
    normals = maps["normals"] if "normals" in maps else depth_normals(view, depth)
    length = np.maximum(np.linalg.norm(normals, axis=0), np.float32(1e-12))
    return out | {"normals": np.where(hit, normals / length, np.float32(0)).astype(np.float32)}


def depth_normals(view: View, depths: np.ndarray) -> np.ndarray:
    """Return the normals (3, H, W) float32 of a depth map (H, W), towards the camera; zero at its border."""
    h, w = depths.shape
    y, x = np.mgrid[:h, :w] + 0.5
    points = np.stack([(x - view.K[0, 2]) / view.K[0, 0], (y - view.K[1, 2]) / view.K[1, 1], np.ones((h, w))]) * depths
    out = np.zeros((3, h, w), np.float32)
    dx, dy = points[:, 1:-1, 2:] - points[:, 1:-1, :-2], points[:, 2:, 1:-1] - points[:, :-2, 1:-1]
    n = np.cross(dy, dx, axis=0)
    out[:, 1:-1, 1:-1] = n / np.maximum(np.linalg.norm(n, axis=0), 1e-30)
    return out


def render_views(renderer: PointRenderer, points: ArrayTable, ids: np.ndarray, views: Sequence[View],
                 background: np.ndarray, patch_size: int, exchange: Exchange) -> Iterator[Rendering]:
    """Collective. Render views whole, one on each rank at a time; yield those rendered here.

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
        Points are taken to its ``place``, once for all views.
    """
    world, place = exchange.world, exchange.place
    next_id = int(np.max(world.stack(np.array([ids[-1] + 1 if len(ids) else 0]))))
    splat = splat_unit
    if place is not HOST:
        from ..training import cuda

        splat = partial(cuda.splat_unit, place)
        points, ids = ArrayTable({name: place.array(x) for name, x in points.items()}), place.array(ids)
    for first in range(0, len(views), world.size):
        unit = Unit.of(views[first:first + world.size], patch_size)
        shard = splat(renderer, points, ids, unit, PhaseTimer())
        renders = np.array([unit.view_of(p) for p in range(len(unit.patches))], np.int64)
        plan = Plan(exchange.stack("counts", shard.counts), renders)
        patches = exchange.forward(plan, shard.own, next_id)
        if patches:
            view = unit.views[world.rank]
            size, maps = (view.height, view.width), {}
            image, alpha = np.empty((3, *size), np.float32), np.empty(size, np.float32)
            for p in patches:
                patch = unit.patches[p.index]
                window = (..., slice(patch.y0, patch.y1), slice(patch.x0, patch.x1))
                outputs = renderer.render(patch, p.table)
                alpha[window] = place.host(outputs.alpha)
                over_background(place.host(outputs.color), alpha[window], background, image[window])
                for name, plane in outputs.maps.items():
                    if name not in maps:
                        maps[name] = np.empty((*plane.shape[:-2], *size), np.float32)
                    maps[name][window] = place.host(plane)
            yield Rendering(first + world.rank, np.clip(image, 0, 1, out=image), alpha, maps)


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
    exchange = exchange or Exchange.local(renderer, getattr(renderer, "device", HOST))
    ids = np.arange(points.n_rows) if ids is None else ids
    world, color = exchange.world, shown_background(background)
    pictures.schedule([v.index for v in views[world.rank::world.size]])
    mine: list[tuple[int, ViewScore]] = []
    for rendering in render_views(renderer, points, ids, views, color, patch_size, exchange):
        view = views[rendering.position]
        picture: Picture = pictures.get(view.index)
        target = target_pixels(picture, view, color)
        mine.append((rendering.position, ViewScore(view.name, *score(rendering.image, target, picture.mask))))
    return [s for _, s in sorted((entry for part in world.collect(mine) for entry in part), key=lambda e: e[0])]


def mean_scores(scores: Sequence[ViewScore]) -> tuple[float, float]:
    """Return mean PSNR and SSIM; NaN without views."""
    if not scores:
        return float("nan"), float("nan")
    return float(np.mean([s.psnr for s in scores])), float(np.mean([s.ssim for s in scores]))
