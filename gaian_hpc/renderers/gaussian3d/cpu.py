"""Kernels of 3D Gaussian Splatting on CPU cores: cull, splat, their vjp, and the scalar functions of the compositor."""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from numba.extending import register_jitable

from ..compositing.lanes import exp_nonpositive, fma
from .projection import (axes_vjp, compensation, covariance, covariance_vjp, direction, in_depth, radii, rotation,
                         rotation_vjp, screen_axes, screen_vjp, to_camera, to_screen)
from .sh import sh_basis, sh_direction_vjp

N_GEOMETRY = 7  # mean (2), conic (3), opacity, largest exponent

_ZERO = np.float32(0.0)
_HALF = np.float32(0.5)


@register_jitable(error_model="numpy")
def load(geometry, s):
    """Read a splat: mean x, y, conic a, b, c, opacity, and the exponent beyond which alpha < 1/255."""
    return (geometry[s, 0], geometry[s, 1], geometry[s, 2], geometry[s, 3], geometry[s, 4], geometry[s, 5],
            geometry[s, 6])


@register_jitable(error_model="numpy")
def alpha(p, px, py):
    """Return opacity · exp(−σ), σ = ½(a dx² + c dy²) + b dx dy; zero where rounding makes σ negative."""
    dx = p[0] - px
    dy = p[1] - py
    sigma = fma(_HALF * p[2] * dx, dx, fma(_HALF * p[4] * dy, dy, p[3] * dx * dy))
    a = p[5] * exp_nonpositive(-sigma)
    return a if sigma >= _ZERO else _ZERO


@register_jitable(error_model="numpy")
def moments(p, px, py, g):
    """Return g times 1, dx, dy, dx², dx·dy, dy²: their sums give the gradient of every parameter of a splat."""
    dx = p[0] - px
    dy = p[1] - py
    gx = g * dx
    gy = g * dy
    return g, gx, gy, gx * dx, gx * dy, gy * dy


@register_jitable(error_model="numpy")
def moments_absgrad(p, px, py, g):
    """As :func:`moments`, then the absolute pixel gradients of the mean (AbsGS, Ye et al. 2024)."""
    dx = p[0] - px
    dy = p[1] - py
    gx = g * dx
    gy = g * dy
    return (g, gx, gy, gx * dx, gx * dy, gy * dy, abs(p[2] * gx + p[3] * gy), abs(p[3] * gx + p[4] * gy))


@register_jitable(error_model="numpy")
def touches(p, x0, y0, x1, y1):
    """Tell whether the ellipse σ ≤ limit meets a rectangle: the exact minimum of σ over it, with a rounding margin.

    The minimum of a convex form lies at the centre if that is inside, else on an edge that faces the centre.
    """
    mx, my = p[0], p[1]
    ex = min(max(mx, x0), x1)
    ey = min(max(my, y0), y1)
    if ex == mx and ey == my:
        return True
    sigma = np.float32(np.inf)
    if ex != mx:
        dx = mx - ex
        py = min(max(my + p[3] * dx / p[4], y0), y1)
        dy = my - py
        sigma = min(sigma, _HALF * (p[2] * dx * dx + p[4] * dy * dy) + p[3] * dx * dy)
    if ey != my:
        dy = my - ey
        px = min(max(mx + p[3] * dy / p[2], x0), x1)
        dx = mx - px
        sigma = min(sigma, _HALF * (p[2] * dx * dx + p[4] * dy * dy) + p[3] * dx * dy)
    return sigma <= p[6]


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


@njit(parallel=True, error_model="numpy", nogil=True, cache=True)
def pack(means2d, conics, depths, colors, opacities, radii2d, y_origin, geometry, features, boxes, rows):
    """Lay splats out for the compositor: geometry (M, 7), features (M, 3 or 4), pixel boxes (M, 4), rows (M, 2)."""
    for s in prange(len(depths)):
        geometry[s, 0], geometry[s, 1] = means2d[s, 0], means2d[s, 1]
        geometry[s, 2], geometry[s, 3], geometry[s, 4] = conics[s, 0], conics[s, 1], conics[s, 2]
        geometry[s, 5] = opacities[s]
        geometry[s, 6] = np.log(255.0 * max(opacities[s], np.float32(1e-10))) * 1.001 + 1e-3
        for c in range(3):
            features[s, c] = colors[s, c]
        if features.shape[1] == 4:
            features[s, 3] = depths[s]
        # the alpha cut decides per pixel; boxes only need to be a rounding error larger than the ellipse
        rx, ry = radii2d[s, 0] * np.float32(1.001) + np.float32(0.01), radii2d[s, 1] * np.float32(1.001) + np.float32(0.01)
        boxes[s, 0], boxes[s, 1] = means2d[s, 0] - rx, means2d[s, 1] - ry
        boxes[s, 2], boxes[s, 3] = means2d[s, 0] + rx, means2d[s, 1] + ry
        if not opacities[s] >= np.float32(1.0 / 255.0):
            boxes[s, 2] = boxes[s, 0] - np.float32(1.0)
        rows[s, 0] = np.int32(min(max(np.ceil(boxes[s, 1] - _HALF) - y_origin, -1e6), 1e6))
        rows[s, 1] = np.int32(min(max(np.floor(boxes[s, 3] - _HALF) + 1.0 - y_origin, -1e6), 1e6))


@njit(parallel=True, error_model="numpy", nogil=True, cache=True)
def finish(geometry, sums, n_moments, v_means2d, v_conics, v_opacities, v_colors, v_depths, absgrad):
    """Turn summed moments (M, ·) into gradients of the splat fields; dα/dσ = −α."""
    for s in prange(len(sums)):
        a, b, c = geometry[s, 2], geometry[s, 3], geometry[s, 4]
        gx, gy = sums[s, 1], sums[s, 2]
        v_means2d[s, 0], v_means2d[s, 1] = -(a * gx + b * gy), -(b * gx + c * gy)
        v_conics[s, 0], v_conics[s, 1], v_conics[s, 2] = -_HALF * sums[s, 3], -sums[s, 4], -_HALF * sums[s, 5]
        v_opacities[s] = sums[s, 0] / geometry[s, 5] if geometry[s, 5] > _ZERO else _ZERO
        for k in range(3):
            v_colors[s, k] = sums[s, n_moments + k]
        v_depths[s] = sums[s, n_moments + 3] if sums.shape[1] > n_moments + 3 else _ZERO
        if n_moments == 8:
            absgrad[s, 0], absgrad[s, 1] = sums[s, 6], sums[s, 7]
