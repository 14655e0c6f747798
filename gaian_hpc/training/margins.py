"""Pixels beside the borders of patches: SSIM's window looks over them, wherever the neighbour is rendered."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from ..arrays import Field, Patch
from ..distributed.codecs import codec_of, encoded_bytes
from ..distributed.exchange import Exchange, Plan
from ..distributed.world import aligned
from .loss import Region
from .unit import Unit

PIXELS = Field("pixels", (3,), "fp16")
MAPS = Field("maps")  # depths and the like, whose differences matter: as they are


def pixel_codec(n_planes: int, codec: str) -> str:
    """Return how margins of ``n_planes`` planes cross in a run with ``codec``."""
    return codec_of(PIXELS if n_planes == PIXELS.width else MAPS, codec)


@lru_cache(maxsize=64)
def neighbours(grid: tuple[tuple[int, int, int, int], ...], width: int, height: int) -> np.ndarray:
    """Return (K, 6) int64 rows p, q, y0, y1, x0, x1: the pixels of patch q that lie in the margin of patch p.

    Parameters
    ----------
    grid : tuple of (x0, y0, x1, y1)
        Patches of a view.
    width, height : int
        Of the view, pixels.
    """
    boxes = np.array(grid, np.int64)
    regions = [Region.around(*box, width, height) for box in grid]
    inner = np.array([[r.columns.start, r.rows.start, r.columns.stop, r.rows.stop] for r in regions], np.int64)
    low = np.maximum(inner[:, None, :2], boxes[None, :, :2])
    high = np.minimum(inner[:, None, 2:], boxes[None, :, 2:])
    meets = (low < high).all(axis=2)
    np.fill_diagonal(meets, False)
    p, q = np.nonzero(meets)
    return np.column_stack([p, q, low[p, q, 1], high[p, q, 1], low[p, q, 0], high[p, q, 0]])


def unit_neighbours(unit: Unit) -> np.ndarray:
    """Return :func:`neighbours` of all views, (K, 6) int64, with patches counted within the unit."""
    parts = []
    for v, view in enumerate(unit.views):
        numbers = unit.patches_of(v)
        grid = tuple((p.x0, p.y0, p.x1, p.y1) for p in unit.patches[numbers.start:numbers.stop])
        parts.append(neighbours(grid, view.width, view.height) + np.array([numbers.start] * 2 + [0] * 4))
    return np.concatenate(parts)


def exchange_margins(exchange: Exchange, plan: Plan, unit: Unit, images: Mapping[int, np.ndarray], n_planes: int,
                     codec: str) -> dict[int, np.ndarray]:
    """Collective. Return, for each patch rendered here, its region (c, h, w) float32 with its neighbours' pixels.

    All pixels lie at the exchange's ``place``.

    Parameters
    ----------
    images : mapping of int to (c, h, w) float32
        The patches rendered here, by their number within the unit.
    n_planes : int
        Planes c of every patch.
    codec : str
        How pixels cross, as far as their field allows.
    """
    rank, codec = exchange.world.rank, pixel_codec(n_planes, codec)
    pairs = unit_neighbours(unit)
    pairs = pairs[(plan.renders[pairs[:, 0]] == rank) | (plan.renders[pairs[:, 1]] == rank)]
    to, origin = plan.renders[pairs[:, 0]], plan.renders[pairs[:, 1]]
    regions = {p: Region.of(unit.patches[p]) for p in images}
    canvases = {p: canvas_of(regions[p], image, exchange.place.xp) for p, image in images.items()}
    for p, q, *box in pairs[(to == rank) & (origin == rank)].tolist():
        window_of(canvases[p], regions[p], box)[:] = cut(images[q], unit.patches[q], box)
    if exchange.world.size > 1:
        _receive(exchange, unit, pairs, to, origin, images, canvases, n_planes, codec)
    return canvases


def canvas_of(region: Region, image: np.ndarray, xp: Any = np) -> np.ndarray:
    """Return the pixels of a region, those of its patch filled in; ``xp`` is the array module of both."""
    shape = (len(image), region.rows.stop - region.rows.start, region.columns.stop - region.columns.start)
    if shape == image.shape:
        return image
    canvas = xp.empty(shape, np.float32)
    canvas[:, region.top:region.top + image.shape[1], region.left:region.left + image.shape[2]] = image
    return canvas


def window_of(canvas: np.ndarray, region: Region, box: list[int]) -> np.ndarray:
    """Return the view of a region's pixels (c, h, w) that ``box`` y0, y1, x0, x1 of the picture covers."""
    y, x = region.rows.start, region.columns.start
    return canvas[:, box[0] - y:box[1] - y, box[2] - x:box[3] - x]


def cut(image: np.ndarray, patch: Patch, box: list[int]) -> np.ndarray:
    """Return the pixels (c, h, w) of a rendered patch that ``box`` y0, y1, x0, x1 of the picture covers."""
    return image[:, box[0] - patch.y0:box[1] - patch.y0, box[2] - patch.x0:box[3] - patch.x0]


def _receive(exchange: Exchange, unit: Unit, pairs: np.ndarray, to: np.ndarray, origin: np.ndarray,
             images: Mapping[int, np.ndarray], canvases: Mapping[int, np.ndarray], n_planes: int,
             codec: str) -> None:
    """Send margins to other ranks and write those from them into ``canvases``."""
    rank, size = exchange.world.rank, exchange.world.size
    n_values = n_planes * (pairs[:, 3] - pairs[:, 2]) * (pairs[:, 5] - pairs[:, 4])
    messages, incoming, sources = [], [], []
    for other in range(size):
        sent = pairs[(origin == rank) & (to == other)] if other != rank else pairs[:0]
        flat = [cut(images[q], unit.patches[q], box).reshape(-1) for _, q, *box in sent.tolist()]
        messages.append([exchange.encode(exchange.place.xp.concatenate(flat), codec)] if flat else [])
        sources.append(np.flatnonzero((origin == other) & (to == rank)) if other != rank else np.empty(0, np.int64))
        incoming.append(encoded_bytes(int(n_values[sources[-1]].sum()), codec))
    exchange.ledger.add("pixels", np.array([sum(map(len, m)) for m in messages]), exchange.links)
    received = exchange.transfer(messages, np.array([aligned(n) for n in incoming]))
    for data, n_bytes, chosen in zip(received, incoming, sources, strict=True):
        if len(chosen) == 0:
            continue
        ends = np.cumsum(n_values[chosen])
        flat = exchange.decode(data[:n_bytes], int(ends[-1]), (), codec)
        for i, end in zip(chosen.tolist(), ends.tolist(), strict=True):
            p, _, *box = pairs[i].tolist()
            window = window_of(canvases[p], Region.of(unit.patches[p]), box)
            window[:] = flat[end - int(n_values[i]):end].reshape(window.shape)
