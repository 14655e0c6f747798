"""Spherical-harmonics colour of degree 0–3 and its derivatives: basis, order and signs of 3DGS, scalar functions."""

from __future__ import annotations

import numpy as np
from numba import njit
from numba.extending import register_jitable

C0 = 0.28209479177387814
C1 = 0.4886025119029199
C2 = (1.0925484305920792, 0.31539156525252005, 0.5462742152960396)
C3 = (0.5900435899266435, 2.890611442640554, 0.4570457994644658, 0.3731763325901154, 1.445305721320277)


def n_coefficients(degree: int) -> int:
    """Return the number of SH coefficients up to ``degree``."""
    return (degree + 1) ** 2


@register_jitable(error_model="numpy")
def sh_basis(degree, x, y, z, basis):
    """Write the basis functions at the unit direction (x, y, z) into ``basis`` (≥ (degree+1)²,) float64."""
    basis[0] = C0
    if degree >= 1:
        basis[1] = -C1 * y
        basis[2] = C1 * z
        basis[3] = -C1 * x
    if degree >= 2:
        basis[4] = C2[0] * x * y
        basis[5] = -C2[0] * y * z
        basis[6] = C2[1] * (2.0 * z * z - x * x - y * y)
        basis[7] = -C2[0] * x * z
        basis[8] = C2[2] * (x * x - y * y)
    if degree >= 3:
        basis[9] = -C3[0] * y * (3.0 * x * x - y * y)
        basis[10] = C3[1] * x * y * z
        basis[11] = -C3[2] * y * (4.0 * z * z - x * x - y * y)
        basis[12] = C3[3] * z * (2.0 * z * z - 3.0 * x * x - 3.0 * y * y)
        basis[13] = -C3[2] * x * (4.0 * z * z - x * x - y * y)
        basis[14] = C3[4] * z * (x * x - y * y)
        basis[15] = -C3[0] * x * (x * x - 3.0 * y * y)


@register_jitable(error_model="numpy")
def sh_direction_vjp(degree, x, y, z, v):
    """Return the gradient of Σ_k v[k]·basis_k with respect to (x, y, z), taken as free variables."""
    vx = vy = vz = 0.0
    if degree >= 1:
        vx -= C1 * v[3]
        vy -= C1 * v[1]
        vz += C1 * v[2]
    if degree >= 2:
        vx += C2[0] * (y * v[4] - z * v[7]) + 2.0 * x * (C2[2] * v[8] - C2[1] * v[6])
        vy += C2[0] * (x * v[4] - z * v[5]) - 2.0 * y * (C2[2] * v[8] + C2[1] * v[6])
        vz += -C2[0] * (y * v[5] + x * v[7]) + 4.0 * C2[1] * z * v[6]
    if degree >= 3:
        xx, yy, zz = x * x, y * y, z * z
        vx += (-C3[0] * 6.0 * x * y * v[9] + C3[1] * y * z * v[10] + C3[2] * 2.0 * x * y * v[11]
               - C3[3] * 6.0 * x * z * v[12] - C3[2] * (4.0 * zz - 3.0 * xx - yy) * v[13]
               + C3[4] * 2.0 * x * z * v[14] - C3[0] * 3.0 * (xx - yy) * v[15])
        vy += (-C3[0] * 3.0 * (xx - yy) * v[9] + C3[1] * x * z * v[10] - C3[2] * (4.0 * zz - xx - 3.0 * yy) * v[11]
               - C3[3] * 6.0 * y * z * v[12] + C3[2] * 2.0 * x * y * v[13] - C3[4] * 2.0 * y * z * v[14]
               + C3[0] * 6.0 * x * y * v[15])
        vz += (C3[1] * x * y * v[10] - C3[2] * 8.0 * y * z * v[11] + C3[3] * (6.0 * zz - 3.0 * xx - 3.0 * yy) * v[12]
               - C3[2] * 8.0 * x * z * v[13] + C3[4] * (xx - yy) * v[14])
    return vx, vy, vz


@njit(cache=True, error_model="numpy")
def evaluate_sh(degree, directions, coefficients):
    """Return Σ_k basis_k · coefficients[:, k] at un-normalised ``directions`` (N, 3), (N, 3) float32."""
    out = np.empty((len(directions), 3), np.float32)
    basis = np.empty(16)
    for n in range(len(directions)):
        x, y, z = np.float64(directions[n, 0]), np.float64(directions[n, 1]), np.float64(directions[n, 2])
        r = 1.0 / np.sqrt(x * x + y * y + z * z)
        sh_basis(degree, x * r, y * r, z * r, basis)
        for c in range(3):
            s = 0.0
            for k in range((degree + 1) ** 2):
                s += basis[k] * coefficients[n, k, c]
            out[n, c] = s
    return out
