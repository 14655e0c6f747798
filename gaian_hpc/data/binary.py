"""COLMAP's binary model files; no count is trusted before the bytes that it promises are known to be there."""

from __future__ import annotations

import mmap
import struct
from array import array
from pathlib import Path
from typing import NoReturn

import numpy as np

from ..errors import DataError
from .cameras import MODEL_NAMES, MODELS
from .records import CameraRecord, ImageRecord, PointRecords

COUNT = struct.Struct("<Q")
CAMERA = struct.Struct("<IiQQ")
IMAGE = struct.Struct("<I7dI")
OBSERVATION_BYTES = 24
POINT = np.dtype([("id", "<u8"), ("xyz", "<f8", 3), ("rgb", "u1", 3), ("error", "<f8"), ("length", "<u8")])
TRACK_ELEMENT = np.dtype([("image_id", "<u4"), ("point2d_idx", "<u4")])
MAX_NAME_BYTES = 4096
GATHER_ROWS = 1 << 16


class _Bytes:
    """A mapped file with a position; reading past the end is a DataError that says at which record."""

    def __init__(self, path: Path, least_record: int, what: str):
        self.path, self.what, self.record = path, what, 0
        try:
            with path.open("rb") as file:
                self.size = file.seek(0, 2)
                self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self.size else b""
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error.strerror}); check the path and its permissions") from error
        self.position = 0
        self.n = self.unpack(COUNT)[0]
        if self.n > (self.size - COUNT.size) // least_record:
            raise DataError(f"{path} is truncated or damaged: it announces {self.n} {what}s but has {self.size} bytes; "
                            "copy it again or export the model again")

    def need(self, n_bytes: int) -> int:
        """Advance by ``n_bytes`` and return the position before."""
        start = self.position
        if n_bytes > self.size - start:
            self.refuse(self.record)
        self.position = start + n_bytes
        return start

    def refuse(self, record: int) -> NoReturn:
        """Raise that ``record``, counted from 0, is not all there."""
        raise DataError(f"{self.path} is truncated or damaged: {self.what} number {record} does not end within its "
                        f"{self.size} bytes; copy it again or export the model again")

    def unpack(self, layout: struct.Struct) -> tuple:
        """Read one fixed structure."""
        return layout.unpack_from(self.map, self.need(layout.size))

    def name(self) -> str:
        """Read a zero-terminated name."""
        end = self.map.find(b"\0", self.position, self.position + MAX_NAME_BYTES)
        if end < 0:
            raise DataError(f"{self.path} is truncated or damaged: the name of {self.what} number {self.record} does "
                            "not end; copy it again or export the model again")
        raw = self.map[self.position:end]
        self.position = end + 1
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{self.path}: the name of {self.what} number {self.record} is not UTF-8 text; rename "
                            "the picture and export the model again") from error

    def finish(self) -> None:
        """Refuse bytes after the last record."""
        if self.position != self.size:
            raise DataError(f"{self.path} is damaged: {self.size - self.position} bytes follow the last of its "
                            f"{self.n} {self.what}s; copy it again or export the model again")


def read_cameras(path: Path) -> list[CameraRecord]:
    """Read ``cameras.bin``.

    Raises
    ------
    DataError
        If the file is truncated, has bytes left over, or holds a camera model number that is not supported.
    """
    data = _Bytes(path, CAMERA.size + 8 * 3, "camera")
    cameras = []
    for i in range(data.n):
        data.record = i
        camera_id, model_id, width, height = data.unpack(CAMERA)
        if model_id not in MODEL_NAMES:
            known = ", ".join(f"{i} {name}" for i, name in MODEL_NAMES.items())
            raise DataError(f"{path}: camera {camera_id} has model number {model_id} (supported: {known}); "
                            "undistort the scene with COLMAP's image_undistorter")
        model = MODEL_NAMES[model_id]
        params = data.unpack(struct.Struct(f"<{MODELS[model].n_params}d"))
        cameras.append(CameraRecord(camera_id, model, width, height, params))
    data.finish()
    return cameras


def read_images(path: Path) -> list[ImageRecord]:
    """Read poses and names of ``images.bin``; observations are stepped over, tracks name them as well.

    Raises
    ------
    DataError
        If the file is truncated or has bytes left over.
    """
    data = _Bytes(path, IMAGE.size + 1 + COUNT.size, "image")
    images = []
    for i in range(data.n):
        data.record = i
        image_id, *pose, camera_id = data.unpack(IMAGE)
        name = data.name()
        data.need(OBSERVATION_BYTES * data.unpack(COUNT)[0])
        images.append(ImageRecord(image_id, tuple(pose[:4]), tuple(pose[4:]), camera_id, name))
    data.finish()
    return images


def read_points(path: Path) -> PointRecords:
    """Read ``points3D.bin``.

    Raises
    ------
    DataError
        If the file is truncated or has bytes left over.
    """
    data = _Bytes(path, POINT.itemsize, "point")
    starts = _scan_points(data)
    data.finish()
    raw = np.frombuffer(data.map, np.uint8)
    heads = _gather(raw, starts, POINT)
    lengths = heads["length"].astype(np.int64)
    first = starts + POINT.itemsize - TRACK_ELEMENT.itemsize * (np.cumsum(lengths) - lengths)
    elements = np.repeat(first, lengths) + TRACK_ELEMENT.itemsize * np.arange(lengths.sum(), dtype=np.int64)
    image_ids = _gather(raw, elements, np.dtype("<u4")).astype(np.int64)
    return PointRecords(heads["id"].astype(np.int64), np.ascontiguousarray(heads["xyz"]),
                        np.ascontiguousarray(heads["rgb"]), lengths, image_ids)


def _scan_points(data: _Bytes) -> np.ndarray:
    """Return where each point's record begins, (N,) int64; tracks make records of unequal length."""
    starts = array("q")
    position, size, buffer, unpack = data.position, data.size, data.map, COUNT.unpack_from
    head, element, length_at = POINT.itemsize, TRACK_ELEMENT.itemsize, POINT.fields["length"][1]
    for i in range(data.n):
        if head > size - position:
            data.refuse(i)
        starts.append(position)
        length = unpack(buffer, position + length_at)[0]
        position += head + element * length
        if position > size:
            data.refuse(i)
    data.position = position
    return np.frombuffer(starts, np.int64) if starts else np.zeros(0, np.int64)


def _gather(raw: np.ndarray, starts: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return the records of ``dtype`` at byte offsets ``starts``, in blocks that bound the index arrays."""
    out = np.empty(len(starts), dtype)
    columns = np.arange(dtype.itemsize)
    for i in range(0, len(starts), GATHER_ROWS):
        block = raw[starts[i:i + GATHER_ROWS, None] + columns]
        out[i:i + GATHER_ROWS] = block.view(dtype)[:, 0]
    return out
