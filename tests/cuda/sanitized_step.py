"""Every kernel once, on a scene so small that a sanitizer takes seconds; the program of ``test_sanitized``."""

from __future__ import annotations

from typing import Any

import numpy as np

from gaian_hpc.arrays import ArrayTable, Cloud, Patch, View
from gaian_hpc.backends.cuda import Device
from gaian_hpc.backends.messages import pack, unpack
from gaian_hpc.data.patches import make_patches
from gaian_hpc.points.cuda import morton_codes
from gaian_hpc.points.store import PointStore
from gaian_hpc.renderers.base import OutputGradients
from gaian_hpc.renderers.convex3d import Convex3D
from gaian_hpc.renderers.gaussian2d import Gaussian2D
from gaian_hpc.renderers.gaussian2d.cuda import CudaGaussian2D
from gaian_hpc.renderers.gaussian3d import Gaussian3D
from gaian_hpc.renderers.gaussian4d import Gaussian4D
from gaian_hpc.settings import DensifySettings, OptimizerSettings
from gaian_hpc.training import cuda
from gaian_hpc.training.densify.mcmc import MarkovDensity
from tests.cuda.emulation.device import emulated_device

WIDTH, HEIGHT, N_POINTS = 37, 29, 60


def scene() -> tuple[View, dict[str, np.ndarray]]:
    """Return a view, and points with the attributes of all methods."""
    rng = np.random.default_rng(0)
    n = N_POINTS
    K = np.array([[20, 0, 18], [0, 20, 14], [0, 0, 1]], np.float32)
    points = {"means": rng.uniform([-2, -2, 1], [2, 2, 5], (n, 3)), "quats": rng.standard_normal((n, 4)),
              "scales": np.exp(rng.uniform(-3, -1, (n, 3))), "opacities": rng.uniform(0.1, 1, n),
              "sh": rng.standard_normal((n, 4, 3)), "times": rng.random(n), "scales_t": rng.uniform(0.2, 1, n),
              "quats_l": rng.standard_normal((n, 4)), "quats_r": rng.standard_normal((n, 4)),
              "delta": np.full(n, 0.5), "sigma": np.full(n, 0.3)}
    points["points"] = points["means"][:, None] + 0.2 * rng.standard_normal((n, 6, 3))
    return View(np.eye(4, dtype=np.float32), K, WIDTH, HEIGHT), points


def run_step(device: Device) -> None:
    """Run every phase of a step of ``gaussian3d``, and what happens to points besides."""
    view, points = scene()
    table = ArrayTable({name: device.array(x.astype(np.float32)) for name, x in points.items()})
    renderer = Gaussian3D.on_device(Gaussian3D.Options(sh_degree=1), device, absgrad=True)
    ids, v_points, v_splats = render_phases(renderer, view, table)
    cuda.observe(device, view, ids, v_splats["absgrad"], 1, device.zeros(N_POINTS), device.zeros(N_POINTS))
    morton_codes(device, table["means"], np.zeros(3), np.ones(3))
    rows = device.array(np.arange(0, v_points.n_rows, 2))
    cloud = Cloud(points["means"], points["means"], np.ones(N_POINTS), np.arange(N_POINTS))
    raw = {a.name: a.init(cloud) for a in renderer.attributes}
    store = PointStore(renderer.attributes, raw, np.arange(N_POINTS), N_POINTS)
    store.move(device)
    adam = cuda.DeviceAdam(device, renderer.attributes, OptimizerSettings(), 1.0, 10)
    adam.update(store, ids, v_points, 1)
    cuda.shake(device, MarkovDensity(DensifySettings(strategy="mcmc"), 100, 0), store, 1, 0.1)
    for codec in ("fp32", "fp16", "bf16", "int8"):
        unpack(device, pack(device, v_points["means"], rows, codec), len(rows), (3,), codec)


def run_surfels(device: Device) -> None:
    """Run the rendering phases of ``gaussian2d`` and its loss of maps."""
    view, points = scene()
    renderer = CudaGaussian2D(Gaussian2D.Options(sh_degree=1), device, maps=True, weights=(1.0, 1.0))
    table = ArrayTable({name: device.array(x.astype(np.float32)) for name, x in points.items()})
    surfels = ArrayTable({**table, "scales": device.array(points["scales"][:, :2].astype(np.float32))})
    render_phases(renderer, view, surfels)
    patch, planes = Patch(view, 16, 0, WIDTH, 16), device.array(np.ones((5, 26, WIDTH - 6), np.float32))
    outputs = renderer.render(patch, renderer.splat(view, surfels, renderer.cull(view, surfels)))
    renderer.map_loss(patch, outputs, planes, (6, 0), None)


def run_others(device: Device) -> None:
    """Run the rendering phases of ``gaussian4d`` and ``convex3d``."""
    view, points = scene()
    table = ArrayTable({name: device.array(x.astype(np.float32)) for name, x in points.items()})
    render_phases(Gaussian4D.on_device(Gaussian4D.Options(sh_degree=1), device), view, table)
    render_phases(Convex3D.on_device(Convex3D.Options(sh_degree=1, unit_normals=True), device), view, table)


def render_phases(renderer: Any, view: View, points: ArrayTable) -> tuple[Any, ArrayTable, ArrayTable]:
    """Render a view towards black and return the ids in view and the gradients of points and splats."""
    patch, device = Patch(view, 0, 0, view.width, view.height), renderer.device
    ids = renderer.cull(view, points)
    splats = renderer.splat(view, points, ids)
    cuda.reach(device, renderer, view, splats, make_patches(view, 16))
    outputs = renderer.render(patch, splats)
    loss = cuda.region_loss(device, outputs.color, device.zeros(outputs.color.shape), patch, 0.2)
    v_splats = renderer.render_vjp(patch, splats, outputs, OutputGradients(loss.v_image))
    return ids, renderer.splat_vjp(view, points, ids, splats, v_splats), v_splats


def run(sanitizer: str, part: str) -> None:
    """Run a part and say so; a sanitizer ends the process at a mistake.

    In parts, because the thread sanitizer keeps what it knows of every fiber, and runs out of mappings.
    """
    {"step": run_step, "surfels": run_surfels, "others": run_others}[part](emulated_device(sanitizer=sanitizer))
    print(f"{part} is done")
