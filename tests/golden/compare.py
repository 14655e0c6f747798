"""Errors and tolerances: how near a float32 implementation must come to the golden arrays.

With x the implementation's array and ref the golden one, three numbers decide:

* ``error``: max|x − ref| / max|ref|, outside the pixels marked fragile. Gradients of quaternions are multiplied by the
  quaternion's norm first (they grow with its inverse, so that one tiny quaternion would hide all others).
* ``share``: the largest |x − ref| of a row (primitive; a picture or a small array is one row) in units of that row's
  tolerance, which is ``MULTIPLE`` times what float32 costs there, but at least a floor times max|ref| and the file's
  ``f32relerr__*`` times max|ref|. The cost is how far this project's oracle in float32, on the file's inputs and on
  copies moved in their last bit, strays from itself in float64. So needles and primitives at the near plane, where
  float32 has few digits to give, get the room they need and do not loosen the check of the others.
* ``typical``: the median over rows of max|x − ref| / max|ref| of the row itself. It notices what is wrong everywhere
  but small beside the one largest entry.

A right implementation differs from another right one by rounding and the order of sums, a few times the cost;
a wrong term or sign is orders of magnitude above it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
NOISE = 1e-5  # rows this small beside the largest (the rotation of a sphere …) have no typical error

PICTURES = ("image", "alpha", "depth_accum", "n_contrib", "ssim_map", "g_image_loss", "g_image_ssim")


@dataclass(frozen=True)
class Comparison:
    """The verdict on one array.

    ``tolerance`` is relative to max|ref| and that of the row that came nearest to it, or furthest beyond;
    ``typical`` is NaN where it was not measured.
    """

    name: str
    error: float
    tolerance: float
    share: float
    typical: float = np.nan
    typical_tolerance: float = np.inf
    note: str = ""

    @property
    def ok(self) -> bool:
        """Whether the array is near enough; NaN is not."""
        return bool(self.share <= 1) and not self.typical > self.typical_tolerance


def uniform(name: str, error: float, tolerance: float, note: str = "") -> Comparison:
    """Return the verdict on an array with one tolerance for all of it; a tolerance of zero asks for equality."""
    share = error / tolerance if tolerance else (0.0 if error == 0 else np.inf)
    return Comparison(name, error, tolerance, share, note=note)


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


@dataclass(frozen=True)
class Costs:
    """The oracle's arrays in float64, and in float32 for several copies of the inputs; empty if there is no oracle."""

    double: Mapping[str, np.ndarray]
    singles: Sequence[Mapping[str, np.ndarray]]


NO_COSTS = Costs({}, ())


def _row_errors(case: Case, name: str, x: np.ndarray, ref: np.ndarray,
                rows: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest error and the largest reference value of each row, (R,); pictures and vectors are one row."""
    got, ref = _weigh(case, name, x), _weigh(case, name, ref)
    if rows is not None:
        got, ref = got[rows], ref[rows]
    one = bare(name) in PICTURES or not ref.ndim or len(ref) < MIN_ROWS_TYPICAL
    shape = (1, -1) if one else (len(ref), -1)
    difference = np.abs(got - ref).reshape(shape)
    return difference.max(axis=1, initial=0), np.abs(ref).reshape(shape).max(axis=1, initial=0)


def _typical(row_errors: np.ndarray, row_max: np.ndarray) -> float:
    used = row_max > NOISE * row_max.max(initial=0)
    return float(np.median(row_errors[used] / row_max[used])) if used.sum() >= MIN_ROWS_TYPICAL else np.nan


def compare(case: Case, name: str, x: np.ndarray, costs: Costs, exact: bool,
            rows: np.ndarray | None = None) -> Comparison:
    """Compare one array with the golden one of the same name.

    Parameters
    ----------
    x : array
        The implementation's result.
    costs : Costs
    exact : bool
        Hold ``x`` to float64 instead of float32.
    rows : (N,) bool, optional
        Compare these rows only.
    """
    ref = case[name]
    if np.shape(x) != ref.shape:
        return uniform(name, np.nan, 0.0, f"shape {np.shape(x)} where {ref.shape} is expected")
    row_errors, row_max = _row_errors(case, name, x, ref, rows)
    scale = float(row_max.max(initial=0)) or 1.0  # an array that is zero throughout is compared absolutely
    error = float(row_errors.max(initial=0)) / scale
    if ref.dtype.kind in "iu":
        return uniform(name, error, 0.0)
    if exact:
        return uniform(name, error, STORED_FLOAT32 if ref.dtype == np.float32 else EXACT)
    strays = [_row_errors(case, name, single[name], costs.double[name], rows)[0] for single in costs.singles
              if name in single]
    cost = np.max([*strays, np.zeros_like(row_max)], axis=0)
    floor = max(FLOOR_GRADIENT if is_gradient(name) else FLOOR_FORWARD, case.scalar(f"f32relerr__{name}", 0.0))
    tolerances = np.maximum(MULTIPLE * cost, floor * scale)
    shares = row_errors / tolerances
    worst = int(np.argmax(shares)) if len(shares) else None
    if worst is None:
        return uniform(name, 0.0, floor)
    typical_tolerance = np.nanmax([FLOOR_TYPICAL, MULTIPLE * _typical(cost, row_max)])
    return Comparison(name, error, float(tolerances[worst]) / scale, float(shares[worst]),
                      _typical(row_errors, row_max), float(typical_tolerance))
