"""Which file belongs to which frame: full-size or downscaled pictures, and masks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from ..errors import DataError
from .frames import Frame

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp", ".ppm")


def picture_files(frames: Sequence[Frame], scene: Path, factor: int) -> tuple[list[Path], bool]:
    """Return the file of each frame and whether it comes from the folder ``images_<factor>``.

    Names are matched whole, then without their extension, then, where both folders hold equally many pictures, by
    sorted order.

    Raises
    ------
    DataError
        If files are missing: names the first and says how many.
    """
    folder = scene / f"images_{factor}"
    if factor > 1 and folder.is_dir():
        return _reduced(frames, scene, folder), True
    paths = [frame.path for frame in frames]
    check_present(paths)
    return paths, False


def mask_files(frames: Sequence[Frame], scene: Path, factor: int) -> list[Path | None]:
    """Return the mask of each frame: the one it names, else one of its name in ``masks_<factor>`` or ``masks``.

    Raises
    ------
    DataError
        If a mask that a frame names does not exist.
    """
    check_present([frame.mask_path for frame in frames if frame.mask_path is not None])
    folder = scene / f"masks_{factor}"
    if factor == 1 or not folder.is_dir():
        folder = scene / "masks"
    files = _by_name(folder) if folder.is_dir() else {}
    stems = _by_stem(files)
    return [frame.mask_path or files.get(frame.name + ".png") or files.get(frame.name) or stems.get(_stem(frame.name))
            for frame in frames]


def _reduced(frames: Sequence[Frame], scene: Path, folder: Path) -> list[Path]:
    files = _by_name(folder)
    stems = _by_stem(files)
    found = [files.get(frame.name) or stems.get(_stem(frame.name)) for frame in frames]
    if None in found:
        full = _by_name(scene / "images") if (scene / "images").is_dir() else {}
        if len(full) == len(files) and all(frame.name in full for frame in frames):
            in_order = dict(zip(full, files.values(), strict=True))
            found = [in_order[frame.name] for frame in frames]
    check_present([path or folder / frame.name for path, frame in zip(found, frames, strict=True)])
    return found


def _by_name(folder: Path) -> dict[str, Path]:
    """Return the pictures below ``folder`` by their names, sorted."""
    paths = (path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    return {name: path for name, path in sorted((path.relative_to(folder).as_posix(), path) for path in paths)}


def _by_stem(files: dict[str, Path]) -> dict[str, Path]:
    """Return the files by name without extension; where two share one, neither can be told from it."""
    counts = Counter(map(_stem, files))
    return {_stem(name): path for name, path in files.items() if counts[_stem(name)] == 1}


def _stem(name: str) -> str:
    return str(PurePosixPath(name).with_suffix(""))


def check_present(paths: Sequence[Path]) -> None:
    """Raise a DataError that names the first missing file and says how many are missing."""
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise DataError(f"{missing[0]} does not exist ({len(missing)} of {len(paths)} pictures are missing); restore "
                        "them or remove their images from the scene")
