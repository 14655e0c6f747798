"""Cases in the format of the golden files, made with the float64 oracle from random scenes.

They test what the shared files do not hold, and they run where no shared files are. What the oracle itself gets wrong
they cannot find: that is what the shared files are for.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from gaian_hpc.arrays import ArrayTable, View
from gaian_hpc.renderers.reference import ReferenceGaussian3D

from .cases import Case
from .gaussian3d import Implementation, measure_scene, view_of

ALPHA_MARGIN, STOP_MARGIN, CLAMP_MARGIN = 5e-4, 2e-3, 1e-4  # relative nearness to a decision that makes a pixel fragile
DEPTH_GAP = 1e-5  # relative distance of depths that float32 surely orders alike
RENDERED = ("image", "alpha", "depth_accum", "n_contrib", "loss", "g_", "gdepth_", "absgrad_", "campos")
RADII = ("radii", "radii_opacity_aware", "radii_opacity_aware_aa")


def camera(rng: np.random.Generator, width: int, height: int, focal: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
    """Return a random pose (4, 4) that looks at the origin from 4 units away, and intrinsics off the centre."""
    z = rng.normal(size=3)
    z /= np.linalg.norm(z)
    x = np.cross(rng.normal(size=3), z)
    x /= np.linalg.norm(x)
    viewmat = np.eye(4)
    viewmat[:3, :3] = [x, np.cross(z, x), z]
    viewmat[2, 3] = 4
    f = focal * width
    K = [[f, 0, width * rng.uniform(0.4, 0.6)], [0, f * 1.1, height * rng.uniform(0.4, 0.6)], [0, 0, 1]]
    return viewmat.astype(np.float32), np.float32(K)


def scene(seed: int, n: int = 40, width: int = 45, height: int = 37, degree: int = 2, spread: float = 1.0,
          scale: float = 0.15, near: float = 0.01, far: float = 1e10, eps2d: float = 0.3) -> dict[str, np.ndarray]:
    """Return the inputs of a random scene with points around the origin, float32."""
    rng = np.random.default_rng(seed)
    viewmat, K = camera(rng, width, height)
    arrays = {
        "means": rng.normal(size=(n, 3)) * spread, "quats": rng.normal(size=(n, 4)) * rng.uniform(0.3, 3, (n, 1)),
        "scales": scale * np.exp(0.6 * rng.normal(size=(n, 3))), "opacities": rng.uniform(0.02, 0.999, n),
        "sh": rng.normal(size=(n, (degree + 1) ** 2, 3)) * 0.4, "viewmat": viewmat, "K": K,
        "background": rng.uniform(size=3), "v_image": rng.normal(size=(height, width, 3)),
        "v_alpha": rng.normal(size=(height, width)), "v_depth": rng.normal(size=(height, width)) / 4,
    }
    scalars = {"width": width, "height": height, "sh_degree": degree, "seed": seed}
    planes = {"near": near, "far": far, "eps2d": eps2d}
    return ({name: np.asarray(x, np.float32) for name, x in arrays.items()}
            | {name: np.array(x) for name, x in (scalars | planes).items()})


def _fragile_of(view: View, points: ArrayTable, antialiased: bool, eps2d: float) -> np.ndarray:
    """Return the pixels (H, W) where some splat is near the alpha cut, the clamp or the end of the pixel."""
    renderer = ReferenceGaussian3D(ReferenceGaussian3D.Options(0, antialiased, eps2d))
    s = renderer.splat(view, points, renderer.cull(view, points))
    y, x = np.mgrid[0 : view.height, 0 : view.width] + 0.5
    fragile, left = np.zeros(x.shape, bool), np.ones(x.shape)
    for i in np.argsort(s["depths"], kind="stable"):
        dx, dy = x - s["means2d"][i, 0], y - s["means2d"][i, 1]
        a, b, c = s["conics"][i]
        alpha = s["opacities"][i] * np.exp(-0.5 * (a * dx * dx + c * dy * dy) - b * dx * dy)
        live = left > 1e-4 * (1 - STOP_MARGIN)
        fragile |= live & (np.abs(alpha * 255 - 1) < ALPHA_MARGIN)
        fragile |= live & (np.abs(alpha / 0.99 - 1) < CLAMP_MARGIN)
        drawn = live & (alpha >= 1 / 255)
        left = np.where(drawn, left * (1 - np.minimum(alpha, 0.99)), left)
        fragile |= drawn & (np.abs(left / 1e-4 - 1) < STOP_MARGIN)
    return fragile


def _separated(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the scene without the points that lie within float32's reach of another's depth, but for exact ties."""
    viewmat = arrays["viewmat"].astype(np.float64)
    z = arrays["means"].astype(np.float64) @ viewmat[2, :3] + viewmat[2, 3]
    order = np.argsort(z, kind="stable")
    gap = np.diff(z[order]) / np.maximum(np.abs(z[order][1:]), 1e-3)
    keep = np.ones(len(z), bool)
    keep[order[1:][(gap > 0) & (gap < DEPTH_GAP)]] = False
    return {k: x[keep] if k in ("means", "quats", "scales", "opacities", "sh") else x for k, x in arrays.items()}


def make_case(arrays: dict[str, np.ndarray], path: str = "synthetic.npz") -> Case:
    """Return the complete case of a scene's inputs; points with nearly equal depths are left out."""
    arrays = _separated(arrays)
    case = Case(Path(path), "gaussian3d scene", arrays)
    view, eps2d = view_of(case), case.scalar("eps2d")
    points = ArrayTable({name: arrays[name] for name in ("means", "quats", "scales", "opacities", "sh")})
    fragile = np.logical_or(*(_fragile_of(view, points, aa, eps2d) for aa in (False, True)))
    arrays = arrays | {"fragile": fragile}
    for name in ("v_image", "v_alpha", "v_depth"):
        arrays[name] = np.where(fragile.reshape(*fragile.shape, *[1] * (arrays[name].ndim - 2)), 0, arrays[name])
    renderer = ReferenceGaussian3D(ReferenceGaussian3D.Options(0, False, eps2d))
    culled = np.setdiff1d(np.arange(points.n_rows), renderer.cull(view, points))
    everything = renderer.splat(view, points, np.arange(points.n_rows))["radii"]
    arrays["radii"] = np.where(np.isin(np.arange(points.n_rows), culled)[:, None], 0, 1).astype(np.int32)
    arrays["radii_fragile"] = np.zeros(len(everything), bool)
    # `measure_scene` reads of the pictures only which sets to make, and of the boxes which rows are visible.
    results = measure_scene(replace(case, arrays=arrays | {"aa_image": arrays["v_image"]}), Implementation.reference())
    results.pop("drawn")
    for name in RADII:
        ceiled = np.ceil(results[name])
        arrays["radii_fragile"] |= (np.abs(results[name] - np.round(results[name])) < 1e-4).any(axis=1)
        results[name] = ceiled.astype(np.int32)
    for name in ("n_contrib", "aa_n_contrib"):
        results[name] = results[name].astype(np.int32)
    return replace(case, arrays=arrays | {name: np.asarray(x) for name, x in results.items()})


def save_case(case: Case, path: Path) -> Path:
    """Write a case as a golden file and return its path."""
    np.savez(path, **case.arrays)
    return path
