"""Kernels of 3D Gaussian Splatting on CPU cores: cull, splat and its vjp."""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from numba.extending import register_jitable

from ..projection import direction, in_view, rotation, rotation_vjp, to_splat, to_splat_vjp
from ..sh import sh_basis, sh_direction_vjp


@register_jitable(error_model="numpy")
def row(table, n):
    """Return three values of a row in float64."""
    return np.float64(table[n, 0]), np.float64(table[n, 1]), np.float64(table[n, 2])


@register_jitable(error_model="numpy")
def quaternion(quats, n):
    """Return a stored quaternion in float64."""
    return np.float64(quats[n, 0]), np.float64(quats[n, 1]), np.float64(quats[n, 2]), np.float64(quats[n, 3])


@njit(parallel=True, error_model="numpy", nogil=True, cache=True)
def visible(camera, means, quats, scales, opacities, eps, antialiased, mask):
    """Mark the points (N,) whose 1/255 box, rounded up to whole pixels, meets the picture."""
    for n in prange(len(means)):
        q, s = quaternion(quats, n), row(scales, n)
        mask[n] = in_view(camera, row(means, n), rotation(q[0], q[1], q[2], q[3]), s[0], s[1], s[2],
                          np.float64(opacities[n]), eps, antialiased)


@njit(parallel=True, error_model="numpy", nogil=True, cache=True)
def project(camera, ids, means, quats, scales, opacities, sh, degree, eps, antialiased, means2d, conics, depths, colors,
            out_opacities, out_radii):
    """Project rows ``ids``: screen mean, conic, depth, colour max(0, SH + ½), opacity (compensated) and radii."""
    n_chunks = 64
    for chunk in prange(n_chunks):
        basis = np.empty(16)
        for m in range(len(ids) * chunk // n_chunks, len(ids) * (chunk + 1) // n_chunks):
            n = ids[m]
            mean, q, s = row(means, n), quaternion(quats, n), row(scales, n)
            mean2d, conic, depths[m], out_opacities[m], reach = to_splat(
                camera, mean, rotation(q[0], q[1], q[2], q[3]), s[0], s[1], s[2], np.float64(opacities[n]), eps,
                antialiased)
            means2d[m, 0], means2d[m, 1] = mean2d
            conics[m, 0], conics[m, 1], conics[m, 2] = conic
            out_radii[m, 0], out_radii[m, 1] = reach
            dx, dy, dz, _ = direction(camera, mean[0], mean[1], mean[2])
            sh_basis(degree, dx, dy, dz, basis)
            r = g = b = 0.5
            for k in range((degree + 1) * (degree + 1)):
                r += basis[k] * sh[n, k, 0]
                g += basis[k] * sh[n, k, 1]
                b += basis[k] * sh[n, k, 2]
            colors[m, 0], colors[m, 1], colors[m, 2] = max(r, 0.0), max(g, 0.0), max(b, 0.0)


@njit(parallel=True, error_model="numpy", nogil=True, cache=True)
def project_vjp(camera, ids, means, quats, scales, opacities, sh, degree, eps, antialiased, colors, v_means2d, v_conics,
                v_depths, v_colors, v_out_opacities, v_means, v_quats, v_scales, v_opacities, v_sh):
    """Gradients of rows ``ids`` from those of their splats; ``v_sh`` is (M, (degree+1)², 3)."""
    n_chunks = 64
    for chunk in prange(n_chunks):
        basis = np.empty(16)
        v_basis = np.empty(16)
        for m in range(len(ids) * chunk // n_chunks, len(ids) * (chunk + 1) // n_chunks):
            n = ids[m]
            mean, q, s = row(means, n), quaternion(quats, n), row(scales, n)
            v_mean, v_s, v_rot, v_opacities[m] = to_splat_vjp(
                camera, mean, rotation(q[0], q[1], q[2], q[3]), s[0], s[1], s[2], np.float64(opacities[n]), eps,
                antialiased, (np.float64(v_means2d[m, 0]), np.float64(v_means2d[m, 1])), row(v_conics, m),
                np.float64(v_depths[m]), np.float64(v_out_opacities[m]))
            v_scales[m, 0], v_scales[m, 1], v_scales[m, 2] = v_s
            v_quats[m, 0], v_quats[m, 1], v_quats[m, 2], v_quats[m, 3] = rotation_vjp(q[0], q[1], q[2], q[3], v_rot)
            # colour: masked where it was clamped at zero
            dx, dy, dz, r = direction(camera, mean[0], mean[1], mean[2])
            sh_basis(degree, dx, dy, dz, basis)
            vr = np.float64(v_colors[m, 0]) if colors[m, 0] > 0 else 0.0
            vg = np.float64(v_colors[m, 1]) if colors[m, 1] > 0 else 0.0
            vb = np.float64(v_colors[m, 2]) if colors[m, 2] > 0 else 0.0
            for k in range((degree + 1) * (degree + 1)):
                v_sh[m, k, 0], v_sh[m, k, 1], v_sh[m, k, 2] = basis[k] * vr, basis[k] * vg, basis[k] * vb
                v_basis[k] = sh[n, k, 0] * vr + sh[n, k, 1] * vg + sh[n, k, 2] * vb
            ux, uy, uz = sh_direction_vjp(degree, dx, dy, dz, v_basis)
            along = ux * dx + uy * dy + uz * dz
            v_means[m, 0] = v_mean[0] + (ux - along * dx) * r
            v_means[m, 1] = v_mean[1] + (uy - along * dy) * r
            v_means[m, 2] = v_mean[2] + (uz - along * dz) * r
