"""Errors and tolerances: how near a float32 implementation must come to the golden arrays.

Three numbers decide on an array, x being the implementation's and ref the golden one:

* ``error``: max|x − ref| / max|ref|, outside the pixels marked fragile. Gradients of quaternions are multiplied by the
  quaternion's norm first (they grow with its inverse, so that one tiny quaternion would hide all others).
* ``typical``: the median over non-zero rows (primitives) of max|x − ref| / max|ref| of the row. It notices what is
  wrong everywhere but small beside the one largest entry.
* ``tolerance``: ``MULTIPLE`` times what float32 itself costs on this file, at least a floor. That cost is the larger of the
  file's own ``f32relerr__*`` and the error of this project's float64 oracle when run in float32, in the same measure.
  A right implementation differs from another right one by rounding and the order of sums, a few times
  that cost; a wrong term or sign is orders of magnitude above it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .cases import Case

MULTIPLE = 16.0
FLOOR_FORWARD = 5e-6
FLOOR_GRADIENT = 2e-5
FLOOR_TYPICAL = 1e-4
EXACT = 1e-8  # of float64 against float64
STORED_FLOAT32 = 2e-7  # of float64 against an array that the file holds in float32
MIN_ROWS_TYPICAL = 8

PICTURES = ("image", "alpha", "depth_accum", "n_contrib")


@dataclass(frozen=True)
class Comparison:
    """The verdict on one array; ``typical`` is NaN where it was not measured."""

    name: str
    error: float
    tolerance: float
    typical: float = np.nan
    typical_tolerance: float = np.inf
    note: str = ""

    @property
    def ok(self) -> bool:
        """Whether the array is near enough; NaN is not."""
        return bool(self.error <= self.tolerance) and not self.typical > self.typical_tolerance


def bare(name: str) -> str:
    """Return the name without the mark of the antialiased set."""
    return name.removeprefix("aa_")


def is_gradient(name: str) -> bool:
    """Tell whether an array is a derivative."""
    return bare(name).startswith(("g_", "gdepth_", "gcov_", "absgrad_"))


def _weigh(case: Case, name: str, x: np.ndarray) -> np.ndarray:
    """Return ``x`` where and as it is compared, float64."""
    x = np.asarray(x, np.float64)
    if bare(name) in PICTURES and "fragile" in case:
        return x[~case["fragile"]]
    if is_gradient(name) and name.endswith("_quats"):
        return x * np.linalg.norm(case.double("quats"), axis=1, keepdims=True)
    return x


def errors(case: Case, name: str, x: np.ndarray, rows: np.ndarray | None = None) -> tuple[float, float]:
    """Return ``error`` and ``typical`` of an array; ``rows`` restricts the comparison to some rows.

    An array that is zero throughout in the file is compared absolutely.
    """
    got, ref = _weigh(case, name, x), _weigh(case, name, case[name])
    if rows is not None:
        got, ref = got[rows], ref[rows]
    if ref.size == 0:
        return 0.0, np.nan
    difference = np.abs(got - ref)
    error = float(difference.max() / (np.abs(ref).max() or 1.0))
    if ref.ndim == 0 or bare(name) in PICTURES:
        return error, np.nan
    row_max = np.abs(ref).reshape(len(ref), -1).max(axis=1)
    used = row_max > 0
    if used.sum() < MIN_ROWS_TYPICAL:
        return error, np.nan
    return error, float(np.median(difference.reshape(len(ref), -1).max(axis=1)[used] / row_max[used]))


def f32_cost(case: Case, name: str) -> float:
    """Return the file's own estimate of the float32 error of ``name``, zero where it has none."""
    names = [name]
    if is_gradient(name) and name.endswith("_quats"):
        # The file's figure is relative to the largest raw entry, here the tiny quaternions no longer set the scale.
        names += [name.removesuffix("quats") + other for other in ("means", "scales")]
    return max(case.scalar(f"f32relerr__{n}", 0.0) for n in names)


def compare(case: Case, name: str, x: np.ndarray, single: Mapping[str, np.ndarray], exact: bool,
            rows: np.ndarray | None = None) -> Comparison:
    """Compare one array with the golden one of the same name.

    Parameters
    ----------
    x : array
        The implementation's result.
    single : mapping
        The oracle's float32 results, where there are any.
    exact : bool
        Hold ``x`` to float64 instead of float32.
    rows : (N,) bool, optional
        Compare these rows only.
    """
    ref = case[name]
    if np.shape(x) != ref.shape:
        return Comparison(name, np.nan, 0.0, note=f"shape {np.shape(x)} where {ref.shape} is expected")
    error, typical = errors(case, name, x, rows)
    if ref.dtype.kind in "iu":
        return Comparison(name, error, 0.0)
    if exact:
        return Comparison(name, error, STORED_FLOAT32 if ref.dtype == np.float32 else EXACT)
    cost, typical_cost = errors(case, name, single[name], rows) if name in single else (0.0, np.nan)
    floor = FLOOR_GRADIENT if is_gradient(name) else FLOOR_FORWARD
    tolerance = max(MULTIPLE * max(cost, f32_cost(case, name)), floor)
    typical_tolerance = max(FLOOR_TYPICAL, MULTIPLE * (0.0 if np.isnan(typical_cost) else typical_cost))
    return Comparison(name, error, tolerance, typical, typical_tolerance)
