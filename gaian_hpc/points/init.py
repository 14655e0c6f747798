"""The points that training starts from."""

from __future__ import annotations

from typing import Literal

import numpy as np

from ..arrays import Cloud, View
from ..data.frames import ScenePoints
from ..data.scene import Scene
from ..errors import DataError
from ..rng import uniform

BLENDER_HALF_SIDE = 1.3
FRUSTUM_DEPTH = 2.0  # extents: across a ring of cameras that look inwards
LEAST_SQUARED_SPACING = 1e-7  # Kerbl et al. 2023, reference implementation
GREY = 0.5


def cloud_from_scene(scene: Scene, mode: Literal["sfm", "random", "ply"], n_random: int, seed: int,
                     ply_points: ScenePoints | tuple[np.ndarray, np.ndarray | None] | None = None, *,
                     workers: int = 1) -> Cloud:
    """Return the start points of a scene.

    Parameters
    ----------
    scene : Scene
    mode : {"sfm", "random", "ply"}
        ``sfm``: the scene's own points. ``random``: uniform in a box (:func:`random_box`). ``ply``: ``ply_points``.
    n_random : int
        Number of random points.
    seed : int
        Of random points, and of random initial values of attributes.
    ply_points : ScenePoints or (positions, colors), optional
        Points read elsewhere: (N, 3) world units and (N, 3) in [0, 1] or None.
    workers : int
        Threads of the neighbour search; the result does not depend on it.

    Returns
    -------
    Cloud
        Points without colour are grey (0.5).

    Raises
    ------
    DataError
        If there are no points, or one is not finite.
    """
    if mode == "random":
        positions, colors = _random_positions(scene, n_random, seed), None
    else:
        positions, colors = _given_points(scene, mode, ply_points)
    positions = np.ascontiguousarray(positions, np.float32).reshape(-1, 3)
    n = len(positions)
    if n == 0:
        raise DataError(f"{scene.path} has no start points; use --data.init random, or the path of a PLY file")
    if (bad := np.flatnonzero(~np.isfinite(positions).all(axis=1))).size:
        raise DataError(f"{scene.path}: {bad.size} start points are not finite, the first is number {bad[0]}; remove "
                        "them or use --data.init random")
    if colors is None:
        colors = np.full((n, 3), GREY, np.float32)
    colors = np.ascontiguousarray(colors, np.float32).reshape(n, 3)
    if not np.isfinite(colors).all():
        raise DataError(f"{scene.path}: the colour of a start point is not finite; write the colours again")
    return Cloud(positions, colors, point_spacing(positions, scene.extent, workers), np.arange(n, dtype=np.int64), seed)


def point_spacing(positions: np.ndarray, extent: float, workers: int = 1) -> np.ndarray:
    """Return the root of the mean squared distance of each point to its three nearest neighbours.

    Parameters
    ----------
    positions : (N, 3) float32, world units
    extent : float, world units
        A point without any neighbour gets a hundredth of it; with one or two, the mean is over these.
    workers : int
        Threads.

    Returns
    -------
    (N,) float32, world units
        At least the root of 1e-7, which points at one place get.
    """
    from scipy.spatial import cKDTree

    n = len(positions)
    if n == 1:
        return np.full(1, 0.01 * extent, np.float32)
    tree = cKDTree(positions.astype(np.float64))
    distances, _ = tree.query(tree.data, k=min(4, n), workers=workers)
    squared = np.mean(distances[:, 1:] ** 2, axis=1)  # the first column is the point itself, or one at its place
    return np.sqrt(np.maximum(squared, LEAST_SQUARED_SPACING)).astype(np.float32)


def random_box(scene: Scene) -> tuple[np.ndarray, np.ndarray]:
    """Return the corners (3,), (3,) float64 of the box that random points fill.

    Blender sets: [-1.3, 1.3]³. Scenes with points: their 1st to 99th percentile, a tenth wider at each side. Others:
    the box around what the training cameras see up to a depth of two extents.
    """
    if scene.kind == "blender":
        return np.full(3, -BLENDER_HALF_SIDE), np.full(3, BLENDER_HALF_SIDE)
    if scene.points is not None and len(scene.points.positions):
        low, high = np.percentile(scene.points.positions.astype(np.float64), [1, 99], axis=0)
        margin = np.maximum(0.1 * (high - low), 0.01 * scene.extent)
        return low - margin, high + margin
    seen = np.concatenate([_frustum(scene.views[i], FRUSTUM_DEPTH * scene.extent) for i in scene.train_idx])
    return seen.min(axis=0), seen.max(axis=0)


def _frustum(view: View, depth: float) -> np.ndarray:
    """Return the camera centre and the four picture corners at ``depth``, (5, 3) world units."""
    w, h = view.width, view.height
    corners = np.array([[0, 0, 1], [w, 0, 1], [0, h, 1], [w, h, 1]], np.float64)
    rays = np.linalg.solve(view.K.astype(np.float64), corners.T).T * depth
    to_world = np.linalg.inv(view.viewmat.astype(np.float64))
    in_camera = np.vstack([np.zeros((1, 3)), rays])
    return in_camera @ to_world[:3, :3].T + to_world[:3, 3]


def _random_positions(scene: Scene, n: int, seed: int) -> np.ndarray:
    if n < 1:
        raise DataError(f"{scene.path}: {n} random start points were asked for; set --data.n_random to 1 or more")
    low, high = random_box(scene)
    return low + (high - low) * uniform(seed, "points.random", 0, np.arange(n), (3,), np.float64)


def _given_points(scene: Scene, mode: str, ply_points: ScenePoints | tuple[np.ndarray, np.ndarray | None] | None
                  ) -> tuple[np.ndarray, np.ndarray | None]:
    if mode not in ("sfm", "ply"):
        raise ValueError(f"mode {mode!r} is none of sfm, random, ply")
    points = ply_points if mode == "ply" else scene.points
    if points is None:
        return np.zeros((0, 3), np.float32), None
    return (points.positions, points.colors) if isinstance(points, ScenePoints) else tuple(points)
