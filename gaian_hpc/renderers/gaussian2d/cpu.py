"""Kernels of 2D Gaussian surfels on CPU cores: projection and its vjp, and the functions of the compositor.

A surfel maps (u, v, 1), in standard deviations along its two axes, to homogeneous pixels by a matrix M (Huang et al.
2024, equation 5). A splat carries its inverse W, taken about the splat's centre on the screen and computed in float64:
ζ = W·(x, y, 1) is (u, v, 1)/z at the point where the ray of pixel (x, y) meets the surfel, so that intersection,
inverse depth and their derivatives are linear in the pixel. The published codes intersect two planes per pixel, whose
cross product cancels in float32.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from numba.extending import register_jitable

from ..compositing.lanes import exp_nonpositive, fma, scale
from ..gaussian3d.cpu import quaternion, row
from ..projection import (
    ALPHA_MIN,
    direction,
    in_depth,
    rotation,
    rotation_vjp,
    to_camera,
)
from ..sh import sh_basis, sh_direction_vjp

N_GEOMETRY = 19  # centre (2), W (9), opacity, seven numbers of where alpha ≥ 1/255
N_MOMENTS = 12

_ZERO, _ONE, _HALF, _TWO = np.float32(0.0), np.float32(1.0), np.float32(0.5), np.float32(2.0)
_SLACK = np.float32(0.02)  # pixels; covers rounding, the cut at 1/255 decides per pixel
_EVERYWHERE = np.float32(1e9)
_FARTHEST = np.float32(1e-3)  # of the inverse depth of an intersection, in units of the centre's
W_MAX = 1e30  # of W's entries: nearer to edge-on, a surfel has no area


@register_jitable(error_model="numpy")
def load(table, s):
    """Read a splat: centre, W row by row, opacity, and the ellipse and the disc that :func:`span` needs."""
    return (table[s, 0], table[s, 1], table[s, 2], table[s, 3], table[s, 4], table[s, 5], table[s, 6], table[s, 7],
            table[s, 8], table[s, 9], table[s, 10], table[s, 11], table[s, 12], table[s, 13], table[s, 14],
            table[s, 15], table[s, 16], table[s, 17], table[s, 18])


@register_jitable(error_model="numpy")
def _branches(x, left, right, reach, slope, height, top):
    """Return lowest and highest y of an ellipse about x over [left, right], as :mod:`..ellipses.cpu` has it."""
    left, right = left - x, right - x
    if left > reach or right < -reach:
        return _EVERYWHERE, -_EVERYWHERE
    left, right = max(left, -reach), min(right, reach)
    e = min(max(top, left), right)
    share = e / reach
    high = height * np.sqrt(max(_ONE - share * share, _ZERO)) + slope * e
    e = min(max(-top, left), right)
    share = e / reach
    low = height * np.sqrt(max(_ONE - share * share, _ZERO)) - slope * e
    return -low, high


@register_jitable(error_model="numpy")
def span(p, x0, x1):
    """Return heights that hold every alpha ≥ 1/255 over [x0, x1]: of the surfel's ellipse and of the low-pass disc."""
    left, right = x0 - p[0], x1 - p[0]
    if p[14] >= _EVERYWHERE:
        return -_EVERYWHERE, _EVERYWHERE
    low, high = _branches(p[12], left, right, p[14], p[15], p[16], p[17])
    if low <= high:
        low, high = low + p[13], high + p[13]
    disc_low, disc_high = _branches(_ZERO, left, right, p[18], _ZERO, p[18], _ZERO)
    low, high = min(low, disc_low), max(high, disc_high)
    if low > high:
        return _ZERO, -_HALF
    return p[1] + low - _SLACK, p[1] + high + _SLACK


@register_jitable(error_model="numpy", forceinline=True)
def intersection(p, px, py):
    """Return the pixel about the centre, u, v, the depth at which the ray meets the surfel, u² + v², 2·distance²."""
    x, y = px - p[0], py - p[1]
    z = _ONE / fma(p[8], x, fma(p[9], y, p[10]))
    u = fma(p[2], x, fma(p[3], y, p[4])) * z
    v = fma(p[5], x, fma(p[6], y, p[7])) * z
    return x, y, u, v, z, fma(u, u, v * v), _TWO * fma(x, x, y * y)


@register_jitable(error_model="numpy", forceinline=True)
def alpha(p, px, py):
    """Return o·exp(−½ min(u² + v², 2·distance²)): a surfel seen edge-on keeps the width of a pixel."""
    _, _, _, _, _, on_surfel, on_screen = intersection(p, px, py)
    return p[11] * exp_nonpositive(-_HALF * (on_surfel if on_surfel < on_screen else on_screen))


@register_jitable(error_model="numpy", forceinline=True)
def features_color(p, f, px, py):
    """Return the colour."""
    return f[0], f[1], f[2]


@register_jitable(error_model="numpy", forceinline=True)
def _inverse_depth(p, f, px, py):
    """Return 1/z of the intersection, and whether it is there: elsewhere, behind the camera or seen along the surfel
    so that z is beyond all bounds, the centre's is taken.
    """
    x, y = px - p[0], py - p[1]
    r, center = fma(p[8], x, fma(p[9], y, p[10])), _ONE / f[6]
    meets = r > _FARTHEST * center
    return r if meets else center, meets


@register_jitable(error_model="numpy", forceinline=True)
def features_intersection(p, f, px, py):
    """Return colour, normal, the depth where the ray meets the surfel, its inverse ρ, and ρ²."""
    r, _ = _inverse_depth(p, f, px, py)
    return f[0], f[1], f[2], f[3], f[4], f[5], _ONE / r, r, r * r


@register_jitable(error_model="numpy", forceinline=True)
def _terms(p, px, py, g, v_inverse):
    """Return terms of the centre (2), W (9) and the opacity from g = α·dL/dα and dL/dρ of the inverse depth."""
    x, y, u, v, z, on_surfel, on_screen = intersection(p, px, py)
    meets = on_surfel < on_screen
    h = g * z if meets else _ZERO
    a, b, c = -h * u, -h * v, h * on_surfel + v_inverse
    shift = _ZERO if meets else _TWO * g
    return g, shift * x, shift * y, a, a * x, a * y, b, b * x, b * y, c, c * x, c * y


@register_jitable(error_model="numpy", forceinline=True)
def terms_color(p, f, px, py, g, w, v):
    """Return terms of geometry, and of the colour."""
    return _terms(p, px, py, g, _ZERO) + (w * v[0], w * v[1], w * v[2])


@register_jitable(error_model="numpy", forceinline=True)
def terms_center(p, f, px, py, g, w, v):
    """Return terms of geometry, and of colour, normal and the depth of the centre."""
    return _terms(p, px, py, g, _ZERO) + scale(w, v)


@register_jitable(error_model="numpy", forceinline=True)
def terms_intersection(p, f, px, py, g, w, v):
    """Return terms of geometry, through the depth of the intersection too, and of colour, normal and centre's depth."""
    r, meets = _inverse_depth(p, f, px, py)
    v_r = w * (v[7] + _TWO * r * v[8] - v[6] / (r * r))
    return _terms(p, px, py, g, v_r if meets else _ZERO) + (
        w * v[0], w * v[1], w * v[2], w * v[3], w * v[4], w * v[5], _ZERO if meets else -v_r * r * r)


@njit(parallel=True, error_model="numpy", nogil=True, cache=True)
def pack(means2d, inverses, opacities, regions, colors, normals, depths, table):
    """Lay splats out for the compositor: 19 columns of geometry, then colour, normal and depth."""
    for s in prange(len(depths)):
        table[s, 0], table[s, 1] = means2d[s, 0], means2d[s, 1]
        for i in range(3):
            for j in range(3):
                table[s, 2 + 3 * i + j] = inverses[s, i, j]
        table[s, 11] = opacities[s]
        xx, xy, yy = np.float64(regions[s, 2]), np.float64(regions[s, 3]), np.float64(regions[s, 4])
        table[s, 12], table[s, 13] = regions[s, 0], regions[s, 1]
        if xx < np.inf:
            table[s, 14] = np.sqrt(xx) * 1.001 + 0.01
            table[s, 15] = xy / xx if xx > 0.0 else 0.0
            table[s, 16] = np.sqrt(max(yy - xy * xy / xx, 0.0) if xx > 0.0 else 0.0) * 1.001 + 0.01
            table[s, 17] = xy / np.sqrt(yy) if yy > 0.0 else 0.0
        else:
            table[s, 14], table[s, 15], table[s, 16], table[s, 17] = _EVERYWHERE, _ZERO, _EVERYWHERE, _ZERO
        table[s, 18] = disc_of(np.float64(opacities[s]))
        for k in range(3):
            table[s, N_GEOMETRY + k] = colors[s, k]
            table[s, N_GEOMETRY + 3 + k] = normals[s, k]
        table[s, N_GEOMETRY + 6] = depths[s]


@register_jitable(error_model="numpy")
def reach_of(opacity):
    """Return the squared standard deviations at which alpha falls to 1/255; 0 where it never reaches that."""
    return 2.0 * np.log(255.0 * opacity) if opacity >= ALPHA_MIN else 0.0


@register_jitable(error_model="numpy")
def disc_of(opacity):
    """Return the radius in pixels within which the low-pass filter keeps alpha ≥ 1/255; −1 where it never does."""
    return np.sqrt(0.5 * reach_of(opacity)) * 1.001 + 0.01 if opacity >= ALPHA_MIN else -1.0


@njit(parallel=True, error_model="numpy", nogil=True, cache=True)
def finish(table, sums, with_maps, v_means2d, v_inverses, v_opacities, v_colors, v_normals, v_depths):
    """Turn sums of terms (M, ·) into gradients of the splat fields.

    The gradient of the centre at fixed W is that of a shift of the whole splat.
    """
    for s in prange(len(sums)):
        v_opacities[s] = sums[s, 0] / table[s, 11] if table[s, 11] > _ZERO else _ZERO
        x, y = sums[s, 1], sums[s, 2]
        for i in range(3):
            v_inverses[s, i, 0], v_inverses[s, i, 1] = sums[s, 4 + 3 * i], sums[s, 5 + 3 * i]
            v_inverses[s, i, 2] = sums[s, 3 + 3 * i]
            x -= table[s, 2 + 3 * i] * sums[s, 3 + 3 * i]
            y -= table[s, 3 + 3 * i] * sums[s, 3 + 3 * i]
        v_means2d[s, 0], v_means2d[s, 1] = x, y
        for k in range(3):
            v_colors[s, k] = sums[s, N_MOMENTS + k]
            v_normals[s, k] = sums[s, N_MOMENTS + 3 + k] if with_maps else _ZERO
        v_depths[s] = sums[s, N_MOMENTS + 6] if with_maps else _ZERO


@register_jitable(error_model="numpy")
def transform(camera, mean, rot, su, sv):
    """Return M (9, row by row) of a surfel, and its centre in camera coordinates."""
    x, y, z = to_camera(camera, mean[0], mean[1], mean[2])
    ux, uy, uz = (su * (camera[0] * rot[0] + camera[1] * rot[3] + camera[2] * rot[6]),
                  su * (camera[3] * rot[0] + camera[4] * rot[3] + camera[5] * rot[6]),
                  su * (camera[6] * rot[0] + camera[7] * rot[3] + camera[8] * rot[6]))
    vx, vy, vz = (sv * (camera[0] * rot[1] + camera[1] * rot[4] + camera[2] * rot[7]),
                  sv * (camera[3] * rot[1] + camera[4] * rot[4] + camera[5] * rot[7]),
                  sv * (camera[6] * rot[1] + camera[7] * rot[4] + camera[8] * rot[7]))
    fx, fy, cx, cy = camera[12], camera[13], camera[14], camera[15]
    return (fx * ux + cx * uz, fx * vx + cx * vz, fx * x + cx * z,
            fy * uy + cy * uz, fy * vy + cy * vz, fy * y + cy * z, uz, vz, z), (x, y, z)


@register_jitable(error_model="numpy")
def center(m):
    """Return the middle of the box around the ellipse u² + v² = 1 on the screen."""
    d = m[6] * m[6] + m[7] * m[7] - m[8] * m[8]
    return ((m[0] * m[6] + m[1] * m[7] - m[2] * m[8]) / d, (m[3] * m[6] + m[4] * m[7] - m[5] * m[8]) / d)


@register_jitable(error_model="numpy")
def about(m, x, y):
    """Return M with pixels counted from (x, y)."""
    return (m[0] - x * m[6], m[1] - x * m[7], m[2] - x * m[8], m[3] - y * m[6], m[4] - y * m[7], m[5] - y * m[8],
            m[6], m[7], m[8])


@register_jitable(error_model="numpy")
def inverse(m):
    """Return the inverse of a matrix, row by row; not finite where there is none."""
    c0, c1, c2 = m[4] * m[8] - m[5] * m[7], m[5] * m[6] - m[3] * m[8], m[3] * m[7] - m[4] * m[6]
    r = 1.0 / (m[0] * c0 + m[1] * c1 + m[2] * c2)
    return (c0 * r, (m[2] * m[7] - m[1] * m[8]) * r, (m[1] * m[5] - m[2] * m[4]) * r,
            c1 * r, (m[0] * m[8] - m[2] * m[6]) * r, (m[2] * m[3] - m[0] * m[5]) * r,
            c2 * r, (m[1] * m[6] - m[0] * m[7]) * r, (m[0] * m[4] - m[1] * m[3]) * r)


@register_jitable(error_model="numpy")
def region(m, opacity):
    """Return the middle (2) and xx, xy, yy of the ellipse where alpha ≥ 1/255 about the origin of ``m``'s pixels.

    A point (x, y) lies in it where it deviates from the middle by no more than one with that covariance; the
    ellipse of a surfel that reaches behind the camera is unbounded, with infinite xx and yy.
    """
    square = reach_of(opacity)
    d = square * (m[6] * m[6] + m[7] * m[7]) - m[8] * m[8]
    if not d < -1e-6 * m[8] * m[8]:
        return 0.0, 0.0, np.inf, 0.0, np.inf
    x = (square * (m[0] * m[6] + m[1] * m[7]) - m[2] * m[8]) / d
    y = (square * (m[3] * m[6] + m[4] * m[7]) - m[5] * m[8]) / d
    # About the middle nothing cancels: M'·diag(r², r², −1)·M'ᵀ / d has no linear part there.
    n = about(m, x, y)
    return (x, y, -(square * (n[0] * n[0] + n[1] * n[1]) - n[2] * n[2]) / d,
            -(square * (n[0] * n[3] + n[1] * n[4]) - n[2] * n[5]) / d,
            -(square * (n[3] * n[3] + n[4] * n[4]) - n[5] * n[5]) / d)


@register_jitable(error_model="numpy")
def box_of(r, disc, box):
    """Write to ``box`` (4) bounds, about the centre, of ellipse ``r`` and the low-pass disc."""
    half_x, half_y = np.sqrt(max(r[2], 0.0)), np.sqrt(max(r[3], 0.0))
    box[0], box[1] = min(r[0] - half_x, -disc), min(r[1] - half_y, -disc)
    box[2], box[3] = max(r[0] + half_x, disc), max(r[1] + half_y, disc)


@njit(parallel=True, error_model="numpy", nogil=True, cache=True)
def footprints(means2d, regions, opacities, boxes):
    """Write x0, y0, x1, y1 (M, 4) in pixels, with room for rounding."""
    for s in prange(len(boxes)):
        x, y = np.float64(means2d[s, 0]), np.float64(means2d[s, 1])
        half_x = np.sqrt(max(np.float64(regions[s, 2]), 0.0)) * 1.001 + 0.02
        half_y = np.sqrt(max(np.float64(regions[s, 4]), 0.0)) * 1.001 + 0.02
        disc = disc_of(np.float64(opacities[s]))
        ex, ey = np.float64(regions[s, 0]), np.float64(regions[s, 1])
        boxes[s, 0], boxes[s, 1] = x + min(ex - half_x, -disc), y + min(ey - half_y, -disc)
        boxes[s, 2], boxes[s, 3] = x + max(ex + half_x, disc), y + max(ey + half_y, disc)


@njit(parallel=True, error_model="numpy", nogil=True, cache=True)
def visible(camera, means, quats, scales, opacities, mask):
    """Mark the surfels (N,) of which some alpha ≥ 1/255 may lie on the picture."""
    n_chunks = 64
    for chunk in prange(n_chunks):
        box = np.empty(4)
        for n in range(len(means) * chunk // n_chunks, len(means) * (chunk + 1) // n_chunks):
            q, opacity = quaternion(quats, n), np.float64(opacities[n])
            m, (_, _, z) = transform(camera, row(means, n), rotation(q[0], q[1], q[2], q[3]),
                                     np.float64(scales[n, 0]), np.float64(scales[n, 1]))
            mask[n] = False
            if not in_depth(camera, z) or opacity < ALPHA_MIN:
                continue
            x, y = center(m)
            m = about(m, x, y)
            w = inverse(m)
            if not (abs(w[0]) + abs(w[1]) + abs(w[2]) + abs(w[3]) + abs(w[4]) + abs(w[5]) + abs(w[6]) + abs(w[7])
                    + abs(w[8]) < W_MAX and abs(x) + abs(y) < W_MAX):
                continue  # seen exactly edge-on
            ex, ey, xx, _, yy = region(m, opacity)
            box_of((ex, ey, xx, yy), disc_of(opacity), box)
            mask[n] = x + box[2] > 0 and x + box[0] < camera[16] and y + box[3] > 0 and y + box[1] < camera[17]


@njit(parallel=True, error_model="numpy", nogil=True, cache=True)
def project(camera, ids, means, quats, scales, opacities, sh, degree, means2d, inverses, regions, depths, normals,
            colors):
    """Project rows ``ids``: centre, W about it, where alpha ≥ 1/255, depth, normal towards the camera, colour."""
    n_chunks = 64
    for chunk in prange(n_chunks):
        basis = np.empty(16)
        for i in range(len(ids) * chunk // n_chunks, len(ids) * (chunk + 1) // n_chunks):
            n = ids[i]
            mean, q = row(means, n), quaternion(quats, n)
            rot = rotation(q[0], q[1], q[2], q[3])
            m, (x, y, z) = transform(camera, mean, rot, np.float64(scales[n, 0]), np.float64(scales[n, 1]))
            u, v = center(m)
            m = about(m, u, v)
            w = inverse(m)
            r = region(m, np.float64(opacities[n]))
            means2d[i, 0], means2d[i, 1], depths[i] = u, v, z
            for k in range(3):
                inverses[i, k, 0], inverses[i, k, 1], inverses[i, k, 2] = w[3 * k], w[3 * k + 1], w[3 * k + 2]
            regions[i, 0], regions[i, 1], regions[i, 2], regions[i, 3], regions[i, 4] = r
            nx = camera[0] * rot[2] + camera[1] * rot[5] + camera[2] * rot[8]
            ny = camera[3] * rot[2] + camera[4] * rot[5] + camera[5] * rot[8]
            nz = camera[6] * rot[2] + camera[7] * rot[5] + camera[8] * rot[8]
            sign = -1.0 if nx * x + ny * y + nz * z > 0.0 else 1.0
            normals[i, 0], normals[i, 1], normals[i, 2] = sign * nx, sign * ny, sign * nz
            dx, dy, dz, _ = direction(camera, mean[0], mean[1], mean[2])
            sh_basis(degree, dx, dy, dz, basis)
            red = green = blue = 0.5
            for k in range((degree + 1) * (degree + 1)):
                red += basis[k] * sh[n, k, 0]
                green += basis[k] * sh[n, k, 1]
                blue += basis[k] * sh[n, k, 2]
            colors[i, 0], colors[i, 1], colors[i, 2] = max(red, 0.0), max(green, 0.0), max(blue, 0.0)


@register_jitable(error_model="numpy")
def transform_vjp(m, v_w, v_x, v_y):
    """Return the gradient of M (9) from those of W about the centre, and of the centre at fixed W."""
    x, y = center(m)
    n = about(m, x, y)
    w = inverse(n)
    # The centre as origin of W's pixels: ∂W/∂x has W's first column in its last.
    v_x += w[0] * v_w[2] + w[3] * v_w[5] + w[6] * v_w[8]
    v_y += w[1] * v_w[2] + w[4] * v_w[5] + w[7] * v_w[8]
    # dL/dN = −Wᵀ V Wᵀ
    t = (v_w[0] * w[0] + v_w[1] * w[1] + v_w[2] * w[2], v_w[0] * w[3] + v_w[1] * w[4] + v_w[2] * w[5],
         v_w[0] * w[6] + v_w[1] * w[7] + v_w[2] * w[8], v_w[3] * w[0] + v_w[4] * w[1] + v_w[5] * w[2],
         v_w[3] * w[3] + v_w[4] * w[4] + v_w[5] * w[5], v_w[3] * w[6] + v_w[4] * w[7] + v_w[5] * w[8],
         v_w[6] * w[0] + v_w[7] * w[1] + v_w[8] * w[2], v_w[6] * w[3] + v_w[7] * w[4] + v_w[8] * w[5],
         v_w[6] * w[6] + v_w[7] * w[7] + v_w[8] * w[8])
    a0, a1, a2 = (-(w[0] * t[0] + w[3] * t[3] + w[6] * t[6]), -(w[0] * t[1] + w[3] * t[4] + w[6] * t[7]),
                  -(w[0] * t[2] + w[3] * t[5] + w[6] * t[8]))
    b0, b1, b2 = (-(w[1] * t[0] + w[4] * t[3] + w[7] * t[6]), -(w[1] * t[1] + w[4] * t[4] + w[7] * t[7]),
                  -(w[1] * t[2] + w[4] * t[5] + w[7] * t[8]))
    c0, c1, c2 = (-(w[2] * t[0] + w[5] * t[3] + w[8] * t[6]), -(w[2] * t[1] + w[5] * t[4] + w[8] * t[7]),
                  -(w[2] * t[2] + w[5] * t[5] + w[8] * t[8]))
    # N = M about the centre
    c0, c1, c2 = c0 - x * a0 - y * b0, c1 - x * a1 - y * b1, c2 - x * a2 - y * b2
    # The centre itself: x = Σ ± M_x M_w / d, d = Σ ± M_w²
    d = m[6] * m[6] + m[7] * m[7] - m[8] * m[8]
    v_x, v_y = v_x / d, v_y / d
    a0, a1, a2 = a0 + m[6] * v_x, a1 + m[7] * v_x, a2 - m[8] * v_x
    b0, b1, b2 = b0 + m[6] * v_y, b1 + m[7] * v_y, b2 - m[8] * v_y
    both = x * v_x + y * v_y
    c0 += m[0] * v_x + m[3] * v_y - 2.0 * m[6] * both
    c1 += m[1] * v_x + m[4] * v_y - 2.0 * m[7] * both
    c2 += -(m[2] * v_x + m[5] * v_y) + 2.0 * m[8] * both
    return a0, a1, a2, b0, b1, b2, c0, c1, c2


@njit(parallel=True, error_model="numpy", nogil=True, cache=True)
def project_vjp(camera, ids, means, quats, scales, sh, degree, colors, v_means2d, v_inverses, v_depths, v_normals,
                v_colors, v_means, v_quats, v_scales, v_sh):
    """Gradients of rows ``ids`` from those of their splats; ``v_sh`` is (M, (degree+1)², 3)."""
    n_chunks = 64
    for chunk in prange(n_chunks):
        basis, v_basis = np.empty(16), np.empty(16)
        for i in range(len(ids) * chunk // n_chunks, len(ids) * (chunk + 1) // n_chunks):
            n = ids[i]
            mean, q = row(means, n), quaternion(quats, n)
            su, sv = np.float64(scales[n, 0]), np.float64(scales[n, 1])
            rot = rotation(q[0], q[1], q[2], q[3])
            m, (x, y, z) = transform(camera, mean, rot, su, sv)
            v_w = row(v_inverses[i], 0) + row(v_inverses[i], 1) + row(v_inverses[i], 2)
            vm = transform_vjp(m, v_w, np.float64(v_means2d[i, 0]), np.float64(v_means2d[i, 1]))
            # from M = K [s_u R t_u, s_v R t_v, p] to camera coordinates
            fx, fy, cx, cy = camera[12], camera[13], camera[14], camera[15]
            ux, uy, uz = fx * vm[0], fy * vm[3], cx * vm[0] + cy * vm[3] + vm[6]
            vx, vy, vz = fx * vm[1], fy * vm[4], cx * vm[1] + cy * vm[4] + vm[7]
            px, py, pz = fx * vm[2], fy * vm[5], cx * vm[2] + cy * vm[5] + vm[8] + np.float64(v_depths[i])
            # to world coordinates: gradients of s_u t_u, s_v t_v and the mean
            tu0, tu1, tu2 = (camera[0] * ux + camera[3] * uy + camera[6] * uz,
                             camera[1] * ux + camera[4] * uy + camera[7] * uz,
                             camera[2] * ux + camera[5] * uy + camera[8] * uz)
            tv0, tv1, tv2 = (camera[0] * vx + camera[3] * vy + camera[6] * vz,
                             camera[1] * vx + camera[4] * vy + camera[7] * vz,
                             camera[2] * vx + camera[5] * vy + camera[8] * vz)
            v_scales[i, 0] = rot[0] * tu0 + rot[3] * tu1 + rot[6] * tu2
            v_scales[i, 1] = rot[1] * tv0 + rot[4] * tv1 + rot[7] * tv2
            nx = camera[0] * rot[2] + camera[1] * rot[5] + camera[2] * rot[8]
            ny = camera[3] * rot[2] + camera[4] * rot[5] + camera[5] * rot[8]
            nz = camera[6] * rot[2] + camera[7] * rot[5] + camera[8] * rot[8]
            sign = -1.0 if nx * x + ny * y + nz * z > 0.0 else 1.0
            gx, gy, gz = (sign * np.float64(v_normals[i, 0]), sign * np.float64(v_normals[i, 1]),
                          sign * np.float64(v_normals[i, 2]))
            v_rot = (su * tu0, sv * tv0, camera[0] * gx + camera[3] * gy + camera[6] * gz,
                     su * tu1, sv * tv1, camera[1] * gx + camera[4] * gy + camera[7] * gz,
                     su * tu2, sv * tv2, camera[2] * gx + camera[5] * gy + camera[8] * gz)
            v_quats[i, 0], v_quats[i, 1], v_quats[i, 2], v_quats[i, 3] = rotation_vjp(q[0], q[1], q[2], q[3], v_rot)
            # colour: masked where it was clamped at zero
            dx, dy, dz, r = direction(camera, mean[0], mean[1], mean[2])
            sh_basis(degree, dx, dy, dz, basis)
            red = np.float64(v_colors[i, 0]) if colors[i, 0] > 0 else 0.0
            green = np.float64(v_colors[i, 1]) if colors[i, 1] > 0 else 0.0
            blue = np.float64(v_colors[i, 2]) if colors[i, 2] > 0 else 0.0
            for k in range((degree + 1) * (degree + 1)):
                v_sh[i, k, 0], v_sh[i, k, 1], v_sh[i, k, 2] = basis[k] * red, basis[k] * green, basis[k] * blue
                v_basis[k] = sh[n, k, 0] * red + sh[n, k, 1] * green + sh[n, k, 2] * blue
            sx, sy, sz = sh_direction_vjp(degree, dx, dy, dz, v_basis)
            along = sx * dx + sy * dy + sz * dz
            v_means[i, 0] = camera[0] * px + camera[3] * py + camera[6] * pz + (sx - along * dx) * r
            v_means[i, 1] = camera[1] * px + camera[4] * py + camera[7] * pz + (sy - along * dy) * r
            v_means[i, 2] = camera[2] * px + camera[5] * py + camera[8] * pz + (sz - along * dz) * r
