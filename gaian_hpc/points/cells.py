"""Cells: runs of neighbouring points along a Morton curve, the units of profiling and migration."""

from __future__ import annotations

import numpy as np

BITS = 21


def morton_codes(positions: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return the place of each point on a Morton curve through a box.

    Parameters
    ----------
    positions : (N, 3) float32, world units
        Those outside of the box, and those not finite, are moved to its faces.
    low, high : (3,) float, world units
        Corners of the box.

    Returns
    -------
    (N,) uint64
        Below 2^63; the x axis has the lowest bit.
    """
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    side = max(float(np.max(high - low)), np.finfo(np.float64).tiny) if np.isfinite(high - low).all() else 1.0
    scaled = (np.nan_to_num(np.asarray(positions, np.float64), posinf=np.inf, neginf=-np.inf) - low) / side
    steps = np.clip(scaled, 0, 1) * ((1 << BITS) - 1)
    axes = steps.astype(np.uint64)
    return _spread(axes[:, 0]) | _spread(axes[:, 1]) << np.uint64(1) | _spread(axes[:, 2]) << np.uint64(2)


def cell_bounds(codes: np.ndarray, n_cells: int) -> np.ndarray:
    """Return the codes at which cells end, so that a cell holds about as many of ``codes`` as any other.

    Parameters
    ----------
    codes : (N,) uint64, ascending
        Of all points, or of a sample.
    n_cells : int

    Returns
    -------
    (G − 1,) uint64, ascending, each once
        G is at most ``n_cells``: points at one place are in one cell.
    """
    n_cells = max(1, min(n_cells, len(codes)))
    return np.unique(codes[len(codes) * np.arange(1, n_cells) // n_cells])


def cell_of(codes: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Return the cell of each code, (N,) int32 in [0, G)."""
    return np.searchsorted(bounds, codes, side="right").astype(np.int32)


def _spread(x: np.ndarray) -> np.ndarray:
    """Put two zero bits between the bits of 21-bit numbers."""
    for shift, mask in ((32, 0x1F00000000FFFF), (16, 0x1F0000FF0000FF), (8, 0x100F00F00F00F00F),
                        (4, 0x10C30C30C30C30C3), (2, 0x1249249249249249)):
        x = (x | x << np.uint64(shift)) & np.uint64(mask)
    return x
