"""What a COLMAP model's files hold, before it is checked for consistency."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class CameraRecord(NamedTuple):
    """One row of ``cameras``; ``model`` is COLMAP's name of the camera model."""

    camera_id: int
    model: str
    width: int
    height: int
    params: tuple[float, ...]


class ImageRecord(NamedTuple):
    """One row of ``images``: world-to-camera rotation (w, x, y, z) and translation."""

    image_id: int
    qvec: tuple[float, ...]
    tvec: tuple[float, ...]
    camera_id: int
    name: str


class PointRecords(NamedTuple):
    """All rows of ``points3D``, in file order.

    ``ids`` (N,) int64, ``positions`` (N, 3) float64, ``colors`` (N, 3) uint8, ``track_lengths`` (N,) int64 and
    ``track_image_ids`` (sum of lengths,) int64.
    """

    ids: np.ndarray
    positions: np.ndarray
    colors: np.ndarray
    track_lengths: np.ndarray
    track_image_ids: np.ndarray
