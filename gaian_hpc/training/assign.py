"""Which rank renders which patch of a unit: what the executor asks, answered from counts that all ranks know."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .unit import PIXEL_WORK, Unit

Assigner = Callable[[Unit, np.ndarray, np.ndarray], np.ndarray]
"""``assigner(unit, counts (R, P) int64, tiles (P,) int64) -> (P,) int64`` render ranks, the same on every rank."""


def on_one_rank(unit: Unit, counts: np.ndarray, tiles: np.ndarray) -> np.ndarray:
    """Return rank 0 for every patch."""
    return np.zeros(len(unit.patches), np.int64)


def render_work(unit: Unit, tiles: np.ndarray) -> np.ndarray:
    """Return the work of each patch, (P,) float64, in (tile, splat) pairs."""
    pixels = np.array([p.width * p.height for p in unit.patches], np.float64)
    return tiles + PIXEL_WORK * pixels


def by_view(unit: Unit, size: int) -> np.ndarray:
    """Deal the views of a unit out to ``size`` ranks, each whole; return the rank of each patch."""
    return np.array([unit.view_of(p) % size for p in range(len(unit.patches))], np.int64)
