"""Kernels of 3D Gaussian Splatting on CPU cores: cull, splat and its vjp."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from ..projection import (
    axes_vjp,
    compensation,
    covariance,
    covariance_vjp,
    direction,
    in_depth,
    radii,
    rotation,
    rotation_vjp,
    screen_axes,
    screen_vjp,
    to_camera,
    to_screen,
)
from ..sh import sh_basis, sh_direction_vjp


@njit(parallel=True, error_model="numpy", nogil=True, cache=True)
def visible(camera, means, quats, scales, opacities, eps, antialiased, mask):
    """Mark the points (N,) whose 1/255 box, rounded up to whole pixels, meets the picture."""
    for n in prange(len(means)):
        mask[n] = False
        x, y, z = to_camera(camera, np.float64(means[n, 0]), np.float64(means[n, 1]), np.float64(means[n, 2]))
        if not in_depth(camera, z):
            continue
        rot = rotation(np.float64(quats[n, 0]), np.float64(quats[n, 1]), np.float64(quats[n, 2]),
                       np.float64(quats[n, 3]))
        t = screen_axes(camera, x, y, z, rot, np.float64(scales[n, 0]), np.float64(scales[n, 1]),
                        np.float64(scales[n, 2]))
        xx, _, yy, det, bare = covariance(t, eps)
        opacity = np.float64(opacities[n])
        if antialiased:
            opacity *= compensation(det, bare)
        rx, ry = radii(xx, yy, opacity)
        rx, ry = np.ceil(rx), np.ceil(ry)
        u, v = to_screen(camera, x, y, z)
        mask[n] = (rx > 0 and ry > 0 and u + rx > 0 and u - rx < camera[16] and v + ry > 0 and v - ry < camera[17])


@njit(parallel=True, error_model="numpy", nogil=True, cache=True)
def project(camera, ids, means, quats, scales, opacities, sh, degree, eps, antialiased, means2d, conics, depths, colors,
            out_opacities, out_radii):
    """Project rows ``ids``: screen mean, conic, depth, colour max(0, SH + ½), opacity (compensated) and radii."""
    n_chunks = 64
    for chunk in prange(n_chunks):
        basis = np.empty(16)
        for m in range(len(ids) * chunk // n_chunks, len(ids) * (chunk + 1) // n_chunks):
            n = ids[m]
            wx, wy, wz = np.float64(means[n, 0]), np.float64(means[n, 1]), np.float64(means[n, 2])
            x, y, z = to_camera(camera, wx, wy, wz)
            rot = rotation(np.float64(quats[n, 0]), np.float64(quats[n, 1]), np.float64(quats[n, 2]),
                           np.float64(quats[n, 3]))
            t = screen_axes(camera, x, y, z, rot, np.float64(scales[n, 0]), np.float64(scales[n, 1]),
                            np.float64(scales[n, 2]))
            xx, xy, yy, det, bare = covariance(t, eps)
            opacity = np.float64(opacities[n])
            if antialiased:
                opacity *= compensation(det, bare)
            means2d[m, 0], means2d[m, 1] = to_screen(camera, x, y, z)
            conics[m, 0], conics[m, 1], conics[m, 2] = yy / det, -xy / det, xx / det
            depths[m] = z
            out_opacities[m] = opacity
            out_radii[m, 0], out_radii[m, 1] = radii(xx, yy, opacity)
            dx, dy, dz, _ = direction(camera, wx, wy, wz)
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
            wx, wy, wz = np.float64(means[n, 0]), np.float64(means[n, 1]), np.float64(means[n, 2])
            x, y, z = to_camera(camera, wx, wy, wz)
            qw, qx, qy, qz = (np.float64(quats[n, 0]), np.float64(quats[n, 1]), np.float64(quats[n, 2]),
                              np.float64(quats[n, 3]))
            s0, s1, s2 = np.float64(scales[n, 0]), np.float64(scales[n, 1]), np.float64(scales[n, 2])
            rot = rotation(qw, qx, qy, qz)
            t = screen_axes(camera, x, y, z, rot, s0, s1, s2)
            xx, xy, yy, det, bare = covariance(t, eps)
            v_o = np.float64(v_out_opacities[m])
            v_conic = (np.float64(v_conics[m, 0]), np.float64(v_conics[m, 1]), np.float64(v_conics[m, 2]))
            v_t = covariance_vjp(t, eps, xx, xy, yy, det, bare, v_conic, v_o * opacities[n], antialiased)
            if antialiased:
                v_o *= compensation(det, bare)
            v_opacities[m] = v_o
            v_p, v_s, v_rot = axes_vjp(camera, x, y, z, rot, s0, s1, s2, v_t)
            v_scales[m, 0], v_scales[m, 1], v_scales[m, 2] = v_s
            v_quats[m, 0], v_quats[m, 1], v_quats[m, 2], v_quats[m, 3] = rotation_vjp(qw, qx, qy, qz, v_rot)
            su, sv, sz = screen_vjp(camera, x, y, z, np.float64(v_means2d[m, 0]), np.float64(v_means2d[m, 1]))
            px, py, pz = v_p[0] + su, v_p[1] + sv, v_p[2] + sz + v_depths[m]
            # colour: masked where it was clamped at zero
            dx, dy, dz, r = direction(camera, wx, wy, wz)
            sh_basis(degree, dx, dy, dz, basis)
            vr = np.float64(v_colors[m, 0]) if colors[m, 0] > 0 else 0.0
            vg = np.float64(v_colors[m, 1]) if colors[m, 1] > 0 else 0.0
            vb = np.float64(v_colors[m, 2]) if colors[m, 2] > 0 else 0.0
            for k in range((degree + 1) * (degree + 1)):
                v_sh[m, k, 0], v_sh[m, k, 1], v_sh[m, k, 2] = basis[k] * vr, basis[k] * vg, basis[k] * vb
                v_basis[k] = sh[n, k, 0] * vr + sh[n, k, 1] * vg + sh[n, k, 2] * vb
            ux, uy, uz = sh_direction_vjp(degree, dx, dy, dz, v_basis)
            along = ux * dx + uy * dy + uz * dz
            v_means[m, 0] = camera[0] * px + camera[3] * py + camera[6] * pz + (ux - along * dx) * r
            v_means[m, 1] = camera[1] * px + camera[4] * py + camera[7] * pz + (uy - along * dy) * r
            v_means[m, 2] = camera[2] * px + camera[5] * py + camera[8] * pz + (uz - along * dz) * r
