"""Scenes: views with their pictures, splits, start points and tracks, from any supported layout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from ..arrays import View
from ..errors import DataError
from .cameras import Camera, Undistortion, plan_undistortion
from .clouds import read_ply_points
from .colmap import MODEL_FOLDERS, find_model, read_model
from .folders import mask_files, picture_files
from .frames import Frame, ScenePoints, check_viewmat
from .images import PictureSource, read_header
from .transforms import read_blender, read_transforms

EXTENT_MARGIN = 1.1  # Kerbl et al. 2023, reference implementation
LEAST_ROUNDING = 1e-4  # share of the extent that rounding to float32 may move a camera by
SPLIT_FILES = ("train", "test")


@dataclass(frozen=True, slots=True)
class Tracks:
    """Which views saw each start point in structure from motion, in compressed sparse rows.

    Attributes
    ----------
    track_offsets : (N + 1,) int64
    track_view_idx : (M,) int64
        View indices; those of point ``i`` are at ``track_offsets[i]:track_offsets[i + 1]``, ascending.
    """

    track_offsets: np.ndarray
    track_view_idx: np.ndarray


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that is read from a data set but pixels.

    Attributes
    ----------
    path : Path
    kind : {"colmap", "transforms", "blender"}
    views : tuple of View
        Sorted by picture name; ``View.index`` is the position.
    pictures : tuple of PictureSource
        One per view.
    train_idx, test_idx : int64 arrays
        View indices, ascending.
    points : ScenePoints or None
        From structure from motion or a PLY that the data set names.
    tracks : Tracks or None
        In COLMAP models only.
    extent : float, world units
        1.1 × the largest distance of a training camera from their mean. Where all stand at one place: 1.1 × the median
        distance from there to the points, or 1 without points.
    times : (V,) float32 in [0, 1] or None
    """

    path: Path
    kind: Literal["colmap", "transforms", "blender"]
    views: tuple[View, ...]
    pictures: tuple[PictureSource, ...]
    train_idx: np.ndarray
    test_idx: np.ndarray
    points: ScenePoints | None
    tracks: Tracks | None
    extent: float
    times: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class _Content:
    """What one layout holds; ``source`` is the file that messages name."""

    kind: Literal["colmap", "transforms", "blender"]
    source: Path
    frames: tuple[Frame, ...]
    points: ScenePoints | None = None
    tracks: Tracks | None = None


def load_scene(path: str | Path, *, factor: int = 1, max_side: int = 0, test_every: int = 8, masks: bool = True,
               times: str | Path | None = None, near: float = 0.01) -> Scene:
    """Read a scene and check that all its pictures are there, reading no more of them than their headers.

    The layout is COLMAP (``sparse/0``, ``sparse`` or ``colmap/sparse/0``, binary before text), else
    ``transforms.json`` (nerfstudio, instant-ngp), else Blender synthetic (``transforms_train.json`` …).

    Parameters
    ----------
    path : path
        Folder of the scene, or its ``transforms.json``.
    factor : int
        Downscale by this: from the folder ``images_<factor>`` where it exists, else on decoding.
    max_side : int, pixels
        Downscale on decoding so that no picture is longer; 0 keeps the size.
    test_every : int
        Every n-th view by sorted name is a test view; 0 trains on all. Splits that the data set itself gives win: lists
        in the JSON, or ``train.txt`` / ``test.txt`` (a name per line) in the scene or beside the COLMAP model.
    masks : bool
        Use ``masks/`` and the masks that frames name.
    times : path, optional
        JSON file of picture name → time; ``times.json`` in the scene is found by itself.
    near : float, world units
        Near plane of all views.

    Raises
    ------
    DataError
        If something is missing, damaged or inconsistent, or there are fewer than two views or no training view.
    """
    path = Path(path)
    content = _read_content(path)
    folder = path if path.is_dir() else path.parent
    frames = content.frames
    if len(frames) < 2:
        raise DataError(f"{content.source} has {len(frames)} view; training needs at least 2")
    if factor < 1 or max_side < 0 or test_every < 0:
        raise DataError(f"factor {factor}, max_side {max_side}, test_every {test_every}: a factor of at least 1 and no "
                        "negative numbers are allowed")
    view_times = _times(frames, folder, times)
    pictures, cameras = _pictures(frames, folder, factor, max_side, masks)
    views = tuple(_view(i, frame, camera, 0.0 if view_times is None else float(view_times[i]), content.source, near)
                  for i, (frame, camera) in enumerate(zip(frames, cameras, strict=True)))
    train_idx, test_idx = _split(content, folder, test_every)
    extent = _extent(frames, train_idx, content)
    return Scene(folder, content.kind, views, pictures, train_idx, test_idx, content.points, content.tracks, extent,
                 view_times)


def _read_content(path: Path) -> _Content:
    if path.is_file() and path.suffix == ".json":
        return _json_content(path)
    if not path.is_dir():
        raise DataError(f"{path} is not a folder; give the folder of a scene")
    if (model_folder := find_model(path)) is not None:
        return _colmap_content(path, model_folder)
    if (path / "transforms.json").is_file():
        return _json_content(path / "transforms.json")
    if (path / "transforms_train.json").is_file():
        return _Content("blender", path / "transforms_train.json", read_blender(path).frames)
    raise DataError(f"{path} is not a scene: it has no COLMAP model in {', '.join(MODEL_FOLDERS)}, no transforms.json "
                    "and no transforms_train.json; run COLMAP or give another folder")


def _colmap_content(scene: Path, folder: Path) -> _Content:
    model = read_model(folder, scene / "images")
    points, tracks = model.points, None
    if points is not None:
        tracks = Tracks(model.track_offsets, model.track_view_idx)
    elif (folder / "points3D.ply").is_file():
        points = read_ply_points(folder / "points3D.ply")
    return _Content("colmap", folder, model.frames, points, tracks)


def _json_content(path: Path) -> _Content:
    model = read_transforms(path)
    points = None if model.ply_path is None else read_ply_points(model.ply_path)
    return _Content("transforms", path, model.frames, points)


def _pictures(frames: Sequence[Frame], scene: Path, factor: int, max_side: int, masks: bool
              ) -> tuple[tuple[PictureSource, ...], list[Camera]]:
    """Return where each view's pixels come from and the pinhole camera that they show."""
    paths, reduced = picture_files(frames, scene, factor)
    mask_paths = mask_files(frames, scene, factor) if masks else [None] * len(frames)
    plans: dict[Camera, Undistortion] = {}
    sources, cameras = [], []
    for frame, path, mask_path in zip(frames, paths, mask_paths, strict=True):
        header = read_header(path)
        _check_aspect(path, (header.width, header.height), (frame.camera.width, frame.camera.height), "its camera")
        if mask_path is not None:
            mask = read_header(mask_path)
            _check_aspect(mask_path, (mask.width, mask.height), (header.width, header.height), "its picture")
        size = _scaled_size(header.width, header.height, 1 if reduced else factor, max_side)
        camera = frame.camera.scaled(*size)
        plan = None
        if not camera.is_pinhole:
            plan = plans.get(camera) or plan_undistortion(camera, f"{path}")
            plans[camera] = plan
        sources.append(PictureSource(path, (header.width, header.height), size, plan, mask_path, header.has_alpha))
        cameras.append(plan.pinhole if plan else camera)
    return tuple(sources), cameras


def _scaled_size(width: int, height: int, factor: int, max_side: int) -> tuple[int, int]:
    scale = 1.0 / factor
    if max_side:
        scale = min(scale, max_side / max(width, height))
    return max(1, round(width * scale)), max(1, round(height * scale))


def _check_aspect(path: Path, size: tuple[int, int], expected: tuple[int, int], owner: str) -> None:
    """Refuse a picture of another shape (one that was rotated, or belongs to another camera)."""
    width = expected[0] * size[1] / expected[1]
    if abs(size[0] - width) > max(2.0, 0.05 * width) + expected[0] / expected[1]:
        raise DataError(f"{path} is {size[0]} x {size[1]} pixels but {owner} has {expected[0]} x {expected[1]}, "
                        "another aspect ratio; use the picture that the camera was calibrated with")


def _view(index: int, frame: Frame, camera: Camera, time: float, source: Path, near: float) -> View:
    K = np.array([[camera.fx, 0.0, camera.cx], [0.0, camera.fy, camera.cy], [0.0, 0.0, 1.0]], np.float32)
    viewmat = check_viewmat(frame.viewmat, f"{source}: image {frame.name!r}").astype(np.float32)
    return View(viewmat, K, camera.width, camera.height, name=frame.name, index=index, near=near,
                time=time)


def _times(frames: Sequence[Frame], scene: Path, given: str | Path | None) -> np.ndarray | None:
    """Return the time of each frame from a file or the frames themselves, or None where there are none."""
    path = Path(given) if given is not None else scene / "times.json"
    if given is None and not path.is_file():
        if all(frame.time is None for frame in frames):
            return None
        missing = next((frame.name for frame in frames if frame.time is None), None)
        if missing is not None:
            raise DataError(f"{scene}: frame {missing!r} has no time but others have; give all frames a time")
        return np.array([frame.time for frame in frames], np.float32)
    try:
        table = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as JSON ({error}); write it again") from error
    if not isinstance(table, dict):
        raise DataError(f"{path} must map picture names to times, found {type(table).__name__}")
    values = [table.get(frame.name, table.get(frame.path.name)) for frame in frames]
    for frame, value in zip(frames, values, strict=True):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
            raise DataError(f"{path}: the time of {frame.name!r} is {value!r}; it must be a number from 0 to 1")
    return np.array(values, np.float32)


def _split(content: _Content, scene: Path, test_every: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (train, test) view indices."""
    names = [frame.name for frame in content.frames]
    lists = {split: _names_file(split, content, scene) for split in SPLIT_FILES}
    index = np.arange(len(names), dtype=np.int64)
    if any(frame.split for frame in content.frames):
        roles = [frame.split for frame in content.frames]
        test = np.array([role == "test" for role in roles])
        train = np.array([role == "train" for role in roles])
    elif lists["train"] is not None or lists["test"] is not None:
        listed = {split: np.isin(names, sorted(found or ())) for split, found in lists.items()}
        test = listed["test"] if lists["test"] is not None else ~listed["train"]
        train = listed["train"] & ~test if lists["train"] is not None else ~test
    else:
        test = index % test_every == 0 if test_every else np.zeros(len(names), bool)
        train = ~test
    if not train.any():
        raise DataError(f"{content.source}: all {len(names)} views are test views; use --data.test_every 0 or mend the "
                        "split lists")
    return index[train], index[test]


def _names_file(split: str, content: _Content, scene: Path) -> set[str] | None:
    """Return the picture names listed in ``<split>.txt``, or None where there is no such file."""
    folders = (content.source, scene) if content.kind == "colmap" else (scene,)
    path = next((folder / f"{split}.txt" for folder in folders if (folder / f"{split}.txt").is_file()), None)
    if path is None:
        return None
    try:
        listed = {line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()}
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}); it must be text with a picture name per line") from error
    unknown = listed - {frame.name for frame in content.frames}
    if unknown:
        raise DataError(f"{path} lists {len(unknown)} pictures that the scene does not have, the first is "
                        f"{min(unknown)!r}; names must be written as in the scene, with extension")
    return listed


def _extent(frames: Sequence[Frame], train_idx: np.ndarray, content: _Content) -> float:
    viewmats = np.stack([frames[i].viewmat for i in train_idx])
    centers = -np.einsum("nji,nj->ni", viewmats[:, :3, :3], viewmats[:, :3, 3])
    mean = centers.mean(axis=0)
    radius = float(np.linalg.norm(centers - mean, axis=1).max())
    if radius > 1e-6 * max(1.0, float(np.abs(centers).max())):
        extent = EXTENT_MARGIN * radius
    elif content.points is not None and len(content.points.positions):
        extent = EXTENT_MARGIN * float(np.median(np.linalg.norm(content.points.positions - mean, axis=1)))
    else:
        extent = 1.0
    rounding = float(np.abs(centers).max() * np.finfo(np.float32).eps)
    if rounding > LEAST_ROUNDING * extent:
        raise DataError(f"{content.source}: cameras lie {np.abs(centers).max():.4g} from the origin but only "
                        f"{extent:.4g} apart, which float32 cannot resolve; move the scene to the origin "
                        "(colmap model_transformer)")
    return extent
