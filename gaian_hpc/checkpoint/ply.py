"""PLY files: Gaussians in the order of the 3DGS reference code, and plain point clouds.

Nothing is rotated or scaled: files are written in the frame of the input scene and read as they are.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from plyfile import PlyData, PlyElement, PlyParseError

from ..errors import DataError, FormatError, GaianError

log = logging.getLogger(__name__)

MAX_HEADER_BYTES = 1 << 16
_SIZES = {"char": 1, "uchar": 1, "int8": 1, "uint8": 1, "short": 2, "ushort": 2, "int16": 2, "uint16": 2, "int": 4,
          "uint": 4, "int32": 4, "uint32": 4, "float": 4, "float32": 4, "double": 8, "float64": 8}
_COLOR_SCALES = {"u1": 255.0, "u2": 65535.0}
_GAUSSIAN_MARKS = ("f_dc_0", "opacity", "scale_0", "rot_0")
_GAUSSIAN_NAMES = frozenset(("means", "quats", "scales", "opacities", "sh"))
_CONVEX_NAMES = frozenset(("points", "delta", "sigma", "opacities", "sh"))


@dataclass(frozen=True, slots=True)
class GaussianStart:
    """Gaussians to start from.

    Attributes
    ----------
    raw : dict of str to (N, ...) float32
        Stored values by attribute name: ``means`` (N, 3), ``quats`` (N, 4) wxyz, ``scales`` (N, 3) or, of
        flat Gaussians, (N, 2) logarithms,
        ``opacities`` (N,) logits, ``sh`` (N, K, 3) with K = 1, 4, 9 or 16.
    """

    raw: dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class PointStart:
    """Plain points to start from: ``positions`` (N, 3) float32 in world units, ``colors`` (N, 3) float32 in [0, 1]."""

    positions: np.ndarray
    colors: np.ndarray


def export_points(path: Path | str, raw: Mapping[str, np.ndarray]) -> None:
    """Write points to a PLY file in the layout that viewers know for their attributes.

    Parameters
    ----------
    path : path
    raw : mapping of str to (N, *shape) float32
        Stored values by ``Attribute.name``.

    Raises
    ------
    GaianError
        If no layout is known for these attributes, or the file cannot be written.
    """
    for names, write in ((_GAUSSIAN_NAMES, write_gaussian_ply), (_CONVEX_NAMES, write_convex_ply)):
        if set(raw) == names:
            write(path, raw)
            return
    known = " or ".join(", ".join(sorted(names)) for names in (_GAUSSIAN_NAMES, _CONVEX_NAMES))
    raise GaianError(f"{path}: there is no PLY layout for points of {', '.join(sorted(raw))} (known: {known}); use the "
                     "checkpoint itself")


def write_gaussian_ply(path: Path | str, raw: Mapping[str, np.ndarray]) -> None:
    """Write Gaussians in the attribute order of 3DGS, binary little-endian float32, bit for bit.

    Normals are zero, and ``f_rest`` is channel-major: all coefficients of red, then green, then blue.

    Parameters
    ----------
    path : path
        Written beside and renamed when complete.
    raw : mapping of str to (N, ...) float32
        Stored values as in :class:`GaussianStart`; ``scales`` may have two columns (flat Gaussians).

    Raises
    ------
    GaianError
        If the file cannot be written.
    """
    _write_columns(path, raw["means"], raw, [(_numbered("scale", raw["scales"].shape[1]), raw["scales"]),
                                             (_numbered("rot", 4), raw["quats"])])


def write_convex_ply(path: Path | str, raw: Mapping[str, np.ndarray]) -> None:
    """Write convexes, binary little-endian float32: columns as of 3DGS, then what makes a convex.

    ``x y z`` is the mean of a convex's points, rounded to float32; ``nx ny nz`` are zero; colour and opacity are as in
    :func:`write_gaussian_ply`. Then come ``log_delta`` (smoothness), ``log_sigma`` (sharpness) and the points,
    ``px_0 py_0 pz_0 px_1 …``, in world units.

    Parameters
    ----------
    path : path
        Written beside and renamed when complete.
    raw : mapping of str to (N, ...) float32
        Stored values: ``points`` (N, K, 3), ``delta`` and ``sigma`` (N,) logarithms, ``opacities`` (N,) logits, ``sh``.

    Raises
    ------
    GaianError
        If the file cannot be written.
    """
    n, k, _ = raw["points"].shape
    _write_columns(path, raw["points"].mean(axis=1), raw, [
        (("log_delta",), raw["delta"].reshape(n, 1)), (("log_sigma",), raw["sigma"].reshape(n, 1)),
        (tuple(f"p{axis}_{i}" for i in range(k) for axis in "xyz"), raw["points"].reshape(n, 3 * k))])


def _write_columns(path: Path | str, positions: np.ndarray, raw: Mapping[str, np.ndarray],
                   shape: list[tuple[tuple[str, ...], np.ndarray]]) -> None:
    """Write position, colour and opacity in the order of 3DGS, and then the columns of ``shape``."""
    n, n_coefficients, _ = raw["sh"].shape
    rest = np.transpose(raw["sh"][:, 1:], (0, 2, 1)).reshape(n, 3 * (n_coefficients - 1))
    groups = [(("x", "y", "z"), positions), (("nx", "ny", "nz"), np.zeros((n, 3), np.float32)),
              (_numbered("f_dc", 3), raw["sh"][:, 0]), (_numbered("f_rest", rest.shape[1]), rest),
              (("opacity",), raw["opacities"].reshape(n, 1)), *shape]
    vertex = np.empty(n, [(name, "<f4") for names, _ in groups for name in names])
    for names, columns in groups:
        for i, name in enumerate(names):
            vertex[name] = columns[:, i]
    _write(Path(path), PlyData([PlyElement.describe(vertex, "vertex")], byte_order="<"))


def read_gaussian_ply(path: Path | str) -> dict[str, np.ndarray]:
    """Return the Gaussians of a PLY file as stored values, in the form of :class:`GaussianStart`.

    Columns are found by name, so that files with or without normals and of any degree from 0 to 3 are read. Gaussians
    with a value that is not finite, or with a zero quaternion, are dropped with a warning: no optimizer mends them.

    Raises
    ------
    DataError
        If the file does not exist or holds no usable Gaussian.
    FormatError
        If it is not a PLY file of Gaussians, or is truncated.
    """
    path = Path(path)
    vertex = _read_vertices(path)
    present = _names(vertex)
    n_rest = sum(bool(re.fullmatch(r"f_rest_\d+", name)) for name in present)
    if n_rest not in (0, 9, 24, 45):
        raise FormatError(f"{path}: has {n_rest} properties f_rest_* (0, 9, 24 or 45 make SH degree 0 to 3); export it "
                          f"again")
    n_scales = 2 if "scale_2" not in present and "scale_1" in present else 3
    sh = np.empty((len(vertex), 1 + n_rest // 3, 3), np.float32)
    sh[:, 0] = _columns(path, vertex, _numbered("f_dc", 3))
    rest = _columns(path, vertex, _numbered("f_rest", n_rest)).reshape(len(vertex), 3, n_rest // 3)
    sh[:, 1:] = rest.transpose(0, 2, 1)
    raw = {"means": _columns(path, vertex, ("x", "y", "z")), "quats": _columns(path, vertex, _numbered("rot", 4)),
           "scales": _columns(path, vertex, _numbered("scale", n_scales)),
           "opacities": _columns(path, vertex, ("opacity",))[:, 0], "sh": sh}
    usable = np.any(raw["quats"] != 0, axis=1)
    for values in raw.values():
        usable &= np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
    return _drop_unusable(path, raw, usable)


def read_point_ply(path: Path | str) -> tuple[np.ndarray, np.ndarray]:
    """Return positions and colours of a plain point cloud; grey where the file has no colours.

    Points whose position or colour is not finite are dropped with a warning.

    Returns
    -------
    positions : (N, 3) float32, world units
    colors : (N, 3) float32 in [0, 1]

    Raises
    ------
    DataError
        If the file does not exist or holds no usable point.
    FormatError
        If it is not a PLY file of points, or is truncated.
    """
    path = Path(path)
    vertex = _read_vertices(path)
    present = _names(vertex)
    colors = np.full((len(vertex), 3), 0.5, np.float32)
    for prefix in ("", "diffuse_"):
        names = tuple(prefix + channel for channel in ("red", "green", "blue"))
        if set(names) <= set(present):
            scale = _COLOR_SCALES.get(vertex[names[0]].dtype.str[1:], 1.0)
            colors = np.clip(_columns(path, vertex, names) / np.float32(scale), 0.0, 1.0)
            break
    raw = {"positions": _columns(path, vertex, ("x", "y", "z")), "colors": colors}
    usable = np.isfinite(raw["positions"]).all(axis=1) & np.isfinite(raw["colors"]).all(axis=1)
    raw = _drop_unusable(path, raw, usable)
    return raw["positions"], raw["colors"]


def load_start(path: Path | str) -> GaussianStart | PointStart:
    """Return the start points of a PLY file: Gaussians if it has all their marks, else plain points.

    Raises
    ------
    DataError, FormatError
        As :func:`read_gaussian_ply` and :func:`read_point_ply`.
    """
    present = {name for _, _, names, _ in _read_header(Path(path))[1] for name in names}
    if "packed_position" in present:
        raise FormatError(f"{path}: a compressed PLY (packed_position); decompress it to a standard 3DGS PLY first")
    if present.issuperset(_GAUSSIAN_MARKS):
        return GaussianStart(read_gaussian_ply(path))
    return PointStart(*read_point_ply(path))


def _numbered(stem: str, n: int) -> tuple[str, ...]:
    return tuple(f"{stem}_{i}" for i in range(n))


def _names(vertex: np.ndarray) -> tuple[str, ...]:
    return vertex.dtype.names or ()


def _columns(path: Path, vertex: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    """Return the named properties as the columns of a (N, len(names)) float32 array."""
    missing = [name for name in names if name not in _names(vertex)]
    if missing:
        raise FormatError(f"{path}: its vertices lack the property {missing[0]}; export the points again with it")
    out = np.empty((len(vertex), len(names)), np.float32)
    for i, name in enumerate(names):
        with np.errstate(over="ignore"):  # a double beyond float32 becomes infinite and its point is dropped
            out[:, i] = vertex[name]
    return out


def _drop_unusable(path: Path, raw: dict[str, np.ndarray], usable: np.ndarray) -> dict[str, np.ndarray]:
    n_bad = len(usable) - int(usable.sum())
    if n_bad == len(usable):
        raise DataError(f"{path}: holds no usable point ({n_bad} with values that are not finite); export it again")
    if n_bad == 0:
        return raw
    log.warning("%s: dropped %d of %d points with values that are not finite or a zero quaternion", path, n_bad,
                len(usable))
    return {name: values[usable] for name, values in raw.items()}


def _read_vertices(path: Path) -> np.ndarray:
    """Return the vertices of a PLY file as a structured array, mapped from the file where it is binary."""
    _check_sizes(path)
    try:
        return PlyData.read(str(path))["vertex"].data
    except KeyError as error:
        raise FormatError(f"{path}: a PLY file without vertices; name one with points") from error
    except (PlyParseError, OSError, ValueError, TypeError, OverflowError, MemoryError) as error:
        raise FormatError(f"{path}: the PLY file cannot be read ({error}); it is truncated or damaged, export it "
                          f"again") from error


def _check_sizes(path: Path) -> None:
    """Raise unless the file is long enough for the rows that its header promises, before anything is allocated."""
    encoding, elements, n_header = _read_header(path)
    needed = n_header
    for name, count, names, row_bytes in elements:
        if row_bytes is None and count:
            raise FormatError(f"{path}: element {name} has lists, as meshes have; export the points only")
        needed += count * (len(names) * 2 - 1 if encoding == "ascii" else row_bytes or 0)
    if needed > path.stat().st_size:
        raise FormatError(f"{path}: the header promises at least {needed} bytes, the file has {path.stat().st_size}; "
                          f"it is truncated, copy or export it again")


def _read_header(path: Path) -> tuple[str, list[tuple[str, int, list[str], int | None]], int]:
    """Return the encoding, each element's (name, count, properties, bytes per row or None), and the header's length."""
    if not path.is_file():
        raise DataError(f"{path}: there is no such file; name a PLY file of points")
    with open(path, "rb") as file:
        head = file.read(MAX_HEADER_BYTES)
    end = re.search(rb"^end_header[^\n\r]*\r?\n?", head, re.MULTILINE)
    if not re.match(rb"ply\s", head) or end is None:
        raise FormatError(f"{path}: not a PLY file (no header from 'ply' to 'end_header'); name a PLY file of points")
    encoding = ""
    elements: list[tuple[str, int, list[str], int | None]] = []
    for line in head[:end.start()].decode("ascii", "replace").splitlines():
        match line.split():
            case ["format", encoding, *_]:
                pass
            case ["element", name, count] if count.isascii() and count.isdigit():
                elements.append((name, int(count), [], 0))
            case ["property", "list", *_, name] if elements:
                element, n, names, _ = elements[-1]
                elements[-1] = (element, n, [*names, name], None)
            case ["property", kind, name] if elements and kind in _SIZES:
                element, n, names, size = elements[-1]
                elements[-1] = (element, n, [*names, name], None if size is None else size + _SIZES[kind])
            case ["element" | "property", *_]:
                raise FormatError(f"{path}: the PLY header has the line {line[:60]!r}, which is not valid; export it "
                                  f"again")
    return encoding, elements, end.end()


def _write(path: Path, data: PlyData) -> None:
    """Write ``data`` beside ``path`` and rename it when it is on the disk."""
    aside = path.with_name(f".{path.name}.part")
    try:
        try:
            with open(aside, "wb") as file:
                data.write(file)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        raise GaianError(f"{path}: cannot be written ({error.strerror or error}); choose another place or free "
                         f"space") from error
