"""Cameras to render that no picture belongs to: a path in the form of a ``transforms.json``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..arrays import View
from ..errors import DataError
from .frames import check_viewmat, safe_name
from .transforms import camera_of, load_json, number_of, viewmat_of


def read_camera_path(path: Path) -> list[View]:
    """Return the pinhole cameras of ``frames``, in their order.

    Each frame has a ``transform_matrix`` (camera to world, OpenGL axes); size and intrinsics (``w``, ``h``, ``fl_x`` or
    ``camera_angle_x`` …) stand in the frame or for all frames beside them; ``file_path`` names the rendering and
    ``time`` (0 to 1) its moment, both optional.

    Raises
    ------
    DataError
        If the file is not of this form, or a camera has a distorted lens.
    """
    root = load_json(path)
    entries = root.get("frames")
    if not isinstance(entries, list) or not entries or not all(isinstance(e, dict) for e in entries):
        raise DataError(f"{path}: 'frames' must be a list of objects with 'transform_matrix'")
    return [_view({**root, **entry}, entry, i, path) for i, entry in enumerate(entries)]


def _view(values: dict, entry: dict, index: int, path: Path) -> View:
    where = f"{path}: frame {index}"
    if not ("w" in values and "h" in values):
        raise DataError(f"{where} has no picture size; give w and h in pixels")
    camera = camera_of(values, path, where)
    if not camera.is_pinhole:
        raise DataError(f"{where} has lens distortion, which can't be rendered; remove its coefficients")
    K = np.array([[camera.fx, 0, camera.cx], [0, camera.fy, camera.cy], [0, 0, 1]], np.float32)
    name = entry.get("file_path")
    name = safe_name(name.lstrip("./"), where) if isinstance(name, str) and name.strip("./") else f"{index:05d}"
    viewmat = check_viewmat(viewmat_of(entry, where), where).astype(np.float32)
    time = number_of(values, "time", where, 0.0)
    if not 0.0 <= time <= 1.0:
        raise DataError(f"{where}: time is {time:g}; it must be from 0 to 1 (divide by the last time)")
    return View(viewmat, K, camera.width, camera.height, name=name, index=index, time=time)
