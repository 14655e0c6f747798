"""Perspective projection of 3D Gaussians to 2D ones (Zwicker et al. 2001, EWA splatting) and its derivative."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...arrays import View

ALPHA_MIN = 1.0 / 255.0
BOX_SIGMAS = 3.33  # beyond it an opacity of 1 has fallen below ALPHA_MIN
COMPENSATION_MIN = 0.005
CLAMP_MARGIN = 0.3  # of the half field of view, past each border of the picture


def rotations(quats: np.ndarray) -> np.ndarray:
    """Return the rotation matrices (N, 3, 3) of the normalised ``quats`` (N, 4), w first."""
    w, x, y, z = (quats / np.linalg.norm(quats, axis=1, keepdims=True)).T
    flat = [1 - 2 * (y**2 + z**2), 2 * (x * y - w * z), 2 * (x * z + w * y),
            2 * (x * y + w * z), 1 - 2 * (x**2 + z**2), 2 * (y * z - w * x),
            2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x**2 + y**2)]
    return np.stack(flat, axis=1).reshape(-1, 3, 3)


def rotations_vjp(quats: np.ndarray, v_rotations: np.ndarray) -> np.ndarray:
    """Return dL/d(quats), of the stored un-normalised quaternions, (N, 4)."""
    norm = np.linalg.norm(quats, axis=1, keepdims=True)
    unit = quats / norm
    w, x, y, z = unit.T
    v = v_rotations.transpose(1, 2, 0)  # (3, 3, N)
    v_unit = 2 * np.stack([
        x * (v[2, 1] - v[1, 2]) + y * (v[0, 2] - v[2, 0]) + z * (v[1, 0] - v[0, 1]),
        w * (v[2, 1] - v[1, 2]) + y * (v[0, 1] + v[1, 0]) + z * (v[0, 2] + v[2, 0]) - 2 * x * (v[1, 1] + v[2, 2]),
        w * (v[0, 2] - v[2, 0]) + x * (v[0, 1] + v[1, 0]) + z * (v[1, 2] + v[2, 1]) - 2 * y * (v[0, 0] + v[2, 2]),
        w * (v[1, 0] - v[0, 1]) + x * (v[0, 2] + v[2, 0]) + y * (v[1, 2] + v[2, 1]) - 2 * z * (v[0, 0] + v[1, 1]),
    ], axis=1)
    return (v_unit - unit * np.sum(unit * v_unit, axis=1, keepdims=True)) / norm


def covariances(quats: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return the world covariances R S Sᵀ Rᵀ, (N, 3, 3), world units squared."""
    factor = rotations(quats) * scales[:, None, :]
    return factor @ factor.transpose(0, 2, 1)


def covariances_vjp(quats: np.ndarray, scales: np.ndarray, v_covs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return dL/d(quats) and dL/d(scales); ``v_covs`` (N, 3, 3) need not be symmetric."""
    rotation = rotations(quats)
    v_factor = (v_covs + v_covs.transpose(0, 2, 1)) @ (rotation * scales[:, None, :])
    return rotations_vjp(quats, v_factor * scales[:, None, :]), np.sum(rotation * v_factor, axis=1)


@dataclass(frozen=True, slots=True)
class Projection:
    """The 2D Gaussians of N points in one view; rows where ``valid`` is false hold zeros.

    Attributes
    ----------
    valid : (N,) bool
        Centre strictly between the near and the far plane.
    camera : (N, 3)
        Centres in camera coordinates, world units.
    clamped : (N, 2)
        x/z and y/z limited to the widened view, as the Jacobian uses them.
    jacobians : (N, 2, 3)
        Derivative of the pixel position by the camera coordinates at the clamped centre.
    covs : (N, 3, 3)
        World covariances.
    covs2d : (N, 2, 2), px²
        Screen covariances with ``eps2d`` added to the diagonal.
    means2d : (N, 2), px
    depths : (N,), world units
    conics : (N, 3), px⁻²
        a, b, c of the inverse covariance [[a, b], [b, c]].
    compensations : (N,)
        Square root of the determinants' ratio before and after ``eps2d``, at least 0.005 (Mip-Splatting).
    """

    valid: np.ndarray
    camera: np.ndarray
    clamped: np.ndarray
    jacobians: np.ndarray
    covs: np.ndarray
    covs2d: np.ndarray
    means2d: np.ndarray
    depths: np.ndarray
    conics: np.ndarray
    compensations: np.ndarray


def _focal(view: View, dtype: type) -> tuple[np.ndarray, np.ndarray]:
    K = view.K.astype(dtype)
    return np.array([K[0, 0], K[1, 1]]), np.array([K[0, 2], K[1, 2]])


def _clamp_limits(view: View, dtype: type) -> tuple[np.ndarray, np.ndarray]:
    """Return the least and the largest (x/z, y/z) at which the Jacobian is evaluated."""
    focal, centre = _focal(view, dtype)
    size = np.array([view.width, view.height], dtype)
    margin = CLAMP_MARGIN * 0.5 * size / focal
    return -centre / focal - margin, (size - centre) / focal + margin


def _det(covs2d: np.ndarray) -> np.ndarray:
    return covs2d[:, 0, 0] * covs2d[:, 1, 1] - covs2d[:, 0, 1] * covs2d[:, 1, 0]


def project(view: View, means: np.ndarray, quats: np.ndarray, scales: np.ndarray, eps2d: float = 0.3) -> Projection:
    """Project N Gaussians in the precision of ``means``.

    Parameters
    ----------
    means, quats, scales : (N, 3), (N, 4), (N, 3)
        World units; quaternions are w first and need no unit length.
    eps2d : float, px²
        Added to the diagonal of the screen covariance.
    """
    dtype = means.dtype.type
    world_to_camera = view.viewmat.astype(dtype)
    rotation, (focal, centre) = world_to_camera[:3, :3], _focal(view, dtype)
    camera = means @ rotation.T + world_to_camera[:3, 3]
    valid = (camera[:, 2] > view.near) & (camera[:, 2] < view.far)
    camera = np.where(valid[:, None], camera, np.array([0, 0, 1], dtype))
    z = camera[:, 2:]
    clamped = np.clip(camera[:, :2] / z, *_clamp_limits(view, dtype))
    jacobians = np.zeros((len(means), 2, 3), dtype)
    jacobians[:, [0, 1], [0, 1]] = focal / z
    jacobians[:, :, 2] = -focal * clamped / z
    covs = covariances(quats, scales)
    to_screen = jacobians @ rotation
    sharp = to_screen @ covs @ to_screen.transpose(0, 2, 1)
    covs2d = sharp + dtype(eps2d) * np.eye(2, dtype=dtype)
    det = _det(covs2d)
    conics = np.stack([covs2d[:, 1, 1], -covs2d[:, 0, 1], covs2d[:, 0, 0]], axis=1) / det[:, None]
    compensations = np.sqrt(np.maximum(_det(sharp) / det, dtype(COMPENSATION_MIN**2)))

    def masked(x: np.ndarray) -> np.ndarray:
        return np.where(valid.reshape(-1, *[1] * (x.ndim - 1)), x, dtype(0))

    return Projection(valid, camera, clamped, jacobians, covs, covs2d, masked(focal * camera[:, :2] / z + centre),
                      masked(camera[:, 2]), masked(conics), masked(compensations))


def half_widths(projection: Projection, opacities: np.ndarray | None = None) -> np.ndarray:
    """Return the box half-widths (N, 2) in px, zero for invalid rows.

    Without ``opacities`` the box spans 3.33 standard deviations per axis, with them only the part where
    opacity × falloff can reach 1/255.
    """
    diagonal = np.stack([projection.covs2d[:, 0, 0], projection.covs2d[:, 1, 1]], axis=1)
    sigmas = np.full(len(diagonal), BOX_SIGMAS)
    if opacities is not None:
        visible = opacities >= ALPHA_MIN
        reach = np.sqrt(2 * np.log(np.where(visible, opacities, 1) / ALPHA_MIN))
        sigmas = np.where(visible, np.minimum(BOX_SIGMAS, reach), 0)
    return np.where(projection.valid[:, None], sigmas[:, None] * np.sqrt(diagonal), 0).astype(diagonal.dtype)


def _covs2d_vjp(p: Projection, eps2d: float, v_conics: np.ndarray, v_compensations: np.ndarray) -> np.ndarray:
    """Return dL/d(covs2d), symmetric (N, 2, 2)."""
    dtype = p.covs2d.dtype.type
    conics = p.conics[:, [0, 1, 1, 2]].reshape(-1, 2, 2)
    half = np.array([1, 0.5, 0.5, 1], dtype)
    v = (v_conics[:, [0, 1, 1, 2]] * half).reshape(-1, 2, 2)
    v_covs2d = -conics @ v @ conics
    sharp = p.covs2d - dtype(eps2d) * np.eye(2, dtype=dtype)
    det, det_sharp = _det(p.covs2d), _det(sharp)
    ratio = det_sharp / det
    free = p.valid & (ratio > COMPENSATION_MIN**2)
    v_ratio = np.where(free, v_compensations * dtype(0.5) / np.where(free, p.compensations, 1), 0)

    def adjugate(c: np.ndarray) -> np.ndarray:
        return np.stack([c[:, 1, 1], -c[:, 0, 1], -c[:, 1, 0], c[:, 0, 0]], axis=1).reshape(-1, 2, 2)

    return v_covs2d + (v_ratio / det)[:, None, None] * (adjugate(sharp) - ratio[:, None, None] * adjugate(p.covs2d))


def project_vjp(view: View, quats: np.ndarray, scales: np.ndarray, p: Projection, v_means2d: np.ndarray,
                v_depths: np.ndarray, v_conics: np.ndarray, v_compensations: np.ndarray,
                eps2d: float = 0.3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return dL/d(means), dL/d(quats) and dL/d(scales) from the gradients of :func:`project`'s outputs."""
    dtype = p.camera.dtype.type
    rotation, (focal, _) = view.viewmat[:3, :3].astype(dtype), _focal(view, dtype)
    low, high = _clamp_limits(view, dtype)
    v_covs2d = _covs2d_vjp(p, eps2d, v_conics, v_compensations)
    to_screen = p.jacobians @ rotation
    v_covs = to_screen.transpose(0, 2, 1) @ v_covs2d @ to_screen
    v_jacobians = 2 * v_covs2d @ to_screen @ p.covs @ rotation.T
    z = p.camera[:, 2:]
    tangent = p.camera[:, :2] / z
    inside = (tangent > low) & (tangent < high)
    # The third column is -f t / z with t = x/z where free and constant where clamped.
    v_tangent = np.where(inside, -v_jacobians[:, :, 2] * focal / z, 0) + v_means2d * focal
    v_focal_column = np.stack([v_jacobians[:, 0, 0], v_jacobians[:, 1, 1]], axis=1)
    v_z = focal * (p.clamped * v_jacobians[:, :, 2] - v_focal_column) / z**2 - v_tangent * tangent / z
    v_camera = np.concatenate([v_tangent / z, v_z.sum(axis=1, keepdims=True) + v_depths[:, None]], axis=1)
    v_camera = np.where(p.valid[:, None], v_camera, 0).astype(dtype)
    v_quats, v_scales = covariances_vjp(quats, scales, np.where(p.valid[:, None, None], v_covs, dtype(0)))
    return v_camera @ rotation, v_quats, v_scales
