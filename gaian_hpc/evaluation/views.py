"""Render a view as training does, and measure it against its picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..arrays import ArrayTable, View
from ..data.images import Picture, PictureCache
from ..renderers.base import PointRenderer
from ..training.loss import ssim_map
from ..training.pixels import shown_background, target_pixels
from ..training.step import assemble, render_patches


@dataclass(frozen=True, slots=True)
class ViewScore:
    """PSNR in dB and mean SSIM of a view, over the pixels that its mask keeps."""

    name: str
    psnr: float
    ssim: float


def render_view(renderer: PointRenderer, points: ArrayTable, view: View, background: np.ndarray,
                patch_size: int = 512) -> np.ndarray:
    """Return the picture of a view, (3, H, W) float32 clipped to [0, 1]."""
    rows = renderer.cull(view, points)
    splats = renderer.splat(view, points, rows)
    image = assemble(render_patches(renderer, view, splats, patch_size), view, background)
    return np.clip(image, 0, 1, out=image)


def score(image: np.ndarray, target: np.ndarray, mask: np.ndarray | None = None) -> tuple[float, float]:
    """Return PSNR (dB) and SSIM of two (3, H, W) pictures in [0, 1]; SSIM as in the loss, with zero padding."""
    keep = np.ones(image.shape[1:], bool) if mask is None else mask
    n = 3 * max(int(keep.sum()), 1)
    image, target = image * keep, target * keep
    mse = float(np.sum((image - target) ** 2, dtype=np.float64)) / n
    ssim = float(np.sum(ssim_map(image, target) * keep, dtype=np.float64)) / n
    return float(-10 * np.log10(max(mse, 1e-12))), ssim


def evaluate_views(renderer: PointRenderer, points: ArrayTable, views: Sequence[View], pictures: PictureCache,
                   background: str = "black", patch_size: int = 512) -> list[ViewScore]:
    """Return the scores of ``views``; a ``random`` training background is evaluated on black."""
    pictures.schedule([v.index for v in views])
    color, scores = shown_background(background), []
    for view in views:
        picture: Picture = pictures.get(view.index)
        image = render_view(renderer, points, view, color, patch_size)
        scores.append(ViewScore(view.name, *score(image, target_pixels(picture, view, color), picture.mask)))
    return scores


def mean_scores(scores: Sequence[ViewScore]) -> tuple[float, float]:
    """Return mean PSNR and SSIM; NaN without views."""
    if not scores:
        return float("nan"), float("nan")
    return float(np.mean([s.psnr for s in scores])), float(np.mean([s.ssim for s in scores]))
