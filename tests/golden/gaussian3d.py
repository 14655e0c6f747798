"""Golden cases of ``gaussian3d``: whole scenes, the projection alone, and spherical harmonics, all through its API."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gaian_hpc.arrays import ArrayTable, Patch, View
from gaian_hpc.renderers.base import OutputGradients
from gaian_hpc.renderers.reference import (
    ReferenceGaussian3D,
    covariances,
    covariances_vjp,
    half_widths,
    project,
)

from .cases import Case
from .compare import EXACT, FLOOR_FORWARD, MULTIPLE, Comparison, Costs, compare, uniform

POINT_ARRAYS = ("means", "quats", "scales", "opacities", "sh")
GRADIENT_WIDTHS = {"means2d": (2,), "conics": (3,), "depths": (), "colors": (3,), "opacities": (), "absgrad": (2,)}
RADIUS_ARRAYS = ("radii", "radii_opacity_aware", "radii_opacity_aware_aa")
RADIUS_SLACK = 1e-3  # px, and relative: where `ceil` may go either way in float32
C0 = np.sqrt(1 / (4 * np.pi))


@dataclass(frozen=True)
class Implementation:
    """What is checked: ``build(degree, antialiased, eps2d)`` returns a renderer whose inputs are ``dtype``."""

    build: Callable[[int, bool, float], Any]
    dtype: type

    @classmethod
    def reference(cls, dtype: type = np.float64) -> Implementation:
        """Return the oracle in a given precision."""
        return cls(lambda *options: ReferenceGaussian3D(ReferenceGaussian3D.Options(*options), dtype), dtype)


def host(x: Any) -> np.ndarray:
    """Return a device or host array as float64 on the host."""
    return np.asarray(x.get() if hasattr(x, "get") else x).astype(np.float64)


def view_of(case: Case) -> View:
    """Return the case's camera."""
    return View(case["viewmat"], case["K"], int(case.scalar("width")), int(case.scalar("height")),
                near=case.scalar("near"), far=case.scalar("far"))


def expect_inputs(case: Case) -> None:
    """Raise CaseError unless the shapes of a scene's or a projection's inputs fit together."""
    n, degree = len(case["means"]), int(case.scalar("sh_degree"))
    size = (int(case.scalar("height")), int(case.scalar("width")))
    case.expect_shapes(means=(n, 3), quats=(n, 4), scales=(n, 3), opacities=(n,), sh=(n, (degree + 1) ** 2, 3),
                       viewmat=(4, 4), K=(3, 3), background=(3,), v_image=(*size, 3), v_alpha=size, v_depth=size,
                       fragile=size, radii=(n, 2), radii_fragile=(n,), v_means2d=(n, 2), v_depths=(n,),
                       v_conics=(n, 3), v_compensations=(n,), v_covars=(n, 3, 3))


def points_of(case: Case, **replaced: np.ndarray) -> ArrayTable:
    """Return the case's points; a file of the projection alone has no colours and gets black ones."""
    n = len(case["means"])
    arrays = {"sh": np.zeros((n, (int(case.scalar("sh_degree")) + 1) ** 2, 3), np.float32)}
    arrays |= {name: np.ascontiguousarray(case[name]) for name in POINT_ARRAYS if name in case}
    return ArrayTable(arrays | replaced)


def scatter(n: int, ids: np.ndarray, x: Any) -> np.ndarray:
    """Return (n, …) float64 zeros with ``x`` at rows ``ids``."""
    x = host(x)
    full = np.zeros((n, *x.shape[1:]))
    full[ids] = x
    return full


def splat_gradients(n: int, dtype: type, **given: np.ndarray) -> ArrayTable:
    """Return gradients of n splats that are zero but for the given fields."""
    fields = {name: np.zeros((n, *shape), dtype) for name, shape in GRADIENT_WIDTHS.items()}
    return ArrayTable(fields | {name: np.ascontiguousarray(x, dtype) for name, x in given.items()}, n)


def _renderer(case: Case, implementation: Implementation, antialiased: bool) -> Any:
    return implementation.build(int(case.scalar("sh_degree")), antialiased, case.scalar("eps2d"))


def _opaque(case: Case) -> ArrayTable:
    return points_of(case, opacities=np.ones(len(case["means"]), np.float32))


def measure_radii(case: Case, implementation: Implementation) -> dict[str, np.ndarray]:
    """Return the box half-widths (N, 2), zero for culled rows, under the names of the golden boxes.

    An opacity of one reaches 1/255 at 3.329 standard deviations, so it stands for the fixed 3.33 within the slack.
    """
    view, result = view_of(case), {}
    for name, points, antialiased in (("radii", _opaque(case), False),
                                      ("radii_opacity_aware", points_of(case), False),
                                      ("radii_opacity_aware_aa", points_of(case), True)):
        renderer = _renderer(case, implementation, antialiased)
        ids = renderer.cull(view, points)
        result[name] = scatter(points.n_rows, ids, renderer.splat(view, points, ids)["radii"])
    return result


def measure_splats(case: Case, implementation: Implementation) -> dict[str, np.ndarray]:
    """Return the per-point outputs, taken at full opacity so that no row is dropped for being faint."""
    view, points = view_of(case), _opaque(case)
    ids = np.flatnonzero((case["radii"] > 0).all(axis=1)).astype(np.int64)
    splats = _renderer(case, implementation, False).splat(view, points, ids)
    result = {name: scatter(points.n_rows, ids, splats[name]) for name in ("means2d", "depths", "conics", "colors")}
    faded = _renderer(case, implementation, True).splat(view, points, ids)
    result["compensations"] = scatter(points.n_rows, ids, faded["opacities"])
    result["drawn"] = scatter(points.n_rows, ids, splats["radii"]).max(axis=1) > 0
    return result


def _loss_scale(case: Case, prefix: str) -> float:
    """Return the sum of absolute terms of the loss: its rounding error follows them, not their sum."""
    return float(np.sum(np.abs(case.double("v_image") * case.double(prefix + "image")))
                 + np.sum(np.abs(case.double("v_alpha") * case.double(prefix + "alpha"))))


def measure_pictures(case: Case, implementation: Implementation, prefix: str) -> dict[str, np.ndarray]:
    """Return pictures, loss and gradients of one set (``prefix`` is empty or ``aa_``), named as in the file."""
    view, points, dtype = view_of(case), points_of(case), implementation.dtype
    renderer = _renderer(case, implementation, prefix == "aa_")
    patch = Patch(view, 0, 0, view.width, view.height)
    ids = renderer.cull(view, points)
    splats = renderer.splat(view, points, ids)
    outputs = renderer.render(patch, splats)
    color, alpha = host(outputs.color).transpose(1, 2, 0), host(outputs.alpha)
    background, v_image = case.double("background"), case.double("v_image")
    image = color + (1 - alpha)[:, :, None] * background
    result = {"image": image, "alpha": alpha, "depth_accum": host(outputs.maps["depth"]),
              "loss": np.sum(v_image * image) + np.sum(case.double("v_alpha") * alpha),
              "g_background": np.sum(v_image * (1 - alpha)[:, :, None], axis=(0, 1))}
    if "n_contrib" in outputs.maps:
        result["n_contrib"] = host(outputs.maps["n_contrib"])
    # The picture is color + (1 - alpha) background, so the background reaches alpha's gradient.
    v_color = np.ascontiguousarray(v_image.transpose(2, 0, 1), dtype)
    v_alpha = (case.double("v_alpha") - v_image @ background).astype(dtype)

    def gradients(name: str, v_outputs: OutputGradients) -> dict[str, np.ndarray]:
        v_splats = renderer.render_vjp(patch, splats, outputs, v_outputs)
        v_points = renderer.splat_vjp(view, points, ids, splats, v_splats)
        found = {f"{name}_{k}": scatter(points.n_rows, ids, v_points[k]) for k in POINT_ARRAYS}
        found |= {f"{name}_{k}": scatter(points.n_rows, ids, v_splats[k]) for k in ("means2d", "conics", "colors")}
        found["absgrad_means2d"] = scatter(points.n_rows, ids, v_splats["absgrad"])
        return found

    result |= gradients("g", OutputGradients(v_color, v_alpha))
    if "v_depth" in case and not prefix:
        v_maps = {"depth": case["v_depth"].astype(dtype)}
        depth = gradients("gdepth", OutputGradients(np.zeros_like(v_color), np.zeros_like(v_alpha), v_maps))
        result |= {name: x for name, x in depth.items() if name.startswith("gdepth_")}
    return {prefix + name: x for name, x in result.items()}


def measure_scene(case: Case, implementation: Implementation) -> dict[str, np.ndarray]:
    """Return everything a scene file holds that the API gives."""
    result = measure_radii(case, implementation) | measure_splats(case, implementation)
    result["campos"] = view_of(case).camera_center
    result |= measure_pictures(case, implementation, "")
    if any(name.startswith("aa_") for name in case):
        result |= measure_pictures(case, implementation, "aa_")
    return result


def measure_projection(case: Case, implementation: Implementation) -> dict[str, np.ndarray]:
    """Return everything a projection file holds that the API gives.

    The compensation is the antialiased opacity of an opaque point, so its gradient is that opacity's.
    """
    view, points = view_of(case), _opaque(case)
    result = measure_radii(case, implementation) | measure_splats(case, implementation)
    ids = np.flatnonzero((case["radii"] > 0).all(axis=1)).astype(np.int64)
    totals = {name: 0.0 for name in ("means", "quats", "scales")}
    for antialiased, fields in ((False, ("means2d", "depths", "conics")), (True, ("opacities",))):
        sources = {name: "v_compensations" if name == "opacities" else f"v_{name}" for name in fields}
        v_splats = splat_gradients(len(ids), implementation.dtype, **{k: case[v][ids] for k, v in sources.items()})
        renderer = _renderer(case, implementation, antialiased)
        v_points = renderer.splat_vjp(view, points, ids, renderer.splat(view, points, ids), v_splats)
        totals = {name: x + scatter(points.n_rows, ids, v_points[name]) for name, x in totals.items()}
    return result | {f"g_{name}": x for name, x in totals.items()}


def covariance_arrays(case: Case) -> dict[str, np.ndarray]:
    """Return the oracle's world covariances and their gradients; the renderer API does not show them."""
    quats, scales = case.double("quats"), case.double("scales")
    v_quats, v_scales = covariances_vjp(quats, scales, case.double("v_covars"))
    return {"covars": covariances(quats, scales), "gcov_quats": v_quats, "gcov_scales": v_scales}


def _axis_views(dirs: np.ndarray) -> list[tuple[View, np.ndarray]]:
    """Return up to six cameras at the origin that together look at all ``dirs``, each with the rows it sees."""
    axis = np.argmax(np.abs(dirs), axis=1)
    sign = np.sign(dirs[np.arange(len(dirs)), axis])
    K = np.array([[16, 0, 32], [0, 16, 32], [0, 0, 1]], np.float32)
    views = []
    for forward in range(3):
        for s in (-1, 1):
            rows = np.flatnonzero((axis == forward) & (sign == s)).astype(np.int64)
            z = s * np.eye(3)[forward]
            x = np.eye(3)[(forward + 1) % 3]
            viewmat = np.eye(4, dtype=np.float32)
            viewmat[:3, :3] = [x, np.cross(z, x), z]
            if len(rows):
                views.append((View(viewmat, K, 64, 64, near=1e-6), rows))
    return views


def measure_sh(case: Case, implementation: Implementation) -> dict[str, np.ndarray]:
    """Return harmonic sums and their gradients from points that lie at ``dirs`` around a camera at the origin.

    The first coefficient is raised so that no colour meets the clamp at zero, and the sums are lowered again.
    """
    dirs, coeffs, n = case["dirs"], case["coeffs"], len(case["dirs"])
    degrees = [int(name.removeprefix("colors_deg")) for name in case if name.startswith("colors_deg")]
    lift = 2 + max(np.abs(case.double(f"colors_deg{d}")).max() for d in degrees)
    raised = coeffs.copy()
    raised[:, 0] += np.float32(lift / C0)
    offset = 0.5 + C0 * (raised[:, 0].astype(np.float64) - coeffs[:, 0])
    distance = np.linalg.norm(dirs, axis=1, keepdims=True)
    points = ArrayTable({"means": dirs, "quats": np.tile(np.float32([1, 0, 0, 0]), (n, 1)), "sh": raised,
                         "scales": (np.ones((1, 3)) * 0.05 * distance).astype(np.float32),
                         "opacities": np.full(n, 0.9, np.float32)})
    result = {}
    for degree in degrees:
        renderer = implementation.build(degree, False, 0.3)
        colors, v_dirs, v_coeffs = np.zeros((n, 3)), np.zeros((n, 3)), np.zeros(coeffs.shape)
        for view, ids in _axis_views(dirs):
            splats = renderer.splat(view, points, ids)
            v_splats = splat_gradients(len(ids), implementation.dtype, colors=case["v_colors"][ids])
            v_points = renderer.splat_vjp(view, points, ids, splats, v_splats)
            colors[ids] = host(splats["colors"]) - offset[ids]
            v_dirs[ids] = host(v_points["means"])
            v_coeffs[ids, : (degree + 1) ** 2] = host(v_points["sh"])[:, : (degree + 1) ** 2]
        result |= {f"colors_deg{degree}": colors, f"g_dirs_deg{degree}": v_dirs, f"g_coeffs_deg{degree}": v_coeffs}
    return result


def costs_of(case: Case, measure: Callable[[Case, Implementation], dict[str, np.ndarray]], n: int) -> Costs:
    """Return what the oracle measures, in float32 on the case itself and on n − 1 copies moved in their last bit.

    Centres stay and the camera moves as a whole, so that equal depths remain equal.
    """
    rng = np.random.default_rng(0)

    def moved(x: np.ndarray) -> np.ndarray:
        return x * (1 + np.float32(2**-23) * rng.integers(-1, 2, x.shape).astype(np.float32))

    singles = []
    for copy in range(n):
        arrays = dict(case.arrays)
        for name in ("quats", "scales", "opacities", "K", "coeffs") if copy else ():
            if name in arrays:
                arrays[name] = moved(arrays[name])
        if copy and "viewmat" in arrays:
            arrays["viewmat"] = arrays["viewmat"].copy()
            arrays["viewmat"][:3, 3] = moved(arrays["viewmat"][:3, 3])
        singles.append(measure(replace(case, arrays=arrays), Implementation.reference(np.float32)))
    return Costs(measure(case, Implementation.reference()), singles)


def compare_radii(case: Case, name: str, got: np.ndarray, costs: Costs) -> Comparison:
    """Compare box half-widths, rounded up or not, with the golden whole pixels.

    The error is in pixels beyond the slack. A box that holds no pixel centre may be culled or kept.
    """
    ref = case.double(name)
    if got.shape != ref.shape:
        return uniform(name, np.nan, 0.0, f"shape {got.shape} where {ref.shape} is expected")
    p = project(view_of(case), *(case.double(k) for k in ("means", "quats", "scales")), case.scalar("eps2d"))
    opacities = np.ones(len(ref)) if name == "radii" else case.double("opacities")
    exact = half_widths(p, opacities * (p.compensations if name.endswith("_aa") else 1))
    size = np.array([case.scalar("width"), case.scalar("height")])
    margin = RADIUS_SLACK * (1 + ref)
    empty = ((p.means2d + exact < 0.5 + margin) | (p.means2d - exact > size - 0.5 - margin)).any(axis=1)
    dropped = (got == 0).all(axis=1) | (ref == 0).all(axis=1)
    free = empty & dropped & (exact > 0).all(axis=1)
    strays = [np.where(free[:, None], 0, np.abs(single[name] - exact)) for single in costs.singles]
    cost = np.max([*strays, np.zeros_like(ref)], axis=0)
    slack = margin + case["radii_fragile"][:, None] + MULTIPLE * cost
    excess = np.maximum(np.maximum(got - ref, ref - 1 - got) - slack, 0)
    return uniform(name, float(np.where(free[:, None], 0, excess).max(initial=0)), 0.0, "px beyond the slack")


def compare_all(case: Case, got: dict[str, np.ndarray], costs: Costs,
                exact: bool) -> list[Comparison]:
    """Return the verdict on every array that was measured and that the file holds."""
    verdicts = []
    for name in (n for n in case if n in got):
        if name in RADIUS_ARRAYS:
            verdicts.append(compare_radii(case, name, got[name], costs))
        elif name.endswith("loss"):
            scale = _loss_scale(case, name.removesuffix("loss"))
            error = abs(float(got[name]) - case.scalar(name)) / scale
            verdicts.append(uniform(name, error, EXACT if exact else FLOOR_FORWARD))
        elif name in ("means2d", "depths", "conics", "colors", "compensations") and "drawn" in got:
            # A row whose box holds no pixel may be culled; `radii` says whether that was right.
            verdicts.append(compare(case, name, got[name], costs, exact, got["drawn"]))
        else:
            verdicts.append(compare(case, name, got[name], costs, exact and name != "campos"))
    return verdicts
