"""Golden cases of ``convex3d``: whole scenes through the renderer API, in each of the file's ways to measure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gaian_hpc.arrays import ArrayTable, Patch, View
from gaian_hpc.renderers.base import OutputGradients
from gaian_hpc.renderers.convex3d import Convex3D

from .cases import Case
from .compare import FLOOR_FORWARD, Comparison, uniform
from .gaussian3d import host

POINT_ARRAYS = ("points", "delta", "sigma", "opacities", "sh")
WAYS = {"": {}, "full_": {"through_depth": True}, "unit_": {"unit_normals": True}}


def measure(case: Case, prefix: str, build: Callable[[Convex3D.Options], Convex3D]) -> dict[str, np.ndarray]:
    """Return picture and gradients of one way, named as in the file; ``build`` makes the renderer."""
    n, size = len(case["points"]), (int(case.scalar("height")), int(case.scalar("width")))
    degree = int(case.scalar("sh_degree"))
    case.expect_shapes(points=(n, 6, 3), delta=(n,), sigma=(n,), opacities=(n,), sh=(n, (degree + 1) ** 2, 3),
                       viewmat=(4, 4), K=(3, 3), background=(3,), v_image=(*size, 3), v_alpha=size, fragile=size)
    renderer = build(Convex3D.Options(sh_degree=degree, **WAYS[prefix]))
    view = View(case["viewmat"], case["K"], size[1], size[0], near=case.scalar("near"))
    points = ArrayTable({name: np.ascontiguousarray(case[name]) for name in POINT_ARRAYS})
    patch, ids = Patch(view, 0, 0, view.width, view.height), renderer.cull(view, points)
    splats = renderer.splat(view, points, ids)
    outputs = renderer.render(patch, splats)
    background, v_image, alpha = case.double("background"), case.double("v_image"), host(outputs.alpha)
    v_alpha = (case.double("v_alpha") - v_image @ background).astype(np.float32)
    weights = OutputGradients(np.ascontiguousarray(v_image.transpose(2, 0, 1), np.float32), v_alpha)
    v_points = renderer.splat_vjp(view, points, ids, splats, renderer.render_vjp(patch, splats, outputs, weights))
    found = {"image": host(outputs.color).transpose(1, 2, 0) + (1 - alpha)[:, :, None] * background, "alpha": alpha}
    for name in POINT_ARRAYS:
        gradient = np.zeros(points[name].shape)
        gradient[ids] = host(v_points[name])
        found["g_" + name] = gradient
    return {prefix + name: x for name, x in found.items()}


def compare_scene(case: Case, build: Callable[[Convex3D.Options], Convex3D] = Convex3D) -> list[Comparison]:
    """Return the verdict on every array that the file holds and the API gives."""
    got = {name: x for prefix in WAYS for name, x in measure(case, prefix, build).items()}
    verdicts = []
    for name in (n for n in case if n in got):
        ref, x = case.double(name), got[name]
        if x.shape != ref.shape:
            verdicts.append(uniform(name, np.nan, 0.0, f"shape {x.shape} where {ref.shape} is expected"))
            continue
        kept = slice(None) if "g_" in name else ~case["fragile"]
        error = float(np.abs(x - ref)[kept].max(initial=0)) / max(float(np.abs(ref[kept]).max(initial=0)), 1e-30)
        floor = 2e-5 if "g_" in name else FLOOR_FORWARD
        verdicts.append(uniform(name, error, max(floor, 4 * case.scalar(f"f32relerr__{name}", 0.0))))
    return verdicts
