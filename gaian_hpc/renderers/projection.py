"""Projection of a 3D Gaussian to the screen and its vector–Jacobian product, one point at a time (Zwicker et al. 2001).

Scalar float64 arithmetic on float32 inputs: the point is read from memory once, so the wider type costs no time, and
needles and near-plane points keep their digits. All functions take a camera packed by :func:`pack_camera`.
"""

from __future__ import annotations

import numpy as np
from numba.extending import register_jitable

from ..arrays import View

MARGIN = 0.3  # the Jacobian is evaluated inside the view widened by this share of tan(fov/2) per side
COMPENSATION_MIN = 0.005
EXTENT_MAX = 3.33  # sigmas; √(2 ln 255) = 3.329 reaches every alpha ≥ 1/255
ALPHA_MIN = 1.0 / 255.0

# Layout of a packed camera.
_T, _FX, _FY, _CX, _CY, _W, _H, _NEAR, _FAR, _CENTER, _SIZE = 9, 12, 13, 14, 15, 16, 17, 18, 19, 20, 23


def pack_camera(view: View) -> np.ndarray:
    """Return rotation (9), translation (3), fx, fy, cx, cy, width, height, near, far and centre (3), float64."""
    camera = np.empty(_SIZE)
    camera[:_T] = view.viewmat[:3, :3].ravel()
    camera[_T:_FX] = view.viewmat[:3, 3]
    camera[_FX:_CENTER] = (view.K[0, 0], view.K[1, 1], view.K[0, 2], view.K[1, 2], view.width, view.height,
                           view.near, view.far)
    camera[_CENTER:] = np.linalg.inv(view.viewmat.astype(np.float64))[:3, 3]
    return camera


@register_jitable(error_model="numpy")
def to_camera(camera, x, y, z):
    """Return the point in camera coordinates."""
    return (camera[0] * x + camera[1] * y + camera[2] * z + camera[_T],
            camera[3] * x + camera[4] * y + camera[5] * z + camera[_T + 1],
            camera[6] * x + camera[7] * y + camera[8] * z + camera[_T + 2])


@register_jitable(error_model="numpy")
def in_depth(camera, z):
    """Tell whether camera depth ``z`` lies between the near and far planes."""
    return z > camera[_NEAR] and z <= camera[_FAR]


@register_jitable(error_model="numpy")
def rotation(qw, qx, qy, qz):
    """Return the rotation matrix of a quaternion, normalised here, row by row."""
    r = 1.0 / np.sqrt(qw * qw + qx * qx + qy * qy + qz * qz)
    w, x, y, z = qw * r, qx * r, qy * r, qz * r
    return (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
            2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
            2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y))


@register_jitable(error_model="numpy")
def rotation_vjp(qw, qx, qy, qz, v):
    """Return the gradient of a stored quaternion from that of its rotation matrix ``v`` (9 values, row by row)."""
    r = 1.0 / np.sqrt(qw * qw + qx * qx + qy * qy + qz * qz)
    w, x, y, z = qw * r, qx * r, qy * r, qz * r
    vw = 2 * (x * (v[7] - v[5]) + y * (v[2] - v[6]) + z * (v[3] - v[1]))
    vx = 2 * (-2 * x * (v[4] + v[8]) + y * (v[1] + v[3]) + z * (v[2] + v[6]) + w * (v[7] - v[5]))
    vy = 2 * (x * (v[1] + v[3]) - 2 * y * (v[0] + v[8]) + z * (v[5] + v[7]) + w * (v[2] - v[6]))
    vz = 2 * (x * (v[2] + v[6]) + y * (v[5] + v[7]) - 2 * z * (v[0] + v[4]) + w * (v[3] - v[1]))
    along = vw * w + vx * x + vy * y + vz * z  # normalising removes the part along the quaternion
    return (vw - along * w) * r, (vx - along * x) * r, (vy - along * y) * r, (vz - along * z) * r


@register_jitable(error_model="numpy")
def clamped_slopes(camera, x, y, z):
    """Return x/z and y/z clamped to the widened view, and whether each was inside."""
    tan_x, tan_y = 0.5 * camera[_W] / camera[_FX], 0.5 * camera[_H] / camera[_FY]
    sx, sy = x / z, y / z
    cx = min(max(sx, -camera[_CX] / camera[_FX] - MARGIN * tan_x),
             (camera[_W] - camera[_CX]) / camera[_FX] + MARGIN * tan_x)
    cy = min(max(sy, -camera[_CY] / camera[_FY] - MARGIN * tan_y),
             (camera[_H] - camera[_CY]) / camera[_FY] + MARGIN * tan_y)
    return cx, cy, cx == sx, cy == sy


@register_jitable(error_model="numpy")
def jacobian_rows(camera, z, sx, sy):
    """Return the two rows of J·R, J the Jacobian of the projection at slopes (sx, sy) and depth z."""
    jx, jy = camera[_FX] / z, camera[_FY] / z
    return (jx * (camera[0] - sx * camera[6]), jx * (camera[1] - sx * camera[7]), jx * (camera[2] - sx * camera[8]),
            jy * (camera[3] - sy * camera[6]), jy * (camera[4] - sy * camera[7]), jy * (camera[5] - sy * camera[8]))


@register_jitable(error_model="numpy")
def screen_axes(camera, x, y, z, rot, s0, s1, s2):
    """Return T = J·R·M (2×3), M = rotation·diag(scales): the 2D covariance is T Tᵀ (+ eps)."""
    sx, sy, _, _ = clamped_slopes(camera, x, y, z)
    a0, a1, a2, b0, b1, b2 = jacobian_rows(camera, z, sx, sy)
    return ((a0 * rot[0] + a1 * rot[3] + a2 * rot[6]) * s0, (a0 * rot[1] + a1 * rot[4] + a2 * rot[7]) * s1,
            (a0 * rot[2] + a1 * rot[5] + a2 * rot[8]) * s2, (b0 * rot[0] + b1 * rot[3] + b2 * rot[6]) * s0,
            (b0 * rot[1] + b1 * rot[4] + b2 * rot[7]) * s1, (b0 * rot[2] + b1 * rot[5] + b2 * rot[8]) * s2)


@register_jitable(error_model="numpy")
def covariance(t, eps):
    """Return xx, xy, yy of T Tᵀ + eps·I, its determinant, and the determinant without eps.

    det(T Tᵀ) is the squared cross product of T's rows, which does not cancel for needles.
    """
    xx = t[0] * t[0] + t[1] * t[1] + t[2] * t[2]
    xy = t[0] * t[3] + t[1] * t[4] + t[2] * t[5]
    yy = t[3] * t[3] + t[4] * t[4] + t[5] * t[5]
    c0, c1, c2 = t[1] * t[5] - t[2] * t[4], t[2] * t[3] - t[0] * t[5], t[0] * t[4] - t[1] * t[3]
    bare = c0 * c0 + c1 * c1 + c2 * c2
    return xx + eps, xy, yy + eps, bare + eps * (xx + yy) + eps * eps, bare


@register_jitable(error_model="numpy")
def compensation(det, bare):
    """Return √max(det before / det after blur, 0.005²), which keeps a blurred splat's total opacity (Mip-Splatting)."""
    return np.sqrt(max(bare / det, COMPENSATION_MIN * COMPENSATION_MIN))


@register_jitable(error_model="numpy")
def radii(xx, yy, opacity):
    """Return the half-widths in pixels of the box that holds every alpha ≥ 1/255; 0, 0 where there is none."""
    if not opacity >= ALPHA_MIN:
        return 0.0, 0.0
    extent = min(EXTENT_MAX, np.sqrt(2.0 * np.log(255.0 * opacity)))
    return extent * np.sqrt(xx), extent * np.sqrt(yy)


@register_jitable(error_model="numpy")
def to_screen(camera, x, y, z):
    """Return pixel coordinates of a camera point."""
    return camera[_FX] * x / z + camera[_CX], camera[_FY] * y / z + camera[_CY]


@register_jitable(error_model="numpy")
def covariance_vjp(t, eps, xx, xy, yy, det, bare, v_conic, v_compensation, antialiased):
    """Return the gradient of T (6 values) from those of the conic (a, b, c) and of the compensation.

    With Q = Σ⁻¹ and V the symmetric gradient of Q, the gradient of Σ is −Q V Q.
    """
    a, b, c = yy / det, -xy / det, xx / det
    v0, v1, v2 = v_conic[0], 0.5 * v_conic[1], v_conic[2]
    p00, p01, p10, p11 = a * v0 + b * v1, a * v1 + b * v2, b * v0 + c * v1, b * v1 + c * v2
    v_xx = -(p00 * a + p01 * b)
    v_xy = -2.0 * (p00 * b + p01 * c)
    v_yy = -(p10 * b + p11 * c)
    if antialiased and bare / det > COMPENSATION_MIN * COMPENSATION_MIN:
        # √(bare/det): d log = ½ (d bare/bare − d det/det), with d bare = yy₀ dxx + xx₀ dyy − 2 xy dxy
        half = 0.5 * v_compensation * np.sqrt(bare / det)
        v_xx += half * ((yy - eps) / bare - yy / det)
        v_yy += half * ((xx - eps) / bare - xx / det)
        v_xy += half * (-2.0 * xy / bare + 2.0 * xy / det)
    return (2 * v_xx * t[0] + v_xy * t[3], 2 * v_xx * t[1] + v_xy * t[4], 2 * v_xx * t[2] + v_xy * t[5],
            2 * v_yy * t[3] + v_xy * t[0], 2 * v_yy * t[4] + v_xy * t[1], 2 * v_yy * t[5] + v_xy * t[2])


@register_jitable(error_model="numpy")
def axes_vjp(camera, x, y, z, rot, s0, s1, s2, v_t):
    """Return gradients of the camera point (3), the scales (3) and the rotation matrix (9) from that of T."""
    sx, sy, free_x, free_y = clamped_slopes(camera, x, y, z)
    jx, jy = camera[_FX] / z, camera[_FY] / z
    a0, a1, a2, b0, b1, b2 = jacobian_rows(camera, z, sx, sy)
    # the gradient of T·diag(1/s) = (J R)·rot
    u0, u1, u2 = v_t[0] * s0, v_t[1] * s1, v_t[2] * s2
    w0, w1, w2 = v_t[3] * s0, v_t[4] * s1, v_t[5] * s2
    v_rot = (a0 * u0 + b0 * w0, a0 * u1 + b0 * w1, a0 * u2 + b0 * w2,
             a1 * u0 + b1 * w0, a1 * u1 + b1 * w1, a1 * u2 + b1 * w2,
             a2 * u0 + b2 * w0, a2 * u1 + b2 * w1, a2 * u2 + b2 * w2)
    v_s0 = (v_t[0] * (a0 * rot[0] + a1 * rot[3] + a2 * rot[6]) + v_t[3] * (b0 * rot[0] + b1 * rot[3] + b2 * rot[6]))
    v_s1 = (v_t[1] * (a0 * rot[1] + a1 * rot[4] + a2 * rot[7]) + v_t[4] * (b0 * rot[1] + b1 * rot[4] + b2 * rot[7]))
    v_s2 = (v_t[2] * (a0 * rot[2] + a1 * rot[5] + a2 * rot[8]) + v_t[5] * (b0 * rot[2] + b1 * rot[5] + b2 * rot[8]))
    # gradient of the rows of J·R, then of J = (jx, 0, −jx·sx), (0, jy, −jy·sy)
    va0, va1, va2 = (u0 * rot[0] + u1 * rot[1] + u2 * rot[2], u0 * rot[3] + u1 * rot[4] + u2 * rot[5],
                     u0 * rot[6] + u1 * rot[7] + u2 * rot[8])
    vb0, vb1, vb2 = (w0 * rot[0] + w1 * rot[1] + w2 * rot[2], w0 * rot[3] + w1 * rot[4] + w2 * rot[5],
                     w0 * rot[6] + w1 * rot[7] + w2 * rot[8])
    v_j00 = va0 * camera[0] + va1 * camera[1] + va2 * camera[2]
    v_j02 = va0 * camera[6] + va1 * camera[7] + va2 * camera[8]
    v_j11 = vb0 * camera[3] + vb1 * camera[4] + vb2 * camera[5]
    v_j12 = vb0 * camera[6] + vb1 * camera[7] + vb2 * camera[8]
    v_x = v_y = 0.0
    v_z = -(v_j00 * jx + v_j11 * jy) / z + (v_j02 * jx * sx + v_j12 * jy * sy) / z
    if free_x:
        v_x = -v_j02 * jx / z
        v_z += v_j02 * jx * sx / z
    if free_y:
        v_y = -v_j12 * jy / z
        v_z += v_j12 * jy * sy / z
    return (v_x, v_y, v_z), (v_s0, v_s1, v_s2), v_rot


@register_jitable(error_model="numpy")
def screen_vjp(camera, x, y, z, v_u, v_v):
    """Return the gradient of a camera point from that of its pixel coordinates."""
    fx, fy = camera[_FX] / z, camera[_FY] / z
    return fx * v_u, fy * v_v, -(fx * x * v_u + fy * y * v_v) / z


@register_jitable(error_model="numpy")
def direction(camera, x, y, z):
    """Return the unit vector from the camera centre to a world point and its inverse length."""
    dx, dy, dz = x - camera[_CENTER], y - camera[_CENTER + 1], z - camera[_CENTER + 2]
    r = 1.0 / np.sqrt(dx * dx + dy * dy + dz * dz)
    return dx * r, dy * r, dz * r, r


@register_jitable(error_model="numpy")
def in_view(camera, mean, rot, s0, s1, s2, opacity, eps, antialiased):
    """Tell whether the 1/255 box of a Gaussian, in whole pixels, meets the picture; ``mean`` in the world."""
    x, y, z = to_camera(camera, mean[0], mean[1], mean[2])
    if not in_depth(camera, z):
        return False
    t = screen_axes(camera, x, y, z, rot, s0, s1, s2)
    xx, _, yy, det, bare = covariance(t, eps)
    if antialiased:
        opacity *= compensation(det, bare)
    rx, ry = radii(xx, yy, opacity)
    rx, ry = np.ceil(rx), np.ceil(ry)
    u, v = to_screen(camera, x, y, z)
    return rx > 0 and ry > 0 and u + rx > 0 and u - rx < camera[_W] and v + ry > 0 and v - ry < camera[_H]


@register_jitable(error_model="numpy")
def to_splat(camera, mean, rot, s0, s1, s2, opacity, eps, antialiased):
    """Return screen mean (2), conic (3), depth, opacity (compensated) and radii (2) of a Gaussian.

    Its covariance is M Mᵀ with M = rot·diag(s0, s1, s2); ``rot`` may be any matrix, row by row.
    """
    x, y, z = to_camera(camera, mean[0], mean[1], mean[2])
    t = screen_axes(camera, x, y, z, rot, s0, s1, s2)
    xx, xy, yy, det, bare = covariance(t, eps)
    if antialiased:
        opacity *= compensation(det, bare)
    return to_screen(camera, x, y, z), (yy / det, -xy / det, xx / det), z, opacity, radii(xx, yy, opacity)


@register_jitable(error_model="numpy")
def to_splat_vjp(camera, mean, rot, s0, s1, s2, opacity, eps, antialiased, v_mean2d, v_conic, v_depth, v_opacity):
    """Return gradients of the world mean (3), the scales (3), ``rot`` (9) and the opacity from those of the splat."""
    x, y, z = to_camera(camera, mean[0], mean[1], mean[2])
    t = screen_axes(camera, x, y, z, rot, s0, s1, s2)
    xx, xy, yy, det, bare = covariance(t, eps)
    v_t = covariance_vjp(t, eps, xx, xy, yy, det, bare, v_conic, v_opacity * opacity, antialiased)
    if antialiased:
        v_opacity *= compensation(det, bare)
    v_p, v_s, v_rot = axes_vjp(camera, x, y, z, rot, s0, s1, s2, v_t)
    su, sv, sz = screen_vjp(camera, x, y, z, v_mean2d[0], v_mean2d[1])
    px, py, pz = v_p[0] + su, v_p[1] + sv, v_p[2] + sz + v_depth
    v_mean = (camera[0] * px + camera[3] * py + camera[6] * pz, camera[1] * px + camera[4] * py + camera[7] * pz,
              camera[2] * px + camera[5] * py + camera[8] * pz)
    return v_mean, v_s, v_rot, v_opacity
