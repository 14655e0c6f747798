"""Morton codes of points on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backends.cuda import Device


def morton_codes(device: Device, positions: Any, low: np.ndarray, high: np.ndarray) -> Any:
    """Return the codes of :func:`gaian_hpc.points.cells.morton_codes`, (N,) uint64, of positions on the device."""
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    side = max(float(np.max(high - low)), np.finfo(np.float64).tiny) if np.isfinite(high - low).all() else 1.0
    codes = device.empty(len(positions), np.uint64)
    device.kernels("training/points.cu").over("morton_codes", len(positions), positions, *low, np.float64(side), codes)
    return codes
