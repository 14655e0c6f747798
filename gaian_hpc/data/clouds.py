"""Start points from a PLY file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..errors import DataError
from .frames import ScenePoints

MAX_HEADER_BYTES = 1 << 16


def read_ply_points(path: Path) -> ScenePoints:
    """Read ``x y z`` and, where present, ``red green blue`` (8-bit, or floats in [0, 1]) of a PLY file's vertices.

    Raises
    ------
    DataError
        If the file is missing, damaged, or has no such vertices, or a position is not finite.
    """
    from plyfile import PlyData, PlyParseError

    path = Path(path)
    try:
        _check_counts(path)
        vertex = PlyData.read(str(path))["vertex"]
        names = {p.name for p in vertex.properties}
        positions = np.stack([np.asarray(vertex[axis], np.float64) for axis in "xyz"], axis=1)
        colors = [np.asarray(vertex[name]) for name in ("red", "green", "blue") if name in names]
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}); check the path") from error
    except (PlyParseError, KeyError, ValueError, TypeError, IndexError, OverflowError, EOFError) as error:
        raise DataError(f"{path} is not a readable PLY of points ({error}); it must have an element vertex with "
                        "x y z [red green blue]") from error
    if (bad := np.flatnonzero(~(np.abs(positions) < 1e30).all(axis=1))).size:
        raise DataError(f"{path}: {bad.size} points are not finite, the first is row {bad[0]}; remove them")
    return ScenePoints(positions.astype(np.float32), _unit_colors(colors, path) if len(colors) == 3 else None)


def _unit_colors(channels: list[np.ndarray], path: Path) -> np.ndarray:
    """Return (N, 3) float32 in [0, 1]."""
    colors = np.stack([np.asarray(c, np.float64) for c in channels], axis=1)
    if channels[0].dtype.kind in "ui":
        colors = colors / np.iinfo(channels[0].dtype).max
    if not ((colors >= 0) & (colors <= 1)).all():
        raise DataError(f"{path}: colours must be integers, or floats from 0 to 1; write red green blue as uchar")
    return colors.astype(np.float32)


def _check_counts(path: Path) -> None:
    """Refuse a header whose counts cannot fit the file, before anything is allocated from them."""
    size = path.stat().st_size
    with path.open("rb") as file:
        header = file.read(MAX_HEADER_BYTES)
    head, found, _ = header.partition(b"end_header")
    if not header.startswith(b"ply") or not found:
        raise ValueError("the header does not begin with 'ply' and end with 'end_header'")
    rows = 0
    for line in head.splitlines():
        words = line.split()
        if words[:1] == [b"element"]:
            count = int(words[2])
            if count < 0:
                raise ValueError(f"a count of {count} elements")
            rows += count
    if rows > size:
        raise ValueError(f"{rows} rows announced by a file of {size} bytes")
