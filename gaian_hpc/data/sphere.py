"""A sphere on a plane, traced exactly: what a method says of surfaces can be measured on it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np

from ..arrays import View
from .city import HALF, Surfels
from .synthetic import look, structure, write_colmap

RADIUS = 0.35 * HALF
_WAVES = ((0.35, 0.0, 1.7), (0.8, 1.3, 0.6), (1.4, 2.6, 2.9))  # per radius, and phases


def write_sphere(path: str | os.PathLike[str], *, n_views: int = 32, width: int = 200, height: int = 150,
                 n_points: int = 6000, seed: int = 0) -> Path:
    """Photograph a textured sphere on a textured plane from a hemisphere, and write it as a COLMAP scene.

    Parameters
    ----------
    path : path
        Folder to write; complete once it exists.
    n_views : int
        Number of pictures.
    width, height : int, pixels
    n_points : int
        Surface points that "structure from motion" tries to see.
    seed : int
        Of the points.

    Returns
    -------
    path
    """
    from PIL import Image

    path = Path(path)
    aside = path.with_name(path.name + ".part")
    shutil.rmtree(aside, ignore_errors=True)
    (aside / "images").mkdir(parents=True)
    views, depths = sphere_views(n_views, width, height), []
    for view in views:
        points, _, depth = trace(view)
        pixels = np.rint(np.clip(_texture(points), 0, 1) * 255).astype(np.uint8)
        Image.fromarray(pixels).save(aside / "images" / view.name)
        depths.append(depth)
    rng = np.random.Generator(np.random.Philox(key=seed))
    up = rng.standard_normal((n_points // 3, 3))
    ball = RADIUS * up / np.linalg.norm(up, axis=1, keepdims=True) + [0, 0, RADIUS]
    flat = rng.uniform(-1.6 * HALF, 1.6 * HALF, (n_points - len(ball), 2))
    floor = np.column_stack([flat, np.zeros(len(flat))])
    positions = np.concatenate([ball, floor])
    surface = Surfels(positions, np.zeros_like(positions), _texture(positions), np.zeros_like(positions))
    write_colmap(aside / "sparse" / "0", views, structure(surface, views, depths, n_points, seed))
    aside.rename(path)
    return path


def sphere_views(n: int, width: int, height: int) -> list[View]:
    """Return cameras on a spiral from low above the plane to nearly overhead that look at the sphere."""
    K = np.array([[1.1 * width, 0, width / 2], [0, 1.1 * width, height / 2], [0, 0, 1]], np.float32)
    views = []
    for i in range(n):
        turn, rise = 2.4 * i, np.radians(45 + 35 * i / max(n - 1, 1))  # turns by the golden angle
        away = np.array([np.cos(turn) * np.cos(rise), np.sin(turn) * np.cos(rise), np.sin(rise)])
        ahead = np.array([-np.cos(turn), -np.sin(turn), 0.0])
        views.append(View(look(1.6 * HALF * away + [0, 0, 0.6 * RADIUS], -away, ahead), K, width, height,
                          f"view_{i:03d}.png", i))
    return views


def trace(view: View) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what each pixel of a view sees.

    Returns
    -------
    points : (H, W, 3) float64
        In the world.
    normals : (H, W, 3) float64
        Unit, in camera coordinates, towards the camera.
    depths : (H, W) float32
    """
    rotation, center = view.viewmat[:3, :3].astype(np.float64), view.camera_center.astype(np.float64)
    y, x = np.mgrid[:view.height, :view.width] + 0.5
    rays = np.stack([(x - view.K[0, 2]) / view.K[0, 0], (y - view.K[1, 2]) / view.K[1, 1], np.ones(x.shape)], axis=-1)
    ways = rays @ rotation
    floor = -center[2] / ways[..., 2]  # cameras look down at the plane in every pixel
    offset = center - [0, 0, RADIUS]
    a, b, c = (ways**2).sum(-1), ways @ offset, offset @ offset - RADIUS**2
    inside = np.maximum(b * b - a * c, 0)
    hit = b * b - a * c > 0
    depths = np.where(hit, (-b - np.sqrt(inside)) / a, floor)
    points = center + depths[..., None] * ways
    normals = np.where(hit[..., None], (points - [0, 0, RADIUS]) / RADIUS, [0.0, 0.0, 1.0])
    return points, normals @ rotation.T, depths.astype(np.float32)


def _texture(points: np.ndarray) -> np.ndarray:
    """Return colours (…, 3) in [0, 1] of places: waves of three lengths in all directions."""
    at = points / RADIUS
    color = np.full(points.shape, 0.5)
    for length, phase, other in _WAVES:
        f = 2 * np.pi * length
        color[..., 0] += 0.13 * np.sin(f * at[..., 0] + phase) * np.cos(f * at[..., 1] + other) + 0.08 * np.sin(
            f * at[..., 2] + phase)
        color[..., 1] += 0.13 * np.sin(f * at[..., 1] + 2 * phase) * np.cos(f * at[..., 2] + phase) + 0.08 * np.sin(
            f * at[..., 0] + other)
        color[..., 2] += 0.13 * np.sin(f * at[..., 2] + other) * np.cos(f * at[..., 0] + phase) + 0.08 * np.sin(
            f * at[..., 1] + 2 * other)
    return color
