"""COLMAP models: cameras, poses, points and tracks, checked against each other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from ..errors import DataError
from . import binary, text
from .cameras import Camera, camera_from_params
from .frames import Frame, ScenePoints, check_viewmat, safe_name
from .records import CameraRecord, ImageRecord, PointRecords

MODEL_FOLDERS = ("sparse/0", "sparse", "colmap/sparse/0")
READERS = {".bin": binary, ".txt": text}


@dataclass(frozen=True, slots=True)
class ColmapModel:
    """A COLMAP model whose references are known to be good.

    Attributes
    ----------
    folder : Path
    frames : tuple of Frame
        Sorted by name.
    points : ScenePoints or None
        Sorted by COLMAP's point id, so that binary and text files give the same order.
    track_offsets : (N + 1,) int64 or None
    track_view_idx : (M,) int64 or None
        Positions in ``frames`` that see each point, ascending and without repeats.
    """

    folder: Path
    frames: tuple[Frame, ...]
    points: ScenePoints | None
    track_offsets: np.ndarray | None
    track_view_idx: np.ndarray | None


def find_model(scene: Path) -> Path | None:
    """Return the first of ``MODEL_FOLDERS`` below ``scene`` that holds ``cameras`` or ``images`` files."""
    for name in MODEL_FOLDERS:
        folder = scene / name
        if any((folder / f"{table}{suffix}").is_file() for suffix in READERS for table in ("cameras", "images")):
            return folder
    return None


def read_model(folder: Path, pictures: Path) -> ColmapModel:
    """Read a model, binary files before text files.

    Parameters
    ----------
    folder : Path
        Holds ``cameras``, ``images`` and optionally ``points3D``, each ``.bin`` or ``.txt``.
    pictures : Path
        The folder that image names are relative to.

    Raises
    ------
    DataError
        If a file is missing or damaged, a value cannot be used, or a reference leads nowhere.
    """
    cameras_path, images_path = _table(folder, "cameras"), _table(folder, "images")
    cameras = _cameras(READERS[cameras_path.suffix].read_cameras(cameras_path), cameras_path)
    images = READERS[images_path.suffix].read_images(images_path)
    if not images:
        raise DataError(f"{images_path} holds no images; run the mapper again or check what it registered")
    images.sort(key=lambda image: image.name)
    frames = tuple(_frame(image, cameras, images_path, pictures) for image in images)
    for before, after in pairwise(frames):
        if before.name == after.name:
            raise DataError(f"{images_path}: two images are named {after.name!r}; export the model again")
    points_path = _table(folder, "points3D", optional=True)
    if points_path is None:
        return ColmapModel(folder, frames, None, None, None)
    records = _sorted_points(READERS[points_path.suffix].read_points(points_path), points_path)
    offsets, view_idx = _tracks(records, images, points_path)
    points = ScenePoints(records.positions.astype(np.float32), records.colors.astype(np.float32) / np.float32(255))
    return ColmapModel(folder, frames, points, offsets, view_idx)


def _table(folder: Path, name: str, optional: bool = False) -> Path | None:
    for suffix in READERS:
        if (folder / f"{name}{suffix}").is_file():
            return folder / f"{name}{suffix}"
    if optional:
        return None
    raise DataError(f"{folder} has neither {name}.bin nor {name}.txt; export the whole model from COLMAP")


def _cameras(records: list[CameraRecord], path: Path) -> dict[int, Camera]:
    cameras: dict[int, Camera] = {}
    for record in records:
        where = f"{path}: camera {record.camera_id}"
        if record.camera_id in cameras:
            raise DataError(f"{where} occurs twice; export the model again")
        cameras[record.camera_id] = camera_from_params(record.model, record.width, record.height, record.params, where)
    return cameras


def _frame(image: ImageRecord, cameras: dict[int, Camera], path: Path, pictures: Path) -> Frame:
    where = f"{path}: image {image.image_id} ({image.name!r})"
    name = safe_name(image.name, where)
    if image.camera_id not in cameras:
        raise DataError(f"{where} names camera {image.camera_id}, which the model does not have; "
                        "export the whole model again")
    viewmat = np.eye(4)
    viewmat[:3, :3] = _rotation(image.qvec, where)
    viewmat[:3, 3] = image.tvec
    return Frame(name, pictures / name, cameras[image.camera_id], check_viewmat(viewmat, where))


def _rotation(qvec: tuple[float, ...], where: str) -> np.ndarray:
    """Return the rotation matrix of a quaternion (w, x, y, z) of any length but zero."""
    norm = math.hypot(*qvec)
    if not (math.isfinite(norm) and norm > 1e-12):
        raise DataError(f"{where}: the pose quaternion {qvec} is not finite or zero; remove the image from the "
                        "model or register it again")
    w, x, y, z = (q / norm for q in qvec)
    return np.array([[1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
                     [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
                     [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)]])


def _sorted_points(records: PointRecords, path: Path) -> PointRecords:
    """Return the points by ascending id; refuse repeated ids and positions that are not finite."""
    order = np.argsort(records.ids, kind="stable")
    ids = records.ids[order]
    if (same := np.flatnonzero(ids[1:] == ids[:-1])).size:
        raise DataError(f"{path}: point {ids[same[0]]} occurs twice; export the model again")
    positions = records.positions[order]
    if (bad := np.flatnonzero(~(np.abs(positions) < 1e30).all(axis=1))).size:
        raise DataError(f"{path}: {bad.size} points are not finite, the first is point {ids[bad[0]]} at "
                        f"{positions[bad[0]]}; remove them (colmap point_filtering) or run the mapper again")
    lengths = records.track_lengths[order]
    begins = (np.cumsum(records.track_lengths) - records.track_lengths)[order]
    elements = np.repeat(begins - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum(), dtype=np.int64)
    return PointRecords(ids, positions, records.colors[order], lengths, records.track_image_ids[elements])


def _tracks(records: PointRecords, images: list[ImageRecord], path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return (offsets, view indices) of all tracks, each ascending and without repeats."""
    image_ids = np.array([image.image_id for image in images], np.int64)
    by_id = np.argsort(image_ids, kind="stable")
    known = image_ids[by_id]
    at = np.minimum(np.searchsorted(known, records.track_image_ids), len(known) - 1)
    point_idx = np.repeat(np.arange(len(records.ids), dtype=np.int64), records.track_lengths)
    if (bad := np.flatnonzero(known[at] != records.track_image_ids)).size:
        raise DataError(f"{path}: the track of point {records.ids[point_idx[bad[0]]]} names image "
                        f"{records.track_image_ids[bad[0]]}, which the model does not have; export the whole model "
                        "again")
    pairs = np.unique(point_idx * len(images) + by_id[at])
    counts = np.bincount(pairs // len(images), minlength=len(records.ids))
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
    return offsets, pairs % len(images)
