"""Golden cases of ``gaussian2d``: whole scenes through the renderer API, with both of its depths."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gaian_hpc.arrays import ArrayTable, Patch, View
from gaian_hpc.renderers.base import OutputGradients
from gaian_hpc.renderers.gaussian2d import Gaussian2D

from .cases import Case
from .compare import FLOOR_FORWARD, Comparison, uniform
from .gaussian3d import host

POINT_ARRAYS = ("means", "quats", "scales", "opacities", "sh")
PICTURES = {"image": "tile", "image_notile": "", "alpha": "tile", "normals_accum": "tile", "depth_accum": "tile",
            "depth_expected": "tile", "depth_median": "tile", "distortion": "tile", "depth_isect_accum": "near",
            "depth_isect_median": "near", "distortion_isect": "near"}


def measure(case: Case, build: Callable[[Gaussian2D.Options], Gaussian2D]) -> dict[str, np.ndarray]:
    """Return splats, pictures and the three sets of gradients, named as in the file; ``build`` makes the renderer."""
    n, size = len(case["means"]), (int(case.scalar("height")), int(case.scalar("width")))
    degree = int(case.scalar("sh_degree"))
    case.expect_shapes(means=(n, 3), quats=(n, 4), scales=(n, 2), opacities=(n,), sh=(n, (degree + 1) ** 2, 3),
                       viewmat=(4, 4), K=(3, 3), background=(3,), v_image=(*size, 3), v_alpha=size, fragile=size,
                       v_normals=(*size, 3), v_depth=size, v_distortion=size, v_depth_isect=size,
                       v_distortion_isect=size, radii=(n, 2), tile_sensitive=size, isect_before_near=size)
    view = View(case["viewmat"], case["K"], size[1], size[0], near=case.scalar("near"), far=case.scalar("far"))
    points = ArrayTable({name: np.ascontiguousarray(case[name]) for name in POINT_ARRAYS})
    patch = Patch(view, 0, 0, view.width, view.height)
    found: dict[str, np.ndarray] = {}
    for depth in ("center", "intersection"):
        renderer = build(Gaussian2D.Options(sh_degree=degree, depth=depth)).with_maps()
        # The file leaves out surfels whose 3.33-sigma box misses the picture, although that box is not conservative.
        ids = np.intersect1d(renderer.cull(view, points), np.flatnonzero((case["radii"] > 0).all(axis=1)))
        splats = renderer.splat(view, points, ids)
        out = renderer.render(patch, splats)

        alpha = host(out.alpha)
        plane = {name: np.ascontiguousarray(case[name], np.float32) for name in case if name.startswith("v_")}
        if depth == "center":
            background, v_image = case.double("background"), case.double("v_image")
            image = host(out.color).transpose(1, 2, 0) + (1 - alpha)[:, :, None] * background
            found |= {"image": image, "image_notile": image, "alpha": alpha,
                      "normals_accum": host(out.maps["normals"]).transpose(1, 2, 0),
                      "depth_accum": host(out.maps["depth"]), "depth_median": host(out.maps["median"]),
                      "depth_expected": host(out.maps["depth"]) / np.maximum(alpha, 1e-10),
                      "distortion": host(out.maps["distortion"])}
            for name in (x for x in ("means2d", "depths", "normals", "colors") if x in case):
                found[name] = np.zeros(case[name].shape)
                found[name][ids] = host(splats[name])
            v_color = np.ascontiguousarray(v_image.transpose(2, 0, 1), np.float32)
            v_alpha = (case.double("v_alpha") - v_image @ background).astype(np.float32)
            v_maps = {"normals": np.ascontiguousarray(plane["v_normals"].transpose(2, 0, 1)),
                      "depth": plane["v_depth"], "distortion": plane["v_distortion"]}
            weights = {"A": OutputGradients(v_color, v_alpha), "B": OutputGradients(v_color, v_alpha, v_maps)}
        else:
            found |= {"depth_isect_accum": host(out.maps["depth"]), "depth_isect_median": host(out.maps["median"]),
                      "distortion_isect": host(out.maps["distortion"])}
            weights = {"C": OutputGradients(None, None, {"depth": plane["v_depth_isect"],
                                                         "distortion": plane["v_distortion_isect"]})}
        for prefix, v_outputs in weights.items():
            v_points = renderer.splat_vjp(view, points, ids, splats, renderer.render_vjp(patch, splats, out, v_outputs))
            for name in POINT_ARRAYS:
                found[f"g{prefix}_{name}"] = np.zeros(points[name].shape)
                found[f"g{prefix}_{name}"][ids] = host(v_points[name])
    found["drawn"] = np.isin(np.arange(n), ids)
    return found


def compare_scene(case: Case, build: Callable[[Gaussian2D.Options], Gaussian2D] = Gaussian2D) -> list[Comparison]:
    """Return the verdict on every array that the file holds and the API gives."""
    got = measure(case, build)
    verdicts = []
    for name in (n for n in case if n in got):
        ref, x = case.double(name), got[name]
        if x.shape != ref.shape:
            verdicts.append(uniform(name, np.nan, 0.0, f"shape {x.shape} where {ref.shape} is expected"))
            continue
        kept = got["drawn"]
        if name in PICTURES:
            kept = ~case["fragile"]
            if PICTURES[name]:
                kept &= ~case["tile_sensitive"]
            if PICTURES[name] == "near":
                kept &= ~case["isect_before_near"]
        elif "g" == name[0]:
            kept = slice(None)
        error = float(np.abs(x - ref)[kept].max(initial=0)) / max(float(np.abs(ref[kept]).max(initial=0)), 1e-30)
        floor = 2e-5 if name[0] == "g" else FLOOR_FORWARD
        verdicts.append(uniform(name, error, max(floor, 4 * case.scalar(f"f32relerr__{name}", 0.0))))
    return verdicts
