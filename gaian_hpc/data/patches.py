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
    xs, ys = _edges(view.width, patch_size), _edges(view.height, patch_size)
    corners = [(x0, y0, x1, y1) for y0, y1 in pairwise(ys) for x0, x1 in pairwise(xs)]
    return tuple(Patch(view, *corner, index=i) for i, corner in enumerate(corners))


def _edges(length: int, patch_size: int) -> list[int]:
    n_tiles = -(-length // TILE_SIZE)
    n_patches = -(-n_tiles // max(1, patch_size // TILE_SIZE))
    return [min(TILE_SIZE * (n_tiles * i // n_patches), length) for i in range(n_patches + 1)]
