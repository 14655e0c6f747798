"""What every layout is read into before pictures are looked at: named frames with camera and pose."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np

from ..errors import DataError
from .cameras import Camera


@dataclass(frozen=True, slots=True)
class Frame:
    """A posed picture as its data set describes it.

    Attributes
    ----------
    name : str
        Picture name below the picture folder, with ``/`` between folders.
    path : Path
        Full-size picture file.
    camera : Camera
    viewmat : (4, 4) float64
        World to camera, OpenCV axes.
    mask_path : Path or None
        Mask that the data set names itself.
    time : float or None
        In [0, 1].
    split : {"train", "test", "unused"} or None
        None where the data set does not say.
    """

    name: str
    path: Path
    camera: Camera
    viewmat: np.ndarray
    mask_path: Path | None = None
    time: float | None = None
    split: Literal["train", "test", "unused"] | None = None


@dataclass(frozen=True, slots=True)
class ScenePoints:
    """Start points: ``positions`` (N, 3) float32 world units, ``colors`` (N, 3) float32 in [0, 1] or None."""

    positions: np.ndarray
    colors: np.ndarray | None = None


def safe_name(name: str, where: str) -> str:
    """Return ``name`` if it stays below the picture folder, with ``/`` between folders.

    Raises
    ------
    DataError
        If it is empty, absolute or climbs out of the folder.
    """
    path = PurePosixPath(name.replace("\\", "/"))
    if not name.strip() or "\0" in name or path.is_absolute() or ".." in path.parts or not path.parts:
        raise DataError(f"{where}: picture name {name!r} must be a path below the picture folder; rename the picture "
                        "and export the model again")
    return str(path)


def check_viewmat(viewmat: np.ndarray, where: str) -> np.ndarray:
    """Return ``viewmat`` if it is finite also in float32, else raise a DataError that begins with ``where``."""
    if not (np.isfinite(viewmat).all() and np.abs(viewmat).max() < 1e30):
        raise DataError(f"{where}: the pose is not finite; remove the image from the model or register it again")
    return viewmat
