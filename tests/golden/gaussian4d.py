"""Golden cases of ``gaussian4d``: whole scenes through the renderer API."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gaian_hpc.arrays import ArrayTable, Patch, View
from gaian_hpc.renderers.base import OutputGradients
from gaian_hpc.renderers.gaussian4d import GEOMETRY, Gaussian4D

from .cases import Case
from .compare import FLOOR_FORWARD, NO_COSTS, Comparison, compare, uniform
from .gaussian3d import host, scatter

POINT_ARRAYS = (*GEOMETRY, "sh")


def options_of(case: Case) -> Gaussian4D.Options:
    """Return the settings that a case was made with."""
    return Gaussian4D.Options(sh_degree=int(case.scalar("sh_degree")), sh_degree_t=int(case.scalar("sh_degree_t")),
                              duration=case.scalar("time_duration"), rotate_time=bool(case.scalar("rot_4d")),
                              blur_t=max(case.scalar("prefilter_var"), 0.0), eps2d=case.scalar("eps2d"), depth=True)


def view_of(case: Case) -> View:
    """Return the case's camera and time."""
    return View(case["viewmat"], case["K"], int(case.scalar("width")), int(case.scalar("height")),
                near=case.scalar("near"), time=case.scalar("timestamp"))


def expect_inputs(case: Case) -> None:
    """Raise CaseError unless the shapes of the inputs fit together."""
    n, size = len(case["means"]), (int(case.scalar("height")), int(case.scalar("width")))
    k = (int(case.scalar("sh_degree")) + 1) ** 2 * (int(case.scalar("sh_degree_t")) + 1)
    case.expect_shapes(means=(n, 3), times=(n,), scales=(n, 3), scales_t=(n,), quats_l=(n, 4), quats_r=(n, 4),
                       opacities=(n,), sh=(n, k, 3), viewmat=(4, 4), K=(3, 3), background=(3,), v_image=(*size, 3),
                       v_alpha=size, fragile=size)


def measure_scene(case: Case, renderer: Gaussian4D, prefix: str = "") -> dict[str, np.ndarray]:
    """Return everything that the file holds and the API gives, named as in the file."""
    view, points = view_of(case), ArrayTable({name: np.ascontiguousarray(case[name]) for name in POINT_ARRAYS})
    n, patch = points.n_rows, Patch(view, 0, 0, view.width, view.height)
    result = {}
    if not prefix:
        seen = np.flatnonzero(case["visible"]).astype(np.int64)
        splats = renderer.splat(view, points, seen)
        result = {name: scatter(n, seen, splats[name]) for name in ("means2d", "conics", "depths")}
    ids = renderer.cull(view, points)
    splats = renderer.splat(view, points, ids)
    outputs = renderer.render(patch, splats)
    background, v_image = case.double("background"), case.double("v_image")
    alpha = host(outputs.alpha)
    result |= {"image": host(outputs.color).transpose(1, 2, 0) + (1 - alpha)[:, :, None] * background, "alpha": alpha,
               "depth_accum": host(outputs.maps["depth"])}
    v_alpha = (case.double("v_alpha") - v_image @ background).astype(np.float32)
    weights = OutputGradients(np.ascontiguousarray(v_image.transpose(2, 0, 1), np.float32), v_alpha)
    v_points = renderer.splat_vjp(view, points, ids, splats, renderer.render_vjp(patch, splats, outputs, weights))
    for name in POINT_ARRAYS:
        gradient = np.zeros(points[name].shape)
        if name == "sh":  # of the active harmonics
            gradient[ids, :v_points[name].shape[1]] = host(v_points[name])
        else:
            gradient[ids] = host(v_points[name])
        result["g_" + name] = gradient
    return {prefix + name: x for name, x in result.items()}


def compare_scene(case: Case, build: Callable[[Gaussian4D.Options], Gaussian4D] = Gaussian4D) -> list[Comparison]:
    """Return the verdict on every array that the file holds and the API gives; ``build`` makes the renderer."""
    expect_inputs(case)
    got = measure_scene(case, build(options_of(case)))
    if any(name.startswith("conditional_") for name in case):
        turned = build(replace(options_of(case), direction="conditional"))
        got |= measure_scene(case, turned, "conditional_")
    verdicts = []
    for name in (n for n in case if n in got):
        rows = case["visible"] if name in ("means2d", "conics", "depths") else None
        if name.endswith(("quats_l", "quats_r")):  # a gradient grows with the inverse of its quaternion
            norm = np.linalg.norm(case.double(name.rpartition("g_")[2]), axis=1, keepdims=True)
            scale = max(np.abs(case.double(name) * norm).max(), 1e-30)
            error = float(np.abs((got[name] - case.double(name)) * norm).max() / scale)
            verdicts.append(uniform(name, error, max(1e-4, case.scalar(f"f32relerr__{name}", 0.0))))
        elif name.startswith("conditional_"):
            inside = ~case["fragile"] if got[name].shape[:2] == case["fragile"].shape else slice(None)
            ref = case.double(name)[inside]
            scale = max(np.abs(ref).max(initial=0), 1e-30)
            error = float(np.abs(got[name][inside] - ref).max(initial=0) / scale)
            verdicts.append(uniform(name, error, 1e-4 if "g_" in name else FLOOR_FORWARD))
        else:
            verdicts.append(compare(case, name, got[name], NO_COSTS, False, rows))
    return verdicts
