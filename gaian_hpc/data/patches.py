"""Cutting a view into patches."""

from __future__ import annotations

from itertools import pairwise

from ..arrays import TILE_SIZE, Patch, View
from ..errors import SettingsError


def make_patches(view: View, patch_size: int) -> tuple[Patch, ...]:
    """Cut ``view`` into a grid of near-equal rectangles whose inner borders lie between tiles.

    Parameters
    ----------
    view : View
    patch_size : int, pixels
        Largest side of a patch, rounded down to whole tiles (at least one).

    Returns
    -------
    tuple of Patch
        Row by row; ``index`` is the position. Together they cover each pixel once.

    Raises
    ------
    SettingsError
        If ``patch_size`` is not positive.
    """
    if patch_size < 1:
        raise SettingsError(f"patch_size is {patch_size}; it must be at least 1 (rounded to tiles of {TILE_SIZE})")
    tiles = max(1, patch_size // TILE_SIZE)
    return _grid(view, -(-_n_tiles(view.width) // tiles), -(-_n_tiles(view.height) // tiles))


def make_grid(view: View, side: int) -> tuple[Patch, ...]:
    """Cut ``view`` into ``side`` × ``side`` patches as :func:`make_patches` does; fewer where it has fewer tiles."""
    if side < 1:
        raise SettingsError(f"patches is {side}; it must be at least 1 a side of a view")
    return _grid(view, min(side, _n_tiles(view.width)), min(side, _n_tiles(view.height)))


def _grid(view: View, n_x: int, n_y: int) -> tuple[Patch, ...]:
    xs, ys = _edges(view.width, n_x), _edges(view.height, n_y)
    corners = [(x0, y0, x1, y1) for y0, y1 in pairwise(ys) for x0, x1 in pairwise(xs)]
    return tuple(Patch(view, *corner, index=i) for i, corner in enumerate(corners))


def _edges(length: int, n_patches: int) -> list[int]:
    n_tiles = _n_tiles(length)
    return [min(TILE_SIZE * (n_tiles * i // n_patches), length) for i in range(n_patches + 1)]


def _n_tiles(length: int) -> int:
    return -(-length // TILE_SIZE)
