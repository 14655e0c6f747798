"""Kernels of 4D Gaussians on CPU cores: the slice of a Gaussian at a time, cull, splat and its vjp.

A 4D Gaussian's covariance is M Mᵀ, M = R·diag(s): rows A (3×4) for space and b (4) for time. At a time it is the 3D
Gaussian with mean μ + Σ₁₂ dt/Σ_tt and covariance Σ₁₁ − Σ₁₂ Σ₁₂ᵀ/Σ_tt (Yang et al. 2024, section 3.2). The latter is
A P Aᵀ, P the projection onto what is orthogonal to b. With Q (4×3) an orthonormal basis of that, from a Householder
reflection of b, it is (A Q)(A Q)ᵀ: a square root, so that no difference of covariances cancels.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from numba.extending import register_jitable

from ..gaussian3d.cpu import quaternion, row
from ..projection import direction, in_view, rotation, rotation_vjp, to_splat, to_splat_vjp
from ..sh import sh_basis, sh_direction_vjp

WEIGHT_MIN = 0.05  # a Gaussian of less weight at a time is left out there
N_MATRIX = 16


@register_jitable(error_model="numpy")
def product(a, b):
    """Return the product of two quaternions wxyz."""
    return (a[0] * b[0] - a[1] * b[1] - a[2] * b[2] - a[3] * b[3],
            a[0] * b[1] + a[1] * b[0] + a[2] * b[3] - a[3] * b[2],
            a[0] * b[2] - a[1] * b[3] + a[2] * b[0] + a[3] * b[1],
            a[0] * b[3] + a[1] * b[2] - a[2] * b[1] + a[3] * b[0])


@register_jitable(error_model="numpy")
def conjugate(a):
    """Return the conjugate of a quaternion."""
    return a[0], -a[1], -a[2], -a[3]


@register_jitable(error_model="numpy")
def unit(a):
    """Return the quaternion normalised, and its inverse norm."""
    r = 1.0 / np.sqrt(a[0] * a[0] + a[1] * a[1] + a[2] * a[2] + a[3] * a[3])
    return (a[0] * r, a[1] * r, a[2] * r, a[3] * r), r


@register_jitable(error_model="numpy")
def unit_vjp(u, r, v):
    """Return the gradient of a stored quaternion from that of the normalised one ``u``."""
    along = u[0] * v[0] + u[1] * v[1] + u[2] * v[2] + u[3] * v[3]
    return (v[0] - along * u[0]) * r, (v[1] - along * u[1]) * r, (v[2] - along * u[2]) * r, (v[3] - along * u[3]) * r


@register_jitable(error_model="numpy")
def basis_quaternion(axis):
    """Return what stands for the unit vector along x, y, z or t: k, j, i or 1."""
    return (1.0 if axis == 3 else 0.0, 1.0 if axis == 2 else 0.0, 1.0 if axis == 1 else 0.0, 1.0 if axis == 0 else 0.0)


@register_jitable(error_model="numpy")
def rotation4(left, right, matrix):
    """Write the rotation v → l·v·r̄ of space-time (x, y, z, t), for unit quaternions, to ``matrix`` (16), row by row."""
    end = conjugate(right)
    for axis in range(4):
        image = product(product(left, basis_quaternion(axis)), end)
        for i in range(4):
            matrix[4 * i + axis] = image[3 - i]


@register_jitable(error_model="numpy")
def rotation4_vjp(left, right, v):
    """Return the gradients of the two unit quaternions from that of the matrix, ``v`` (16)."""
    l0 = l1 = l2 = l3 = r0 = r1 = r2 = r3 = 0.0
    for axis in range(4):
        e = basis_quaternion(axis)
        v_image = (v[12 + axis], v[8 + axis], v[4 + axis], v[axis])
        half = product(left, e)
        v_half = product(v_image, right)
        v_left = product(v_half, conjugate(e))
        v_end = product(conjugate(half), v_image)
        l0, l1, l2, l3 = l0 + v_left[0], l1 + v_left[1], l2 + v_left[2], l3 + v_left[3]
        r0, r1, r2, r3 = r0 + v_end[0], r1 - v_end[1], r2 - v_end[2], r3 - v_end[3]
    return (l0, l1, l2, l3), (r0, r1, r2, r3)


@register_jitable(error_model="numpy")
def weight(variance, dt, blur):
    """Return the unnormalised marginal at distance ``dt`` in time."""
    return np.exp(-0.5 * dt * dt / (variance + blur))


@register_jitable(error_model="numpy")
def complement(m, tt):
    """Return (9 values, row by row) A·Q of M (16), Q (4×3) orthonormal and orthogonal to M's last row b, b·b = tt.

    Q is the first three columns of 1 − v vᵀ/(1 + |u₃|), v = u + sign(u₃)·e₃, u = b/|b|, which reflects u to ∓e₃.
    """
    r = 1.0 / np.sqrt(tt)
    u0, u1, u2, u3 = m[12] * r, m[13] * r, m[14] * r, m[15] * r
    v3 = u3 + (1.0 if u3 >= 0 else -1.0)
    f = 1.0 / (1.0 + abs(u3))
    d0 = f * (m[0] * u0 + m[1] * u1 + m[2] * u2 + m[3] * v3)
    d1 = f * (m[4] * u0 + m[5] * u1 + m[6] * u2 + m[7] * v3)
    d2 = f * (m[8] * u0 + m[9] * u1 + m[10] * u2 + m[11] * v3)
    return (m[0] - d0 * u0, m[1] - d0 * u1, m[2] - d0 * u2, m[4] - d1 * u0, m[5] - d1 * u1, m[6] - d1 * u2,
            m[8] - d2 * u0, m[9] - d2 * u1, m[10] - d2 * u2)


@register_jitable(error_model="numpy")
def complement_vjp(m, tt, v, v_m):
    """Add to ``v_m`` (16) the gradient of M from that of A·Q, ``v`` (9), of which only (A Q)(A Q)ᵀ matters.

    The gradient of A is v Qᵀ; that of b, which turns Q, is −(v Qᵀ)ᵀ Σ₁₂/Σ_tt.
    """
    r = 1.0 / np.sqrt(tt)
    u0, u1, u2, u3 = m[12] * r, m[13] * r, m[14] * r, m[15] * r
    v3 = u3 + (1.0 if u3 >= 0 else -1.0)
    f = 1.0 / (1.0 + abs(u3))
    for i in range(3):
        a, b, c = v[3 * i], v[3 * i + 1], v[3 * i + 2]
        d = f * (a * u0 + b * u1 + c * u2)
        w0, w1, w2, w3 = a - d * u0, b - d * u1, c - d * u2, -d * v3
        v_m[4 * i] += w0
        v_m[4 * i + 1] += w1
        v_m[4 * i + 2] += w2
        v_m[4 * i + 3] += w3
        s = (m[4 * i] * m[12] + m[4 * i + 1] * m[13] + m[4 * i + 2] * m[14] + m[4 * i + 3] * m[15]) / tt
        v_m[12] -= w0 * s
        v_m[13] -= w1 * s
        v_m[14] -= w2 * s
        v_m[15] -= w3 * s


@register_jitable(error_model="numpy")
def scaled(matrix, s, st):
    """Multiply the columns of ``matrix`` (16) by the scales, in place."""
    for i in range(4):
        matrix[4 * i] *= s[0]
        matrix[4 * i + 1] *= s[1]
        matrix[4 * i + 2] *= s[2]
        matrix[4 * i + 3] *= st


@register_jitable(error_model="numpy")
def cut(mean, dt, s, st, left, right, rotates_time, matrix):
    """Return mean, square root of the covariance (9), axis scales and temporal variance at a time; fills ``matrix``."""
    if not rotates_time:
        return mean, rotation(left[0], left[1], left[2], left[3]), s, st
    rotation4(unit(left)[0], unit(right)[0], matrix)
    scaled(matrix, s, st)
    m = matrix
    tt = m[12] * m[12] + m[13] * m[13] + m[14] * m[14] + m[15] * m[15]
    f = dt / tt
    moved = (mean[0] + f * (m[0] * m[12] + m[1] * m[13] + m[2] * m[14] + m[3] * m[15]),
             mean[1] + f * (m[4] * m[12] + m[5] * m[13] + m[6] * m[14] + m[7] * m[15]),
             mean[2] + f * (m[8] * m[12] + m[9] * m[13] + m[10] * m[14] + m[11] * m[15]))
    return moved, complement(m, tt), (1.0, 1.0, 1.0), tt


@njit(parallel=True, error_model="numpy", nogil=True, cache=True)
def visible(camera, time, means, times, scales, scales_t, quats_l, quats_r, opacities, eps, blur, rotates_time, mask):
    """Mark the points (N,) that weigh something at ``time`` and whose 1/255 box there meets the picture."""
    n_chunks = 64
    for chunk in prange(n_chunks):
        matrix = np.empty(N_MATRIX)
        for n in range(len(means) * chunk // n_chunks, len(means) * (chunk + 1) // n_chunks):
            dt = time - np.float64(times[n])
            mean, rot, s, variance = cut(row(means, n), dt, row(scales, n), np.float64(scales_t[n]),
                                         quaternion(quats_l, n), quaternion(quats_r, n), rotates_time, matrix)
            w = weight(variance, dt, blur)
            mask[n] = w > WEIGHT_MIN and in_view(camera, mean, rot, s[0], s[1], s[2], np.float64(opacities[n]) * w, eps,
                                                 False)


@njit(error_model="numpy", nogil=True, cache=True)
def slices(time, means, times, scales, scales_t, quats_l, quats_r, blur, rotates_time, out_means, roots, weights):
    """Write the mean (N, 3), a root of the covariance (N, 3, 3) and the weight (N,) of every point at ``time``."""
    matrix = np.empty(N_MATRIX)
    for n in range(len(means)):
        dt = time - np.float64(times[n])
        mean, rot, s, variance = cut(row(means, n), dt, row(scales, n), np.float64(scales_t[n]),
                                     quaternion(quats_l, n), quaternion(quats_r, n), rotates_time, matrix)
        weights[n] = weight(variance, dt, blur)
        for i in range(3):
            out_means[n, i] = mean[i]
            for j in range(3):
                roots[n, i, j] = rot[3 * i + j] * s[j]


@njit(error_model="numpy", nogil=True, cache=True)
def rotated(quats_l, quats_r, offsets):
    """Rotate offsets (N, 4) in space-time, in place."""
    matrix, v = np.empty(N_MATRIX), np.empty(4)
    for n in range(len(offsets)):
        rotation4(unit(quaternion(quats_l, n))[0], unit(quaternion(quats_r, n))[0], matrix)
        v[:] = offsets[n]
        for i in range(4):
            offsets[n, i] = (matrix[4 * i] * v[0] + matrix[4 * i + 1] * v[1] + matrix[4 * i + 2] * v[2]
                             + matrix[4 * i + 3] * v[3])


@njit(parallel=True, error_model="numpy", nogil=True, cache=True)
def project(camera, time, ids, means, times, scales, scales_t, quats_l, quats_r, opacities, sh, degree, degree_t,
            duration, eps, blur, rotates_time, along_slice, means2d, conics, depths, colors, out_opacities, out_radii):
    """Project rows ``ids`` as they are at ``time``: screen mean, conic, depth, colour, opacity and radii."""
    n_chunks = 64
    n_basis = (degree + 1) * (degree + 1)
    for chunk in prange(n_chunks):
        basis, matrix = np.empty(16), np.empty(N_MATRIX)
        for m in range(len(ids) * chunk // n_chunks, len(ids) * (chunk + 1) // n_chunks):
            n = ids[m]
            dt = time - np.float64(times[n])
            whole = row(means, n)
            mean, rot, s, variance = cut(whole, dt, row(scales, n), np.float64(scales_t[n]), quaternion(quats_l, n),
                                         quaternion(quats_r, n), rotates_time, matrix)
            opacity = np.float64(opacities[n]) * weight(variance, dt, blur)
            mean2d, conic, depths[m], out_opacities[m], reach = to_splat(camera, mean, rot, s[0], s[1], s[2], opacity,
                                                                         eps, False)
            means2d[m, 0], means2d[m, 1] = mean2d
            conics[m, 0], conics[m, 1], conics[m, 2] = conic
            out_radii[m, 0], out_radii[m, 1] = reach
            seen = mean if along_slice else whole
            dx, dy, dz, _ = direction(camera, seen[0], seen[1], seen[2])
            sh_basis(degree, dx, dy, dz, basis)
            r = g = b = 0.5
            for h in range(degree_t + 1):
                factor = np.cos(2.0 * np.pi * h * dt / duration)
                for k in range(n_basis):
                    c = h * n_basis + k
                    r += factor * basis[k] * sh[n, c, 0]
                    g += factor * basis[k] * sh[n, c, 1]
                    b += factor * basis[k] * sh[n, c, 2]
            colors[m, 0], colors[m, 1], colors[m, 2] = max(r, 0.0), max(g, 0.0), max(b, 0.0)


@njit(parallel=True, error_model="numpy", nogil=True, cache=True)
def project_vjp(camera, time, ids, means, times, scales, scales_t, quats_l, quats_r, opacities, sh, degree, degree_t,
                duration, eps, blur, rotates_time, along_slice, colors, v_means2d, v_conics, v_depths, v_colors,
                v_out_opacities, v_means, v_times, v_scales, v_scales_t, v_quats_l, v_quats_r, v_opacities, v_sh):
    """Take the gradients of splats back to the points; ``v_sh`` has the columns of the active harmonics only."""
    n_chunks = 64
    n_basis = (degree + 1) * (degree + 1)
    for chunk in prange(n_chunks):
        basis, v_basis, matrix, v_m = np.empty(16), np.empty(16), np.empty(N_MATRIX), np.empty(N_MATRIX)
        for m in range(len(ids) * chunk // n_chunks, len(ids) * (chunk + 1) // n_chunks):
            n = ids[m]
            dt = time - np.float64(times[n])
            whole, scale, st = row(means, n), row(scales, n), np.float64(scales_t[n])
            left, right = quaternion(quats_l, n), quaternion(quats_r, n)
            mean, rot, s, variance = cut(whole, dt, scale, st, left, right, rotates_time, matrix)
            w, opacity = weight(variance, dt, blur), np.float64(opacities[n])
            v_mean, v_s, v_rot, v_o = to_splat_vjp(
                camera, mean, rot, s[0], s[1], s[2], opacity * w, eps, False,
                (np.float64(v_means2d[m, 0]), np.float64(v_means2d[m, 1])), row(v_conics, m), np.float64(v_depths[m]),
                np.float64(v_out_opacities[m]))
            v_opacities[m] = v_o * w
            v_w = v_o * opacity * w  # with respect to log w = −dt²/(2 (variance + blur))
            v_variance = v_w * 0.5 * dt * dt / ((variance + blur) * (variance + blur))
            v_dt = -v_w * dt / (variance + blur)

            # colour: masked where it was clamped at zero
            seen = mean if along_slice else whole
            dx, dy, dz, r = direction(camera, seen[0], seen[1], seen[2])
            sh_basis(degree, dx, dy, dz, basis)
            vr = np.float64(v_colors[m, 0]) if colors[m, 0] > 0 else 0.0
            vg = np.float64(v_colors[m, 1]) if colors[m, 1] > 0 else 0.0
            vb = np.float64(v_colors[m, 2]) if colors[m, 2] > 0 else 0.0
            v_basis[:] = 0.0
            for h in range(degree_t + 1):
                turn = 2.0 * np.pi * h / duration
                factor, slope = np.cos(turn * dt), -turn * np.sin(turn * dt)
                for k in range(n_basis):
                    c = h * n_basis + k
                    v_sh[m, c, 0], v_sh[m, c, 1], v_sh[m, c, 2] = (factor * basis[k] * vr, factor * basis[k] * vg,
                                                                   factor * basis[k] * vb)
                    along = sh[n, c, 0] * vr + sh[n, c, 1] * vg + sh[n, c, 2] * vb
                    v_basis[k] += factor * along
                    v_dt += slope * basis[k] * along
            ux, uy, uz = sh_direction_vjp(degree, dx, dy, dz, v_basis)
            along = ux * dx + uy * dy + uz * dz
            v_seen = ((ux - along * dx) * r, (uy - along * dy) * r, (uz - along * dz) * r)
            if along_slice:
                v_mean = (v_mean[0] + v_seen[0], v_mean[1] + v_seen[1], v_mean[2] + v_seen[2])
                v_seen = (0.0, 0.0, 0.0)

            if rotates_time:
                v_dt += slice_vjp(matrix, dt, variance, v_mean, v_rot, v_variance, v_m)
                scale_vjp(left, right, scale, st, v_m, matrix, v_scales[m])
                v_scales_t[m] = matrix[0]
                a, ra = unit(left)
                b, rb = unit(right)
                va, vb4 = rotation4_vjp(a, b, v_m)
                q = unit_vjp(a, ra, va)
                v_quats_l[m, 0], v_quats_l[m, 1], v_quats_l[m, 2], v_quats_l[m, 3] = q
                q = unit_vjp(b, rb, vb4)
                v_quats_r[m, 0], v_quats_r[m, 1], v_quats_r[m, 2], v_quats_r[m, 3] = q
            else:
                v_scales[m, 0], v_scales[m, 1], v_scales[m, 2] = v_s
                v_scales_t[m] = v_variance
                q = rotation_vjp(left[0], left[1], left[2], left[3], v_rot)
                v_quats_l[m, 0], v_quats_l[m, 1], v_quats_l[m, 2], v_quats_l[m, 3] = q
                v_quats_r[m] = 0.0
            v_times[m] = -v_dt
            v_means[m, 0], v_means[m, 1], v_means[m, 2] = (v_mean[0] + v_seen[0], v_mean[1] + v_seen[1],
                                                           v_mean[2] + v_seen[2])


@register_jitable(error_model="numpy")
def slice_vjp(m, dt, tt, v_mean, v_root, v_tt, v_m):
    """Write the gradient of M (16) to ``v_m`` from those of the slice; return that of dt through the mean.

    The mean moves by Σ₁₂ dt/Σ_tt, Σ₁₂ = A b, Σ_tt = b·b.
    """
    for i in range(N_MATRIX):
        v_m[i] = 0.0
    complement_vjp(m, tt, v_root, v_m)
    v_dt = 0.0
    for i in range(3):
        s = m[4 * i] * m[12] + m[4 * i + 1] * m[13] + m[4 * i + 2] * m[14] + m[4 * i + 3] * m[15]
        v_dt += v_mean[i] * s / tt
        v_tt -= v_mean[i] * s * dt / (tt * tt)
        f = v_mean[i] * dt / tt
        for j in range(4):
            v_m[4 * i + j] += f * m[12 + j]
            v_m[12 + j] += f * m[4 * i + j]
    for j in range(4):
        v_m[12 + j] += 2.0 * v_tt * m[12 + j]
    return v_dt


@register_jitable(error_model="numpy")
def scale_vjp(left, right, s, st, v_m, matrix, v_scales):
    """Turn ``v_m`` from that of M = R·diag(s) into that of R; write those of the scales, time's to matrix[0]."""
    rotation4(unit(left)[0], unit(right)[0], matrix)
    v0 = v1 = v2 = v3 = 0.0
    for i in range(0, N_MATRIX, 4):
        v0 += v_m[i] * matrix[i]
        v1 += v_m[i + 1] * matrix[i + 1]
        v2 += v_m[i + 2] * matrix[i + 2]
        v3 += v_m[i + 3] * matrix[i + 3]
        v_m[i] *= s[0]
        v_m[i + 1] *= s[1]
        v_m[i + 2] *= s[2]
        v_m[i + 3] *= st
    v_scales[0], v_scales[1], v_scales[2] = v0, v1, v2
    matrix[0] = v3
