"""Scenes described by JSON: nerfstudio / instant-ngp ``transforms.json`` and Blender synthetic sets.

Poses are camera-to-world in OpenGL axes (y up, z towards the viewer) and become world-to-camera in OpenCV axes. The
world frame stays as the file has it: ``applied_transform`` tells where that frame came from, and points of
``ply_file_path`` are in the same frame, so neither needs it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ..errors import DataError
from .cameras import Camera, check_camera
from .folders import SUFFIXES, check_present
from .frames import Frame, check_viewmat, safe_name
from .images import read_header

BLENDER_SPLITS = ("train", "test", "val")
FISHEYE = ("OPENCV_FISHEYE", "FISHEYE")
PERSPECTIVE = ("OPENCV", "PINHOLE", "SIMPLE_PINHOLE", "PERSPECTIVE", "SIMPLE_RADIAL", "RADIAL")
OPENGL_TO_OPENCV = np.diag([1.0, -1.0, -1.0, 1.0])
EXTENSIONS = (".png", ".jpg", ".jpeg", ".JPG", ".PNG")


@dataclass(frozen=True, slots=True)
class TransformsModel:
    """Frames of a JSON scene, sorted by name, and the start points it names (None: it names none)."""

    frames: tuple[Frame, ...]
    ply_path: Path | None


def read_transforms(path: Path) -> TransformsModel:
    """Read a nerfstudio or instant-ngp ``transforms.json``.

    Raises
    ------
    DataError
        If the file is not JSON, a value is missing or unusable, or two frames name one picture.
    """
    root = load_json(path)
    splits = _splits(root, path)
    frames = [_frame(root, entry, i, path) for i, entry in enumerate(_frame_entries(root, path))]
    if splits is not None:
        frames = [replace(frame, split=splits.get(name, "unused")) for frame, name in frames]
    else:
        frames = [frame for frame, _ in frames]
    ply = root.get("ply_file_path")
    ply_path = None if ply is None else path.parent / _text(ply, path, "ply_file_path")
    return TransformsModel(_sorted(frames, path), ply_path)


def read_blender(scene: Path) -> TransformsModel:
    """Read a Blender synthetic set; ``val`` frames test only where there is no ``test`` file.

    Raises
    ------
    DataError
        As :func:`read_transforms`.
    """
    files = {split: scene / f"transforms_{split}.json" for split in BLENDER_SPLITS}
    tests = "test" if files["test"].is_file() else "val"
    frames = []
    for split, role in (("train", "train"), (tests, "test")):
        path = files[split]
        if split == "train" or path.is_file():
            root = load_json(path)
            frames += [replace(_frame(root, entry, i, path)[0], split=role)
                       for i, entry in enumerate(_frame_entries(root, path))]
    return TransformsModel(_sorted(frames, files["train"]), None)


def load_json(path: Path) -> dict[str, Any]:
    """Return the object that a JSON file holds; DataError where there is none."""
    try:
        root = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); check the path and its permissions") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON ({error}); write it again") from error
    if not isinstance(root, dict):
        raise DataError(f"{path} must hold a JSON object with 'frames', found {type(root).__name__}")
    return root


def _frame_entries(root: dict[str, Any], path: Path) -> list[dict[str, Any]]:
    """Return the list of frames; where sizes are to be read from pictures, these must all exist."""
    entries = root.get("frames")
    if not isinstance(entries, list) or not entries or not all(isinstance(e, dict) for e in entries):
        raise DataError(f"{path}: 'frames' must be a list of objects with 'file_path' and 'transform_matrix'")
    if not ("w" in root and "h" in root):
        check_present([_picture_path(path.parent, _text(entry.get("file_path"), path, f"frames[{i}].file_path"))
                       for i, entry in enumerate(entries) if not ("w" in entry and "h" in entry)])
    return entries


def _sorted(frames: list[Frame], path: Path) -> tuple[Frame, ...]:
    frames = sorted(frames, key=lambda frame: frame.name)
    for before, after in pairwise(frames):
        if before.name == after.name:
            raise DataError(f"{path}: two frames name the picture {after.name!r}; remove one")
    return tuple(frames)


def _frame(root: dict[str, Any], entry: dict[str, Any], i: int, path: Path) -> tuple[Frame, str]:
    """Return a frame and its ``file_path`` as split lists write it."""
    given = _text(entry.get("file_path"), path, f"frames[{i}].file_path")
    where = f"{path}: frame {i} ({given!r})"
    picture = _picture_path(path.parent, given)
    inside = [part for part in PurePosixPath(given.replace("\\", "/")).parts if part not in ("..", "/", ".")]
    name = safe_name("/".join(inside[1:] if inside[:1] == ["images"] and len(inside) > 1 else inside), where)
    name += picture.suffix if picture.suffix and not name.endswith(picture.suffix) else ""
    merged = {**root, **entry}
    mask = entry.get("mask_path")
    time = None if "time" not in entry else number_of(entry, "time", where)
    if time is not None and not 0.0 <= time <= 1.0:
        raise DataError(f"{where}: time is {time:g}; it must be from 0 to 1 (divide by the last time)")
    frame = Frame(name, picture, camera_of(merged, picture, where), viewmat_of(entry, where),
                  None if mask is None else path.parent / _text(mask, path, f"frames[{i}].mask_path"), time)
    return frame, _plain(given)


def _plain(name: str) -> str:
    return str(PurePosixPath(name.replace("\\", "/")))


def _picture_path(folder: Path, given: str) -> Path:
    """Return the picture file of ``file_path``, which may lack its extension (``.png`` where none is found)."""
    if "\0" in given:
        raise DataError(f"{folder}: file_path {given!r} is not a file name; write the file again")
    picture = folder / given
    if picture.suffix.lower() in SUFFIXES or picture.is_file():
        return picture
    candidates = [picture.with_name(picture.name + extension) for extension in EXTENSIONS]
    return next((c for c in candidates if c.is_file()), candidates[0])


def viewmat_of(entry: dict[str, Any], where: str) -> np.ndarray:
    """Return the world-to-camera matrix (OpenCV axes) of an OpenGL camera-to-world ``transform_matrix``."""
    rows = entry.get("transform_matrix")
    try:
        pose = np.array(rows, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{where}: transform_matrix is not a matrix of numbers; write it again") from error
    if pose.shape == (3, 4):
        pose = np.vstack([pose, [0.0, 0.0, 0.0, 1.0]])
    if pose.shape != (4, 4):
        raise DataError(f"{where}: transform_matrix has shape {pose.shape}; it must be 4 x 4")
    check_viewmat(pose, where)
    pose = pose @ OPENGL_TO_OPENCV
    u, s, vt = np.linalg.svd(pose[:3, :3])
    if not (np.abs(s - 1.0) < 1e-2).all() or np.linalg.det(u @ vt) < 0:
        raise DataError(f"{where}: transform_matrix does not hold a rotation (singular values {s.round(4).tolist()}, "
                        "must be 1, without reflection); write it as camera-to-world without scale")
    viewmat = np.eye(4)
    viewmat[:3, :3] = (u @ vt).T  # the nearest rotation removes the rounding of printed numbers
    viewmat[:3, 3] = -viewmat[:3, :3] @ pose[:3, 3]
    return check_viewmat(viewmat, where)


def camera_of(values: dict[str, Any], picture: Path, where: str) -> Camera:
    """Return the camera of a frame; sizes that the file does not give are those of the picture."""
    if "w" in values and "h" in values:
        width, height = (number_of(values, key, where) for key in "wh")
    else:
        header = read_header(picture)
        width, height = header.width, header.height
    fx = _focal(values, "x", width, where)
    fy = _focal(values, "y", height, where) if "fl_y" in values or "camera_angle_y" in values else fx
    model, coeffs = _lens(values, where)
    if width != int(width) or height != int(height):
        raise DataError(f"{where}: picture size w h is {width:g} {height:g}; it must be whole pixels")
    camera = Camera(model, int(width), int(height), fx, fy, number_of(values, "cx", where, width / 2),
                    number_of(values, "cy", where, height / 2), coeffs,
                    number_of(values, "fisheye_crop_radius", where, math.inf))
    return check_camera(camera, where)


def _focal(values: dict[str, Any], axis: str, side: float, where: str) -> float:
    if f"fl_{axis}" in values:
        return number_of(values, f"fl_{axis}", where)
    angle = number_of(values, f"camera_angle_{axis}", where)
    if not 0.0 < angle < math.pi:
        raise DataError(f"{where}: camera_angle_{axis} is {angle:g}; it must lie between 0 and pi (radians)")
    return 0.5 * side / math.tan(0.5 * angle)


def _lens(values: dict[str, Any], where: str) -> tuple[str, tuple[float, ...]]:
    """Return the camera model and its coefficients."""
    kind = values.get("camera_model", "OPENCV")
    fisheye = kind in FISHEYE or values.get("is_fisheye") is True
    if not fisheye and kind not in PERSPECTIVE:
        raise DataError(f"{where}: camera_model {kind!r} is not supported (supported: "
                        f"{', '.join(PERSPECTIVE + FISHEYE)}); undistort the pictures first")
    names = ("k1", "k2", "k3", "k4", "p1", "p2")
    listed = values.get("distortion_params")
    if listed is not None:
        if not isinstance(listed, list) or len(listed) > len(names):
            raise DataError(f"{where}: distortion_params must be a list of up to 6 numbers k1 k2 k3 k4 p1 p2")
        values = values | dict(zip_longest(names, listed, fillvalue=0.0))
    k1, k2, k3, k4, p1, p2 = (number_of(values, name, where, 0.0) for name in names)
    if fisheye:
        return "OPENCV_FISHEYE", (k1, k2, k3, k4)
    if not any((k1, k2, k3, k4, p1, p2)):
        return "PINHOLE", ()
    return "OPENCV_RADIAL4", (k1, k2, p1, p2, k3, k4)


def _splits(root: dict[str, Any], path: Path) -> dict[str, str] | None:
    """Return the role of each listed ``file_path``, or None where there are no lists."""
    lists = {split: root.get(f"{split}_filenames") for split in BLENDER_SPLITS}
    for split, names in lists.items():
        if names is not None and not (isinstance(names, list) and all(isinstance(n, str) for n in names)):
            raise DataError(f"{path}: {split}_filenames must be a list of file paths")
    if lists["train"] is None:
        return None
    roles = {_plain(name): "test" for name in lists["test"] or lists["val"] or ()}
    return roles | {_plain(name): "train" for name in lists["train"]}


def _text(value: Any, path: Path, what: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{path}: {what} is {value!r}; it must be a path")
    return value


def number_of(values: dict[str, Any], key: str, where: str, default: float | None = None) -> float:
    """Return a finite number of the JSON object; infinity only as the given default."""
    value = values.get(key, default)
    if value is None:
        raise DataError(f"{where}: {key!r} is missing; add it to the file or the frame")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{where}: {key} is {value!r}; it must be a number")
    if key in values and not abs(value) < 1e30:
        raise DataError(f"{where}: {key} is {value}; it must be finite")
    return float(value)
