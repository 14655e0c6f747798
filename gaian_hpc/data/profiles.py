"""Access profiles from files: which cells of points the pictures of a survey, or their patches, read."""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path

import numpy as np

from ..errors import DataError
from ..placement.profile import Profile

_CELLS = ("size", "centre")
_WHOLE = ("indptr", "indices", "counts")
_PATCHES = ("patch_indptr", "patch_indices", "patch_counts")


def read_profile(path: Path | str) -> tuple[Profile, Profile | None]:
    """Return the profile over whole views of an ``.npz`` file, and the one over its patches if it has that.

    The file holds ``size`` (G,) and ``centre`` (G, 3) of cells in the order of a space-filling curve, and ``indptr``,
    ``indices``, ``counts``: compressed sparse rows, view → (cell, points read). ``patch_indptr`` … are the same over
    the patches of a square grid per view, view after view and row after row.

    Raises
    ------
    DataError
        If the file cannot be read, lacks an array, or its arrays contradict each other.
    """
    path = Path(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in (*_CELLS, *_WHOLE, *_PATCHES) if name in file}
    # A lone .npy array is no context manager; what is cut off or overwritten shows in any of the others.
    except (OSError, EOFError, ValueError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path}: cannot be read as a profile (.npz): {error}") from None
    missing = [name for name in (*_CELLS, *_WHOLE) if name not in arrays]
    if missing:
        raise DataError(f"{path}: not a profile, the array {missing[0]!r} is missing; write one with size, centre, "
                        "indptr, indices and counts")
    for name, array in arrays.items():
        if array.dtype.kind not in ("fiu" if name == "centre" else "iu") or array.ndim != 1 + (name == "centre"):
            raise DataError(f"{path}: array {name} holds {array.dtype} in {array.ndim} dimensions; it must be a row of "
                            "whole numbers, and centre (G, 3) numbers; write the profile again")
    if arrays["size"].min(initial=0) < 0 or arrays["size"].sum() == 0:
        raise DataError(f"{path}: array size must hold the points of each cell, none negative and not all zero; write "
                        "the profile again")
    n_views = len(arrays["indptr"]) - 1
    whole = _profile(path, arrays, _WHOLE, 1)
    if not set(_PATCHES) <= arrays.keys():
        return whole, None
    n_patches = len(arrays["patch_indptr"]) - 1
    side = math.isqrt(n_patches // max(n_views, 1))
    if side * side * n_views != n_patches or n_patches == 0:
        raise DataError(f"{path}: {n_patches} patches are no square grid in each of {n_views} views; write the profile "
                        "again")
    return whole, _profile(path, arrays, _PATCHES, side)


def _profile(path: Path, arrays: dict[str, np.ndarray], names: tuple[str, ...], side: int) -> Profile:
    indptr, cells, counts = (np.asarray(arrays[name]).astype(np.int64) for name in names)
    sizes = np.asarray(arrays["size"], np.int64)
    sound = (indptr.ndim == 1 and len(indptr) > 1 and indptr[0] == 0 and (np.diff(indptr) >= 0).all()
             and indptr[-1] == len(cells) == len(counts) and arrays["centre"].shape == (len(sizes), 3))
    if not sound or (len(cells) and not (0 <= cells.min() and cells.max() < len(sizes) and counts.min() >= 0)):
        raise DataError(f"{path}: {names[0]}, {names[1]} and {names[2]} contradict each other or the {len(sizes)} "
                        "cells; write the profile again")
    n_patches = len(indptr) - 1
    return Profile(sizes, np.asarray(arrays["centre"], np.float32), indptr.astype(np.int64), cells.astype(np.int32),
                   counts.astype(np.int64), (np.arange(n_patches) // side**2).astype(np.int32),
                   np.zeros(n_patches, np.int64))
