"""Kernels of 3D Gaussian Splatting on CPU cores: cull, splat, their vjp, and the scalar functions of the compositor."""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from numba.extending import register_jitable

from ..compositing.lanes import exp_nonpositive, fma
from .projection import (
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
from .sh import sh_basis, sh_direction_vjp

N_COLUMNS = 16  # geometry, colour and depth of a splat: one cache line
N_GEOMETRY = 12  # mean (2), conic (3), opacity, and six numbers of the ellipse alpha = 1/255

_ZERO = np.float32(0.0)
_HALF = np.float32(0.5)
_SLACK = np.float32(0.01)  # pixels; covers rounding, the cut at 1/255 decides per pixel


@register_jitable(error_model="numpy")
def load(table, s):
    """Read a splat: mean x, y, conic a, b, c, opacity, and the ellipse that :func:`span` needs."""
    return (table[s, 0], table[s, 1], table[s, 2], table[s, 3], table[s, 4], table[s, 5],
            table[s, 6], table[s, 7], table[s, 8], table[s, 9], table[s, 10], table[s, 11])


@register_jitable(error_model="numpy")
def span(p, x0, x1):
    """Return the lowest and highest y of the ellipse σ ≤ limit over [x0, x1]; an empty interval where they don't meet.

    At horizontal distance e from the mean, y − mean = (−b e ± √(2·limit·c − det e²))/c. The upper branch is concave
    with its top at e_top, the lower one mirrors it: each is extreme at the point of the interval nearest to that.
    """
    left, right = x0 - p[0], x1 - p[0]
    reach = p[9]
    if left > reach or right < -reach:
        return _ZERO, -_HALF
    left, right = max(left, -reach), min(right, reach)
    e = min(max(p[8], left), right)
    high = np.sqrt(max(p[7] - p[6] * e * e, _ZERO)) * p[10] - p[11] * e
    e = min(max(-p[8], left), right)
    low = np.sqrt(max(p[7] - p[6] * e * e, _ZERO)) * p[10] + p[11] * e
    return p[1] - low - _SLACK, p[1] + high + _SLACK


@register_jitable(error_model="numpy")
def alpha(p, px, py):
    """Return opacity · exp(−σ), σ = ½(a dx² + c dy²) + b dx dy; zero where rounding makes σ negative."""
    dx = p[0] - px
    dy = p[1] - py
    power = fma(fma(-_HALF * p[2], dx, -p[3] * dy), dx, -_HALF * p[4] * dy * dy)
    a = p[5] * exp_nonpositive(power)
    return a if power <= _ZERO else _ZERO


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
def pack(means2d, conics, depths, colors, opacities, table):
    """Lay splats out for the compositor: 12 columns of geometry, the colour and the depth.

    The determinant of the rounded conic is exact in float64; where it is not positive, the ellipse is unbounded.
    """
    for s in prange(len(depths)):
        a, b, c = np.float64(conics[s, 0]), np.float64(conics[s, 1]), np.float64(conics[s, 2])
        table[s, 0], table[s, 1] = means2d[s, 0], means2d[s, 1]
        table[s, 2], table[s, 3], table[s, 4] = a, b, c
        table[s, 5] = opacities[s]
        det = max(a * c - b * b, 1e-12 * a * c)
        double_limit = 2.0 * np.log(255.0 * np.float64(opacities[s])) * 1.001 + 1e-3
        table[s, 6] = det
        table[s, 7] = double_limit * c
        table[s, 8] = -b * np.sqrt(double_limit / (a * det))
        table[s, 9] = np.sqrt(double_limit * c / det) + _SLACK if double_limit > 0.0 else -1.0
        table[s, 10] = 1.0 / c
        table[s, 11] = b / c
        for k in range(3):
            table[s, N_GEOMETRY + k] = colors[s, k]
        table[s, N_GEOMETRY + 3] = depths[s]


@njit(parallel=True, error_model="numpy", nogil=True, cache=True)
def finish(table, sums, n_moments, v_means2d, v_conics, v_opacities, v_colors, v_depths, absgrad):
    """Turn summed moments (M, ·) into gradients of the splat fields; dα/dσ = −α."""
    for s in prange(len(sums)):
        a, b, c = table[s, 2], table[s, 3], table[s, 4]
        gx, gy = sums[s, 1], sums[s, 2]
        v_means2d[s, 0], v_means2d[s, 1] = -(a * gx + b * gy), -(b * gx + c * gy)
        v_conics[s, 0], v_conics[s, 1], v_conics[s, 2] = -_HALF * sums[s, 3], -sums[s, 4], -_HALF * sums[s, 5]
        v_opacities[s] = sums[s, 0] / table[s, 5] if table[s, 5] > _ZERO else _ZERO
        for k in range(3):
            v_colors[s, k] = sums[s, n_moments + k]
        v_depths[s] = sums[s, n_moments + 3] if sums.shape[1] > n_moments + 3 else _ZERO
        if n_moments == 8:
            absgrad[s, 0], absgrad[s, 1] = sums[s, 6], sums[s, 7]
