"""Profile files: who reads what, as NumPy archives that capture generators write (no points, no pictures)."""

from __future__ import annotations

import math
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import DataError

WHOLE_KEYS = ("size", "centre", "indptr", "indices", "counts")
PATCH_KEYS = ("patch_indptr", "patch_indices", "patch_counts")


@dataclass(frozen=True, slots=True)
class AccessRows:
    """Which groups of points each row, a view or a patch, reads (compressed sparse rows).

    Attributes
    ----------
    indptr : (P + 1,) int64
    groups : (E,) int32
    counts : (E,) int64
        Points of the group that are read.
    """

    indptr: np.ndarray
    groups: np.ndarray
    counts: np.ndarray


@dataclass(frozen=True, slots=True)
class ProfileFile:
    """Contents of a profile file.

    Attributes
    ----------
    sizes : (G,) int64
        Points of each group; groups follow a space-filling curve.
    centers : (G, 3) float32, world units
    views : AccessRows
        A row a view.
    patches : AccessRows or None
        ``side`` × ``side`` rows a view, its patches row by row.
    side : int
        1 without patches.
    """

    sizes: np.ndarray
    centers: np.ndarray
    views: AccessRows
    patches: AccessRows | None
    side: int


def read_profile(path: str | Path) -> ProfileFile:
    """Read a profile: an ``.npz`` with ``size (G,)``, ``centre (G, 3)`` and rows of views, perhaps of patches.

    Rows are ``indptr``, ``indices`` and ``counts``, those of Q × Q patches a view ``patch_indptr`` and so on.

    Raises
    ------
    DataError
        If the file is missing or no archive, lacks an array, or its arrays do not fit together.
    """
    path = Path(path)
    arrays = _read_arrays(path)
    if missing := [key for key in WHOLE_KEYS if key not in arrays]:
        raise DataError(f"{path} is not a profile: it has no array {', '.join(missing)}; allowed are files with "
                        f"{', '.join(WHOLE_KEYS)} and perhaps {', '.join(PATCH_KEYS)}")
    sizes = arrays["size"]
    if sizes.ndim != 1 or sizes.dtype.kind not in "iu" or len(sizes) == 0 or sizes.min() < 0 or sizes.sum() == 0:
        raise DataError(f"{path}: array size must be one whole number of points a group, not all zero; write the "
                        "profile again")
    if arrays["centre"].shape != (len(sizes), 3):
        raise DataError(f"{path}: array centre has shape {arrays['centre'].shape}; it must be ({len(sizes)}, 3), a row a "
                        "group of size; write the profile again")
    views = _rows(path, arrays, "", len(sizes))
    centers = arrays["centre"].astype(np.float32)
    if not any(key in arrays for key in PATCH_KEYS):
        return ProfileFile(sizes.astype(np.int64), centers, views, None, 1)
    patches = _rows(path, arrays, "patch_", len(sizes))
    n_views, n_patches = len(views.indptr) - 1, len(patches.indptr) - 1
    side = math.isqrt(n_patches // n_views)
    if side * side * n_views != n_patches or side == 0:
        raise DataError(f"{path}: patch_indptr has {n_patches} rows; it must have Q x Q for each of the {n_views} views of "
                        "indptr; write the profile again")
    return ProfileFile(sizes.astype(np.int64), centers, views, patches, side)


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise DataError(f"{path} does not exist; give a profile (.npz) or the folder of a scene")
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {key: archive[key] for key in (*WHOLE_KEYS, *PATCH_KEYS) if key in archive}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, AttributeError, TypeError) as error:
        raise DataError(f"{path} is not a whole NumPy archive (.npz) of plain arrays: {error}; write the profile "
                        "again") from None


def _rows(path: Path, arrays: dict[str, np.ndarray], prefix: str, n_groups: int) -> AccessRows:
    """Return the rows of three arrays, checked."""
    names = [prefix + key for key in ("indptr", "indices", "counts")]
    if missing := [name for name in names if name not in arrays]:
        raise DataError(f"{path} has no array {', '.join(missing)} beside other {prefix}* arrays; write the profile again")
    indptr, groups, counts = (arrays[name] for name in names)
    for name in names:
        if arrays[name].ndim != 1 or arrays[name].dtype.kind not in "iu":
            raise DataError(f"{path}: array {name} has type {arrays[name].dtype} and {arrays[name].ndim} dimensions; it "
                            "must be one row of whole numbers; write the profile again")
    if len(indptr) < 2 or indptr[0] != 0 or indptr[-1] != len(groups) or (np.diff(indptr.astype(np.int64)) < 0).any():
        raise DataError(f"{path}: array {names[0]} must have a view, rise from 0 and end at the length of {names[1]}, "
                        f"{len(groups)}; write the profile again")
    if len(counts) != len(groups):
        raise DataError(f"{path}: arrays {names[1]} and {names[2]} have {len(groups)} and {len(counts)} entries; they must "
                        "have as many; write the profile again")
    if len(groups) and (groups.min() < 0 or groups.max() >= n_groups or counts.min() < 0):
        raise DataError(f"{path}: {names[1]} must be 0 to {n_groups - 1} and {names[2]} not negative; write the profile "
                        "again")
    return AccessRows(indptr.astype(np.int64), groups.astype(np.int32), counts.astype(np.int64))
