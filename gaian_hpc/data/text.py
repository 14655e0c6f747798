"""COLMAP's text model files."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ..errors import DataError
from .records import CameraRecord, ImageRecord, PointRecords


class _Lines:
    """Numbered lines of a text file; a value that cannot be parsed is a DataError that names the line."""

    def __init__(self, path: Path):
        self.path, self.number = path, 0

    @contextmanager
    def open(self) -> Iterator[Iterator[str]]:
        try:
            with self.path.open("r", encoding="utf-8") as file:
                yield self._numbered(file)
        except OSError as error:
            raise DataError(f"{self.path} cannot be read ({error.strerror}); check the path and its permissions"
                            ) from error
        except (ValueError, OverflowError, IndexError) as error:
            raise DataError(f"{self.path}, line {self.number}: {error}; export the model again") from error

    def _numbered(self, file: Iterator[str]) -> Iterator[str]:
        for line in file:
            self.number += 1
            yield line

    def fields(self, line: str, least: int, most: int = -1) -> list[str]:
        """Split a line that must have at least ``least`` fields."""
        fields = line.split(None, most)
        if len(fields) < least:
            raise ValueError(f"{len(fields)} fields where at least {least} are needed (a truncated file?)")
        return fields


def _is_data(line: str) -> bool:
    stripped = line.lstrip()
    return bool(stripped) and not stripped.startswith("#")


def _id(text: str) -> int:
    value = int(text)
    if not 0 <= value < 1 << 63:
        raise ValueError(f"id {value} is out of range (0 to 2^63 - 1)")
    return value


def read_cameras(path: Path) -> list[CameraRecord]:
    """Read ``cameras.txt``.

    Raises
    ------
    DataError
        If a line cannot be parsed; names it.
    """
    cameras = []
    lines = _Lines(path)
    with lines.open() as rows:
        for line in filter(_is_data, rows):
            fields = lines.fields(line, 5)
            cameras.append(CameraRecord(_id(fields[0]), fields[1], int(fields[2]), int(fields[3]),
                                        tuple(map(float, fields[4:]))))
    return cameras


def read_images(path: Path) -> list[ImageRecord]:
    """Read poses and names of ``images.txt``; the line of observations after each (may be empty) is stepped over.

    Raises
    ------
    DataError
        If a line cannot be parsed; names it.
    """
    images = []
    lines = _Lines(path)
    with lines.open() as rows:
        for line in filter(_is_data, rows):
            fields = lines.fields(line, 10, 9)
            pose = tuple(map(float, fields[1:8]))
            images.append(ImageRecord(_id(fields[0]), pose[:4], pose[4:], _id(fields[8]), fields[9].strip()))
            if len(lines.fields(next(rows, ""), 0)) % 3:
                raise ValueError("observations of an image are not triples x y point-id (a truncated file?)")
    return images


def read_points(path: Path) -> PointRecords:
    """Read ``points3D.txt``.

    Raises
    ------
    DataError
        If a line cannot be parsed; names it.
    """
    ids, lengths, image_ids = array("q"), array("q"), array("q")
    positions, colors = array("d"), array("B")
    lines = _Lines(path)
    with lines.open() as rows:
        for line in filter(_is_data, rows):
            fields = lines.fields(line, 8)
            if len(fields) % 2:
                raise ValueError("a track is not made of pairs image-id index (a truncated file?)")
            ids.append(_id(fields[0]))
            positions.extend(map(float, fields[1:4]))
            colors.extend(map(int, fields[4:7]))
            image_ids.extend(map(int, fields[8::2]))
            lengths.append(len(fields) // 2 - 4)
    return PointRecords(np.array(ids, np.int64), np.array(positions, np.float64).reshape(-1, 3),
                        np.array(colors, np.uint8).reshape(-1, 3), np.array(lengths, np.int64),
                        np.array(image_ids, np.int64))
