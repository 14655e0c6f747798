"""Kernels of smooth convexes on CPU cores: projection of the hull and its vjp, and the functions of the compositor.

A splat is up to :data:`N_EDGES` half-planes A_j(q) = a_j·(q_x − x₀) + b_j·(q_y − y₀) + c_j, negative inside, about the
projected centre (x₀, y₀), with depth and smoothness already in them: A_j = z·δ·L_j (Held et al. 2024, equations 1–3).
φ = log Σ exp A_j, and alpha = o / (1 + exp(s·φ)), s = z·σ.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from numba.extending import register_jitable

from ..compositing.lanes import exp_nonpositive, fma, log_positive
from ..projection import direction, in_depth, to_camera, to_screen
from ..sh import sh_basis, sh_direction_vjp

N_EDGES = 6
N_GEOMETRY = 23  # centre (2), edges (6 × 3), sharpness, opacity, φ where alpha falls to 1/255
N_MOMENTS = 2 + 3 * N_EDGES
Z_MIN = 1e-3  # a convex with a vertex this near the camera's plane is left out
RADIUS_MAX = 1e4  # pixels; as the released code
COS_SHARP, COS_FLAT = np.cos(3.0), np.cos(0.1)
ABSENT = -1e9  # of c_j where a hull has fewer edges: its exponential is zero

_ZERO, _ONE, _HALF = np.float32(0.0), np.float32(1.0), np.float32(0.5)
_SLACK = np.float32(0.02)
_FLAT = np.float32(1e-6)


@register_jitable(error_model="numpy")
def load(table, s):
    """Read a splat: centre, edges, sharpness, opacity, and the φ where alpha is 1/255."""
    return (table[s, 0], table[s, 1], table[s, 2], table[s, 3], table[s, 4], table[s, 5], table[s, 6], table[s, 7],
            table[s, 8], table[s, 9], table[s, 10], table[s, 11], table[s, 12], table[s, 13], table[s, 14],
            table[s, 15], table[s, 16], table[s, 17], table[s, 18], table[s, 19], table[s, 20], table[s, 21],
            table[s, 22])


@register_jitable(error_model="numpy")
def _narrow(a, b, c, limit, left, right, low, high):
    """Cut the heights [low, high] to those where a·x + b·y + c ≤ limit for some x in [left, right]."""
    least = limit - c - min(a * left, a * right)  # of b·y, at most
    if b > _FLAT:
        high = min(high, least / b)
    elif b < -_FLAT:
        low = max(low, least / b)
    elif least < -np.float32(1e3) * _FLAT - np.float32(1e-4) * abs(limit - c):
        high = low - _ONE
    return low, high


@register_jitable(error_model="numpy")
def span(p, x0, x1):
    """Return heights that hold every alpha ≥ 1/255 over [x0, x1]: there all A_j ≤ φ lie below the φ of 1/255."""
    left, right = x0 - p[0], x1 - p[0]
    low, high = np.float32(-1e6), np.float32(1e6)
    limit = p[22]
    low, high = _narrow(p[2], p[3], p[4], limit, left, right, low, high)
    low, high = _narrow(p[5], p[6], p[7], limit, left, right, low, high)
    low, high = _narrow(p[8], p[9], p[10], limit, left, right, low, high)
    low, high = _narrow(p[11], p[12], p[13], limit, left, right, low, high)
    low, high = _narrow(p[14], p[15], p[16], limit, left, right, low, high)
    low, high = _narrow(p[17], p[18], p[19], limit, left, right, low, high)
    if high < low - _SLACK:
        return _ZERO, -_HALF
    return p[1] + low - _SLACK, p[1] + high + _SLACK


@register_jitable(error_model="numpy", forceinline=True)
def planes_at(p, px, py):
    """Return the six A_j at a pixel, its place about the centre, and their maximum."""
    x, y = px - p[0], py - p[1]
    a0 = fma(p[2], x, fma(p[3], y, p[4]))
    a1 = fma(p[5], x, fma(p[6], y, p[7]))
    a2 = fma(p[8], x, fma(p[9], y, p[10]))
    a3 = fma(p[11], x, fma(p[12], y, p[13]))
    a4 = fma(p[14], x, fma(p[15], y, p[16]))
    a5 = fma(p[17], x, fma(p[18], y, p[19]))
    return a0, a1, a2, a3, a4, a5, x, y, max(max(max(a0, a1), max(a2, a3)), max(a4, a5))


@register_jitable(error_model="numpy", forceinline=True)
def alpha(p, px, py):
    """Return o / (1 + exp(s·φ))."""
    a0, a1, a2, a3, a4, a5, _, _, top = planes_at(p, px, py)
    total = (exp_nonpositive(a0 - top) + exp_nonpositive(a1 - top) + exp_nonpositive(a2 - top)
             + exp_nonpositive(a3 - top) + exp_nonpositive(a4 - top) + exp_nonpositive(a5 - top))
    x = p[20] * (top + log_positive(total))
    e = exp_nonpositive(-abs(x))
    return p[21] * (e if x > _ZERO else _ONE) / (_ONE + e)


@register_jitable(error_model="numpy", forceinline=True)  # else too large to be, and the loop over pixels stays scalar
def moments(p, px, py, g):
    """Return g, then h·φ, then h·w_j times 1, x and y for every edge; h = −g·(1 − I), w = softmax A."""
    a0, a1, a2, a3, a4, a5, dx, dy, top = planes_at(p, px, py)
    w0, w1, w2 = exp_nonpositive(a0 - top), exp_nonpositive(a1 - top), exp_nonpositive(a2 - top)
    w3, w4, w5 = exp_nonpositive(a3 - top), exp_nonpositive(a4 - top), exp_nonpositive(a5 - top)
    total = w0 + w1 + w2 + w3 + w4 + w5
    phi = top + log_positive(total)
    x = p[20] * phi
    e = exp_nonpositive(-abs(x))
    h = -g * (_ONE if x > _ZERO else e) / (_ONE + e)
    f = h / total
    w0, w1, w2, w3, w4, w5 = f * w0, f * w1, f * w2, f * w3, f * w4, f * w5
    return (g, h * phi, w0, w0 * dx, w0 * dy, w1, w1 * dx, w1 * dy, w2, w2 * dx, w2 * dy, w3, w3 * dx, w3 * dy,
            w4, w4 * dx, w4 * dy, w5, w5 * dx, w5 * dy)


@njit(parallel=True, error_model="numpy", nogil=True, cache=True)
def pack(centers, edges, sharpness, opacities, colors, depths, table):
    """Lay splats out for the compositor: 23 columns of geometry, the colour and the depth."""
    for s in prange(len(depths)):
        table[s, 0], table[s, 1] = centers[s, 0], centers[s, 1]
        for j in range(N_EDGES):
            for k in range(3):
                table[s, 2 + 3 * j + k] = edges[s, j, k]
        table[s, 20], table[s, 21] = sharpness[s], opacities[s]
        table[s, 22] = limit_of(np.float64(opacities[s]), np.float64(sharpness[s]))
        for k in range(3):
            table[s, N_GEOMETRY + k] = colors[s, k]
        table[s, N_GEOMETRY + 3] = depths[s]


@register_jitable(error_model="numpy")
def limit_of(opacity, sharpness):
    """Return the φ at which alpha falls to 1/255, with room for rounding; −∞ where it never reaches that."""
    odds = 255.0 * opacity - 1.0
    if odds <= 0.0:
        return -np.inf
    limit = np.log(odds) / sharpness
    return limit + 1e-3 * abs(limit) + 1e-3 / sharpness


@njit(parallel=True, error_model="numpy", nogil=True, cache=True)
def finish(table, sums, v_edges, v_sharpness, v_opacities, v_colors, v_depths, v_means2d):
    """Turn summed moments (M, ·) into gradients of the splat fields, and of a shift of the whole splat."""
    for s in prange(len(sums)):
        v_opacities[s] = sums[s, 0] / table[s, 21] if table[s, 21] > _ZERO else _ZERO
        v_sharpness[s] = sums[s, 1]
        sharp, x, y = table[s, 20], _ZERO, _ZERO
        for j in range(N_EDGES):
            v_edges[s, j, 0] = sharp * sums[s, 3 + 3 * j]
            v_edges[s, j, 1] = sharp * sums[s, 4 + 3 * j]
            v_edges[s, j, 2] = sharp * sums[s, 2 + 3 * j]
            x -= table[s, 2 + 3 * j] * v_edges[s, j, 2]
            y -= table[s, 3 + 3 * j] * v_edges[s, j, 2]
        v_means2d[s, 0], v_means2d[s, 1] = x, y
        for k in range(3):
            v_colors[s, k] = sums[s, N_MOMENTS + k]
        v_depths[s] = sums[s, N_MOMENTS + 3] if sums.shape[1] > N_MOMENTS + 3 else _ZERO


@register_jitable(error_model="numpy")
def middle(points, n):
    """Return the mean of a convex's points in the world."""
    x = y = z = 0.0
    count = points.shape[1]
    for k in range(count):
        x += np.float64(points[n, k, 0])
        y += np.float64(points[n, k, 1])
        z += np.float64(points[n, k, 2])
    return x / count, y / count, z / count


@register_jitable(error_model="numpy")
def turn(p, a, b, c):
    """Return twice the signed area of the triangle of points a, b, c."""
    return (p[b, 0] - p[a, 0]) * (p[c, 1] - p[a, 1]) - (p[b, 1] - p[a, 1]) * (p[c, 0] - p[a, 0])


@register_jitable(error_model="numpy")
def convex_hull(p, count, order, hull):
    """Write the hull of p (count, 2) to ``hull`` in positive orientation from the lowest (y, x); return its length."""
    for i in range(count):
        j = i
        while j > 0 and (p[i, 1] < p[order[j - 1], 1]
                         or (p[i, 1] == p[order[j - 1], 1] and p[i, 0] < p[order[j - 1], 0])):
            order[j] = order[j - 1]
            j -= 1
        order[j] = i
    m = 0
    for i in range(count):
        while m >= 2 and turn(p, hull[m - 2], hull[m - 1], order[i]) <= 0.0:
            m -= 1
        hull[m] = order[i]
        m += 1
    base = m
    for i in range(count - 2, -1, -1):
        while m > base and turn(p, hull[m - 2], hull[m - 1], order[i]) <= 0.0:
            m -= 1
        hull[m] = order[i]
        m += 1
    return m - 1


@register_jitable(error_model="numpy")
def outline(camera, points, n, p, order, hull):
    """Project a convex: write its points about the projected centre to p; return centre (2), depth and hull length.

    The length is 0 where the convex is not drawn: behind the near plane, a vertex at the camera, too large, or a
    sliver without a corner between 0.1 and 3 rad (the last two as the released code).
    """
    x, y, z = middle(points, n)
    x, y, z = to_camera(camera, x, y, z)
    if not in_depth(camera, z):
        return 0.0, 0.0, z, 0
    u, v = to_screen(camera, x, y, z)
    count, far = points.shape[1], 0.0
    for k in range(count):
        px, py, pz = to_camera(camera, np.float64(points[n, k, 0]), np.float64(points[n, k, 1]),
                               np.float64(points[n, k, 2]))
        if not pz > Z_MIN:
            return u, v, z, 0
        a, b = to_screen(camera, px, py, pz)
        p[k, 0], p[k, 1] = a - u, b - v
        far = max(far, p[k, 0] * p[k, 0] + p[k, 1] * p[k, 1])
    if not far <= RADIUS_MAX * RADIUS_MAX:
        return u, v, z, 0
    m = convex_hull(p, count, order, hull)
    if m < 3:
        return u, v, z, 0
    for j in range(1, m):
        a, b, c = hull[j - 1], hull[j], hull[(j + 1) % m]
        ax, ay, bx, by = p[b, 0] - p[a, 0], p[b, 1] - p[a, 1], p[c, 0] - p[b, 0], p[c, 1] - p[b, 1]
        cosine = (ax * bx + ay * by) / np.sqrt((ax * ax + ay * ay) * (bx * bx + by * by))
        if COS_SHARP < cosine < COS_FLAT:
            return u, v, z, m
    return u, v, z, 0


@register_jitable(error_model="numpy")
def edge(p, a, b, by_length):
    """Return outward normal and offset of the edge from point a to b, and what normals are divided by."""
    nx, ny = p[b, 1] - p[a, 1], p[a, 0] - p[b, 0]
    length = np.sqrt(nx * nx + ny * ny) if by_length else 1.0
    nx, ny = nx / length, ny / length
    return nx, ny, -(nx * p[a, 0] + ny * p[a, 1]), length


@register_jitable(error_model="numpy")
def extent(p, hull, m, k, by_length, limit, box):
    """Write to ``box`` (4) the bounds, about the centre, of where all k·L_j ≤ limit; tell whether there are any."""
    box[0], box[1], box[2], box[3] = np.inf, np.inf, -np.inf, -np.inf
    for i in range(m):
        ax, ay, ac, _ = edge(p, hull[i], hull[(i + 1) % m], by_length)
        for j in range(i + 1, m):
            bx, by, bc, _ = edge(p, hull[j], hull[(j + 1) % m], by_length)
            det = ax * by - ay * bx
            if abs(det) < 1e-12 * (abs(ax) + abs(ay)) * (abs(bx) + abs(by)):
                continue
            ra, rb = limit / k - ac, limit / k - bc
            x, y = (ra * by - ay * rb) / det, (ax * rb - ra * bx) / det
            inside = True
            for e in range(m):
                cx, cy, cc, _ = edge(p, hull[e], hull[(e + 1) % m], by_length)
                size = abs(cx * x) + abs(cy * y) + abs(cc)
                inside &= k * (cx * x + cy * y + cc) <= limit + 1e-9 * (k * size + abs(limit))
            if inside:
                box[0], box[1] = min(box[0], x), min(box[1], y)
                box[2], box[3] = max(box[2], x), max(box[3], y)
    return box[0] <= box[2]


@njit(parallel=True, error_model="numpy", nogil=True, cache=True)
def visible(camera, points, delta, sigma, opacities, by_length, mask):
    """Mark the convexes (N,) of which some alpha ≥ 1/255 may lie on the picture."""
    n_chunks = 64
    width, height = camera[16], camera[17]
    for chunk in prange(n_chunks):
        p, box = np.empty((N_EDGES, 2)), np.empty(4)
        order, hull = np.empty(N_EDGES, np.int64), np.empty(2 * N_EDGES + 1, np.int64)
        for n in range(len(points) * chunk // n_chunks, len(points) * (chunk + 1) // n_chunks):
            u, v, z, m = outline(camera, points, n, p, order, hull)
            mask[n] = False
            if m:
                limit = limit_of(np.float64(opacities[n]), z * np.float64(sigma[n]))
                if limit > -np.inf and extent(p, hull, m, z * np.float64(delta[n]), by_length, limit, box):
                    mask[n] = u + box[2] > 0 and u + box[0] < width and v + box[3] > 0 and v + box[1] < height


@njit(parallel=True, error_model="numpy", nogil=True, cache=True)
def project(camera, ids, points, delta, sigma, opacities, sh, degree, by_length, centers, edges, sharpness, depths,
            colors, extents):
    """Project rows ``ids``: centre, edges, sharpness, depth, colour, and where alpha ≥ 1/255 (4, about the centre)."""
    n_chunks = 64
    for chunk in prange(n_chunks):
        p, box, basis = np.empty((N_EDGES, 2)), np.empty(4), np.empty(16)
        order, hull = np.empty(N_EDGES, np.int64), np.empty(2 * N_EDGES + 1, np.int64)
        for i in range(len(ids) * chunk // n_chunks, len(ids) * (chunk + 1) // n_chunks):
            n = ids[i]
            u, v, z, m = outline(camera, points, n, p, order, hull)
            k = z * np.float64(delta[n])
            centers[i, 0], centers[i, 1], depths[i], sharpness[i] = u, v, z, z * np.float64(sigma[n])
            for j in range(N_EDGES):
                edges[i, j, 0], edges[i, j, 1], edges[i, j, 2] = 0.0, 0.0, ABSENT
            for j in range(m):
                nx, ny, d, _ = edge(p, hull[j], hull[(j + 1) % m], by_length)
                edges[i, j, 0], edges[i, j, 1], edges[i, j, 2] = k * nx, k * ny, k * d
            limit = limit_of(np.float64(opacities[n]), z * np.float64(sigma[n]))
            if not (m and limit > -np.inf and extent(p, hull, m, k, by_length, limit, box)):
                box[:] = 0.0
            extents[i, 0], extents[i, 1], extents[i, 2], extents[i, 3] = box[0], box[1], box[2], box[3]
            x, y, w = middle(points, n)
            dx, dy, dz, _ = direction(camera, x, y, w)
            sh_basis(degree, dx, dy, dz, basis)
            r = g = b = 0.5
            for c in range((degree + 1) * (degree + 1)):
                r += basis[c] * sh[n, c, 0]
                g += basis[c] * sh[n, c, 1]
                b += basis[c] * sh[n, c, 2]
            colors[i, 0], colors[i, 1], colors[i, 2] = max(r, 0.0), max(g, 0.0), max(b, 0.0)


@njit(parallel=True, error_model="numpy", nogil=True, cache=True)
def project_vjp(camera, ids, points, delta, sigma, sh, degree, by_length, through_depth, colors, v_edges, v_sharpness,
                v_depths, v_colors, v_points, v_delta, v_sigma, v_sh):
    """Take gradients of splats back; ``through_depth`` also through the depth inside φ and the indicator."""
    n_chunks = 64
    count = points.shape[1]
    for chunk in prange(n_chunks):
        p, v_p, basis, v_basis = np.empty((N_EDGES, 2)), np.empty((N_EDGES, 2)), np.empty(16), np.empty(16)
        order, hull = np.empty(N_EDGES, np.int64), np.empty(2 * N_EDGES + 1, np.int64)
        for i in range(len(ids) * chunk // n_chunks, len(ids) * (chunk + 1) // n_chunks):
            n = ids[i]
            _, _, z, m = outline(camera, points, n, p, order, hull)
            k, v_k = z * np.float64(delta[n]), 0.0
            v_p[:] = 0.0
            for j in range(m):
                a, b = hull[j], hull[(j + 1) % m]
                nx, ny, d, length = edge(p, a, b, by_length)
                va, vb, vc = np.float64(v_edges[i, j, 0]), np.float64(v_edges[i, j, 1]), np.float64(v_edges[i, j, 2])
                v_k += nx * va + ny * vb + d * vc
                v_nx, v_ny = k * (va - p[a, 0] * vc), k * (vb - p[a, 1] * vc)
                v_p[a, 0] -= k * vc * nx
                v_p[a, 1] -= k * vc * ny
                if by_length:
                    along = nx * v_nx + ny * v_ny
                    v_nx, v_ny = (v_nx - along * nx) / length, (v_ny - along * ny) / length
                v_p[b, 1] += v_nx
                v_p[a, 1] -= v_nx
                v_p[a, 0] += v_ny
                v_p[b, 0] -= v_ny
            v_s = np.float64(v_sharpness[i])
            v_delta[i], v_sigma[i] = z * v_k, z * v_s
            v_z = np.float64(v_depths[i])
            if through_depth:
                v_z += np.float64(delta[n]) * v_k + np.float64(sigma[n]) * v_s
            # colour: masked where it was clamped at zero; its direction moves with the mean of the points
            x, y, w = middle(points, n)
            dx, dy, dz, r = direction(camera, x, y, w)
            sh_basis(degree, dx, dy, dz, basis)
            vr = np.float64(v_colors[i, 0]) if colors[i, 0] > 0 else 0.0
            vg = np.float64(v_colors[i, 1]) if colors[i, 1] > 0 else 0.0
            vb = np.float64(v_colors[i, 2]) if colors[i, 2] > 0 else 0.0
            for c in range((degree + 1) * (degree + 1)):
                v_sh[i, c, 0], v_sh[i, c, 1], v_sh[i, c, 2] = basis[c] * vr, basis[c] * vg, basis[c] * vb
                v_basis[c] = sh[n, c, 0] * vr + sh[n, c, 1] * vg + sh[n, c, 2] * vb
            ux, uy, uz = sh_direction_vjp(degree, dx, dy, dz, v_basis)
            along = ux * dx + uy * dy + uz * dz
            mx = ((ux - along * dx) * r + camera[6] * v_z) / count
            my = ((uy - along * dy) * r + camera[7] * v_z) / count
            mz = ((uz - along * dz) * r + camera[8] * v_z) / count
            for e in range(count):
                qx, qy, qz = to_camera(camera, np.float64(points[n, e, 0]), np.float64(points[n, e, 1]),
                                       np.float64(points[n, e, 2]))
                fx, fy = camera[12] / qz, camera[13] / qz
                cx, cy = fx * v_p[e, 0], fy * v_p[e, 1]
                cz = -(fx * qx * v_p[e, 0] + fy * qy * v_p[e, 1]) / qz
                v_points[i, e, 0] = camera[0] * cx + camera[3] * cy + camera[6] * cz + mx
                v_points[i, e, 1] = camera[1] * cx + camera[4] * cy + camera[7] * cz + my
                v_points[i, e, 2] = camera[2] * cx + camera[5] * cy + camera[8] * cz + mz
