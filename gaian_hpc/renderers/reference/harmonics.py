"""Real spherical harmonics up to degree 3 in the basis, order and signs of 3DGS (Kerbl et al. 2023)."""

from __future__ import annotations

import numpy as np

# Normalisation of the real harmonics, by degree.
_C0 = np.sqrt(1 / (4 * np.pi))
_C1 = np.sqrt(3 / (4 * np.pi))
_C2 = np.sqrt(np.array([15 / 4, 5 / 16, 15 / 16]) / np.pi)  # xy-like, m = 0, x² - y²
_C3 = np.sqrt(np.array([35 / 32, 105 / 4, 21 / 32, 7 / 16, 105 / 16]) / np.pi)  # |m| = 3, xyz, |m| = 1, m = 0, m = 2


def sh_basis(dirs: np.ndarray, degree: int) -> np.ndarray:
    """Return the (degree + 1)² basis functions at unit vectors.

    Parameters
    ----------
    dirs : (N, 3)
        Unit vectors.
    degree : int
        0 to 3.

    Returns
    -------
    basis : (N, (degree + 1)²), order l = 0 … degree, m = -l … l
    """
    x, y, z = dirs.T
    c2, c3 = _C2.astype(dirs.dtype), _C3.astype(dirs.dtype)
    bands = [
        [np.full_like(x, _C0)],
        [-_C1 * y, _C1 * z, -_C1 * x],
        [c2[0] * x * y, -c2[0] * y * z, c2[1] * (2 * z**2 - x**2 - y**2), -c2[0] * x * z, c2[2] * (x**2 - y**2)],
        [-c3[0] * y * (3 * x**2 - y**2), c3[1] * x * y * z, -c3[2] * y * (4 * z**2 - x**2 - y**2),
         c3[3] * z * (2 * z**2 - 3 * x**2 - 3 * y**2), -c3[2] * x * (4 * z**2 - x**2 - y**2),
         c3[4] * z * (x**2 - y**2), -c3[0] * x * (x**2 - 3 * y**2)],
    ]
    return np.stack([f for band in bands[: degree + 1] for f in band], axis=1).astype(dirs.dtype)


def sh_basis_jacobian(dirs: np.ndarray, degree: int) -> np.ndarray:
    """Return the derivatives of :func:`sh_basis` by x, y and z taken as free, (N, (degree + 1)², 3)."""
    x, y, z = dirs.T
    c2, c3 = _C2.astype(dirs.dtype), _C3.astype(dirs.dtype)
    o = np.zeros_like(x)
    rows = [
        [(o, o, o)],
        [(o, o - _C1, o), (o, o, o + _C1), (o - _C1, o, o)],
        [(c2[0] * y, c2[0] * x, o), (o, -c2[0] * z, -c2[0] * y), (-2 * c2[1] * x, -2 * c2[1] * y, 4 * c2[1] * z),
         (-c2[0] * z, o, -c2[0] * x), (2 * c2[2] * x, -2 * c2[2] * y, o)],
        [(-6 * c3[0] * x * y, -3 * c3[0] * (x**2 - y**2), o),
         (c3[1] * y * z, c3[1] * x * z, c3[1] * x * y),
         (2 * c3[2] * x * y, -c3[2] * (4 * z**2 - x**2 - 3 * y**2), -8 * c3[2] * y * z),
         (-6 * c3[3] * x * z, -6 * c3[3] * y * z, 3 * c3[3] * (2 * z**2 - x**2 - y**2)),
         (-c3[2] * (4 * z**2 - 3 * x**2 - y**2), 2 * c3[2] * x * y, -8 * c3[2] * x * z),
         (2 * c3[4] * x * z, -2 * c3[4] * y * z, c3[4] * (x**2 - y**2)),
         (-3 * c3[0] * (x**2 - y**2), 6 * c3[0] * x * y, o)],
    ]
    return np.stack([np.stack(f, axis=1) for band in rows[: degree + 1] for f in band], axis=1).astype(dirs.dtype)
