"""Write the procedural city as an ordinary COLMAP scene, photographed from the air by the project's own renderer."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
from scipy.spatial.transform import Rotation

from ..arrays import ArrayTable, Patch, View
from ..renderers.base import Outputs
from ..renderers.gaussian3d import Gaussian3D, Options
from ..renderers.sh import C0
from .city import HALF, Surfels, build_city

ALTITUDE = 85.0
TILT = np.radians(40.0)
OPACITY = 0.97


@dataclass(frozen=True, slots=True)
class SparsePoints:
    """What structure from motion would find: noisy surface points and where views saw them.

    Attributes
    ----------
    positions : (P, 3) float64, metres
    colors : (P, 3) uint8
    track_points, track_views : (O,) int64
        Point and view of every observation, sorted by point.
    track_pixels : (O, 2) float64
        Where it was seen, pixels.
    """

    positions: np.ndarray
    colors: np.ndarray
    track_points: np.ndarray
    track_views: np.ndarray
    track_pixels: np.ndarray


def write_city(path: str | os.PathLike[str], *, n_views: int = 96, width: int = 320, height: int = 240,
               n_points: int = 12000, seed: int = 0, spacing: float = 1.0) -> Path:
    """Make a city and write its aerial photographs and sparse model as a COLMAP scene.

    Parameters
    ----------
    path : path
        Folder to write; complete once it exists, since it is written aside and renamed.
    n_views : int
        Number of pictures.
    width, height : int, pixels
    n_points : int
        Surface points that "structure from motion" tries to see; those seen by fewer than two views are left out.
    seed : int
        Which city.
    spacing : float
        Distance between the city's Gaussians, metres: its level of detail.

    Returns
    -------
    path
    """
    path = Path(path)
    aside = path.with_name(path.name + ".part")
    shutil.rmtree(aside, ignore_errors=True)
    (aside / "images").mkdir(parents=True)
    city = build_city(seed, spacing)
    views = aerial_views(n_views, width, height)
    depths = _photograph(city, views, aside / "images")
    model = structure(city, views, depths, n_points, seed)
    write_colmap(aside / "sparse" / "0", views, model)
    aside.rename(path)
    return path


def write_moving(path: str | os.PathLike[str], *, n_times: int = 16, n_cameras: int = 7, width: int = 160,
                 height: int = 120, n_points: int = 4000, seed: int = 0, spacing: float = 2.5) -> Path:
    """Make a city over which balls fly, and write its pictures as a COLMAP scene with ``times.json``.

    Parameters
    ----------
    path : path
        Folder to write; complete once it exists.
    n_times, n_cameras : int
        Every camera of a ring around the middle takes a picture at every time; pictures are in the order of times.
    width, height : int, pixels
    n_points, seed, spacing
        As of :func:`write_city`; structure from motion sees what stands still.

    Returns
    -------
    path
    """
    path = Path(path)
    aside = path.with_name(path.name + ".part")
    shutil.rmtree(aside, ignore_errors=True)
    (aside / "images").mkdir(parents=True)
    city, ring = build_city(seed, spacing), _ring(n_cameras, width, height)
    views, depths = [], []
    for i in range(n_times * n_cameras):
        time = (i // n_cameras) / max(n_times - 1, 1)
        view = replace(ring[i % n_cameras], name=f"view_{i:03d}.png", index=i, time=time)
        depths += _photograph(_with_balls(city, time, seed), [view], aside / "images")
        views.append(view)
    write_colmap(aside / "sparse" / "0", views, structure(city, views, depths, n_points, seed))
    (aside / "times.json").write_text(json.dumps({view.name: view.time for view in views}))
    aside.rename(path)
    return path


def _ring(n: int, width: int, height: int) -> list[View]:
    """Return cameras around the city's middle that look down at it."""
    K = np.array([[1.1 * width, 0, width / 2], [0, 1.1 * width, height / 2], [0, 0, 1]], np.float32)
    views = []
    for i in range(n):
        turn = 2 * np.pi * i / n
        outward = np.array([np.cos(turn), np.sin(turn), 0.0])
        forward = -outward - np.array([0, 0, 1.2])
        views.append(View(look(outward * HALF * 0.8 + [0, 0, HALF], forward / np.linalg.norm(forward), -outward), K,
                          width, height))
    return views


def _with_balls(city: Surfels, time: float, seed: int) -> Surfels:
    """Return the city and three balls on their way around its middle, a third of a turn from time 0 to 1."""
    rng = np.random.Generator(np.random.Philox(key=seed + 2))
    parts = [city]
    for ball in range(3):
        directions = rng.standard_normal((400, 3))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        turn = 2 * np.pi * (ball + time) / 3
        center = np.array([np.cos(turn), np.sin(turn), 0]) * HALF * 0.35 + [0, 0, HALF * (0.35 + 0.1 * ball)]
        color = np.clip(np.eye(3)[ball] + 0.25 * (directions[:, 2:] > 0), 0, 1)
        parts.append(Surfels(center + directions * HALF * 0.12, directions, color, np.full((400, 3), HALF * 0.012)))
    return Surfels(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Surfels)))


def aerial_views(n: int, width: int, height: int) -> list[View]:
    """Return a lawn-mower flight over the city with a rig that looks down and, tilted, to the four sides.

    Every station of the flight takes one picture, the rig's cameras taking turns.
    """
    focal = 0.9 * width
    K = np.array([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]], np.float32)
    n_lanes = max(round(np.sqrt(n)), 1)
    lane, place = np.divmod(np.arange(n), -(-n // n_lanes))
    along = (place + 0.5) / -(-n // n_lanes) * 2 - 1
    across = (lane + 0.5) / n_lanes * 2 - 1
    east = np.where(lane % 2 == 0, along, -along) * 0.8 * HALF
    north = across * 0.8 * HALF
    views = []
    for i in range(n):
        turn, side = i % 5, np.pi / 2 * (i % 5 - 1)
        tilt = TILT if turn else 0.0
        forward = np.array([np.cos(side) * np.sin(tilt), np.sin(side) * np.sin(tilt), -np.cos(tilt)])
        ahead = np.array([np.cos(side), np.sin(side), 0.0])
        # A tilted camera stands back, so that the city's middle and not its outskirts fills the picture.
        center = np.array([east[i], north[i], ALTITUDE]) - ahead * 0.6 * ALTITUDE * np.tan(tilt)
        views.append(View(look(center, forward, ahead), K, width, height, f"view_{i:03d}.png", i))
    return views


def render_surfels(surfels: Surfels, view: View, renderer: Gaussian3D) -> Outputs:
    """Render Gaussians along the axes of the world in one view."""
    n = len(surfels.positions)
    points = ArrayTable({
        "means": surfels.positions.astype(np.float32),
        "quats": np.tile(np.float32([1, 0, 0, 0]), (n, 1)),
        "scales": surfels.scales.astype(np.float32),
        "opacities": np.full(n, OPACITY, np.float32),
        "sh": ((surfels.colors[:, None, :] - 0.5) / C0).astype(np.float32)})
    splats = renderer.splat(view, points, renderer.cull(view, points))
    return renderer.render(Patch(view, 0, 0, view.width, view.height), splats)


def look(center: np.ndarray, forward: np.ndarray, ahead: np.ndarray) -> np.ndarray:
    """Return the world-to-camera matrix of a camera at ``center``; ``ahead`` is up in a picture taken straight down."""
    up = ahead if abs(forward[2]) > 0.99 else np.array([0.0, 0.0, 1.0])
    right = np.cross(forward, up)
    right /= np.linalg.norm(right)
    rotation = np.stack([right, np.cross(forward, right), forward])
    viewmat = np.eye(4)
    viewmat[:3, :3], viewmat[:3, 3] = rotation, -rotation @ center
    return viewmat.astype(np.float32)


def _photograph(city: Surfels, views: list[View], folder: Path) -> list[np.ndarray]:
    """Write every view's picture; return the depth maps, (H, W) float32, metres."""
    from PIL import Image

    renderer = Gaussian3D(Options(sh_degree=0, depth=True))
    depths = []
    for view in views:
        outputs = render_surfels(city, view, renderer)
        pixels = np.rint(np.clip(outputs.color, 0, 1) * 255).astype(np.uint8)
        Image.fromarray(np.moveaxis(pixels, 0, -1)).save(folder / view.name)
        depths.append(outputs.maps["depth"] / np.maximum(outputs.alpha, 1e-6))
    return depths


def structure(city: Surfels, views: list[View], depths: list[np.ndarray], n_points: int, seed: int) -> SparsePoints:
    """Observe some surface points in the pictures, by comparing their depth with the rendered one."""
    rng = np.random.Generator(np.random.Philox(key=seed + 1))
    inner = np.flatnonzero(np.abs(city.positions[:, :2]).max(axis=1) < 1.6 * HALF)
    points = city.select(np.sort(rng.permutation(inner)[:n_points]))
    seen = []
    for view, depth in zip(views, depths, strict=True):
        rows, pixels = _visible(points.positions, view, depth)
        seen.append((rows, np.full(len(rows), view.index), pixels + 0.3 * rng.standard_normal(pixels.shape)))
    rows, at, pixels = (np.concatenate(part) for part in zip(*seen, strict=True))
    order = np.lexsort([at, rows])
    rows, at, pixels = rows[order], at[order], pixels[order]
    good = np.bincount(rows, minlength=len(points.positions)) >= 2
    kept = good[rows]
    positions = points.positions + 0.08 * rng.standard_normal(points.positions.shape)
    colors = np.rint(np.clip(points.colors + 0.02 * rng.standard_normal(points.colors.shape), 0, 1) * 255)
    return SparsePoints(positions[good], colors[good].astype(np.uint8), (np.cumsum(good) - 1)[rows[kept]], at[kept],
                        pixels[kept])


def _visible(positions: np.ndarray, view: View, depth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of the positions on the picture's visible surface, and their pixels (V, 2)."""
    camera = positions @ view.viewmat[:3, :3].T.astype(np.float64) + view.viewmat[:3, 3]
    z = np.maximum(camera[:, 2], 1e-6)
    pixels = camera[:, :2] / z[:, None] * view.K[[0, 1], [0, 1]] + view.K[:2, 2]
    inside = (camera[:, 2] > 1.0) & ((pixels >= 0) & (pixels < [view.width, view.height])).all(axis=1)
    rows = np.flatnonzero(inside)
    x, y = pixels[rows].astype(int).T
    rows = rows[np.abs(depth[y, x] - z[rows]) < 0.02 * z[rows]]
    return rows, pixels[rows]


def write_colmap(folder: Path, views: list[View], model: SparsePoints) -> None:
    """Write ``cameras.txt``, ``images.txt`` and ``points3D.txt``; ids count from one."""
    folder.mkdir(parents=True)
    K, first = views[0].K, views[0]
    (folder / "cameras.txt").write_text(
        f"# id model width height fx fy cx cy\n1 PINHOLE {first.width} {first.height} "
        f"{K[0, 0]:.9g} {K[1, 1]:.9g} {K[0, 2]:.9g} {K[1, 2]:.9g}\n")
    slots = np.empty(len(model.track_views), np.int64)  # place of an observation within its picture
    pictures = ["# id qw qx qy qz tx ty tz camera_id name, then x y point_id of every observation"]
    for view in views:
        seen = np.flatnonzero(model.track_views == view.index)
        slots[seen] = np.arange(len(seen))
        x, y, z, w = Rotation.from_matrix(view.viewmat[:3, :3]).as_quat()
        pose = " ".join(f"{v:.12g}" for v in (w, x, y, z, *view.viewmat[:3, 3]))
        pictures.append(f"{view.index + 1} {pose} 1 {view.name}")
        pictures.append(" ".join(f"{u:.3f} {v:.3f} {p + 1}" for (u, v), p in
                                 zip(model.track_pixels[seen], model.track_points[seen], strict=True)))
    (folder / "images.txt").write_text("\n".join(pictures) + "\n")
    starts = np.searchsorted(model.track_points, np.arange(len(model.positions) + 1))
    lines = ["# id x y z r g b error, then image_id and place of every observation"]
    for i, (position, color) in enumerate(zip(model.positions, model.colors, strict=True)):
        track = range(starts[i], starts[i + 1])
        lines.append(" ".join([str(i + 1), *(f"{v:.6f}" for v in position), *map(str, color), "0.3",
                               *(f"{model.track_views[t] + 1} {slots[t]}" for t in track)]))
    (folder / "points3D.txt").write_text("\n".join(lines) + "\n")
