"""Times of the phases of a step on a GPU, everything on the device: ``python -m tests.gpu.timing [POINTS]``.

A view of random splats, for each method; beside ``gaussian3d`` the same scene in gsplat, where that is installed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from gaian_hpc.arrays import Patch, View
from gaian_hpc.backends.cuda import Device, open_device
from gaian_hpc.data.patches import make_patches
from gaian_hpc.points.store import PointStore
from gaian_hpc.renderers.base import OutputGradients, PointRenderer
from gaian_hpc.renderers.convex3d import Convex3D
from gaian_hpc.renderers.gaussian2d import Gaussian2D
from gaian_hpc.renderers.gaussian3d import Gaussian3D
from gaian_hpc.renderers.gaussian4d import Gaussian4D
from gaian_hpc.settings import OptimizerSettings
from gaian_hpc.training import cuda

METHODS = {"gaussian3d": Gaussian3D, "gaussian2d": Gaussian2D, "convex3d": Convex3D, "gaussian4d": Gaussian4D}
WIDTH, HEIGHT, REPEATS = 1920, 1080, 20
FOCAL = 1400.0


def values_of(n: int) -> dict[str, np.ndarray]:
    """Return values of ``n`` random points by attribute, of all methods, float32."""
    rng = np.random.default_rng(0)
    means, scales = rng.uniform([-8, -5, 4], [8, 5, 16], (n, 3)), np.exp(rng.normal(-4, 0.7, (n, 3)))
    values = {"means": means, "quats": rng.standard_normal((n, 4)), "scales": scales,
              "opacities": rng.uniform(0.05, 1, n), "sh": 0.3 * rng.standard_normal((n, 16, 3)),
              "points": means[:, None] + scales[:, None] * rng.standard_normal((n, 6, 3)), "delta": np.full(n, 0.1),
              "sigma": np.full(n, 0.05), "times": rng.random(n), "scales_t": rng.uniform(0.1, 0.5, n),
              "quats_l": rng.standard_normal((n, 4)), "quats_r": rng.standard_normal((n, 4))}
    return {name: x.astype(np.float32) for name, x in values.items()}


def stored(x: np.ndarray, activation: str) -> np.ndarray:
    """Return stored values from activated ones."""
    return {"identity": lambda: x, "exp": lambda: np.log(x), "sigmoid": lambda: np.log(x / (1.001 - x))}[activation]()


def store_of(renderer: PointRenderer, values: dict[str, np.ndarray], device: Device) -> PointStore:
    """Return a store of points on the device."""
    raw, n = {}, len(values["means"])
    for a in renderer.attributes:
        x = values[a.name].reshape(n, -1)
        whole = np.zeros((n, a.width), np.float32)
        whole[:, :min(a.width, x.shape[1])] = x[:, :a.width]
        raw[a.name] = stored(whole, a.activation)
    store = PointStore(renderer.attributes, raw, np.arange(n), n)
    store.move(device)
    return store


def measure(device: Device, phase: Callable) -> tuple[Any, float]:
    """Return what a phase returns, and its median seconds over ``REPEATS`` after two calls to warm up."""
    result, seconds = None, []
    for _ in range(REPEATS + 2):
        device.synchronize()
        start = time.perf_counter()
        result = phase()
        device.synchronize()
        seconds.append(time.perf_counter() - start)
    return result, float(np.median(seconds[2:]))


def phases_of(name: str, values: dict[str, np.ndarray], device: Device, view: View) -> tuple[dict[str, float], str]:
    """Return seconds by phase of a step of a method, and what it worked on."""
    renderer, patch = METHODS[name].on_device(METHODS[name].Options(), device).at_step(30_000), whole(view)
    store, times = store_of(renderer, values, device), {}
    points, target = store.values, device.zeros((3, view.height, view.width))
    adam = cuda.DeviceAdam(device, renderer.attributes, OptimizerSettings(), 1.0, 30_000)

    ids, times["cull"] = measure(device, lambda: renderer.cull(view, points))
    splats, times["splat"] = measure(device, lambda: renderer.splat(view, points, ids))
    _, times["patches"] = measure(device, lambda: cuda.reach(device, renderer, view, splats, make_patches(view, 512)))
    outputs, times["render"] = measure(device, lambda: renderer.render(patch, splats))
    loss, times["loss"] = measure(device, lambda: cuda.region_loss(device, outputs.color, target, patch, 0.2))
    v_splats, times["render_vjp"] = measure(
        device, lambda: renderer.render_vjp(patch, splats, outputs, OutputGradients(loss.v_image)))
    v_points, times["splat_vjp"] = measure(device, lambda: renderer.splat_vjp(view, points, ids, splats, v_splats))
    _, times["update"] = measure(device, lambda: adam.update(store, ids, v_points, 1))
    return times, f"{len(ids)} points in view, {len(outputs.saved.lists.items)} pairs"


def whole(view: View) -> Patch:
    """Return a view as one patch."""
    return Patch(view, 0, 0, view.width, view.height)


def gsplat_times(values: dict[str, np.ndarray], view: View, device: Device) -> dict[str, float] | str:
    """Return seconds of gsplat's rasterization of the same points, forward and with backward; or why there are none."""
    try:
        import torch
        from gsplat import rasterization
    except ImportError as error:
        return f"gsplat cannot be imported ({error})"
    names = ("means", "quats", "scales", "opacities", "sh")
    tensors = {name: torch.tensor(values[name], device="cuda", requires_grad=True) for name in names}
    K, pose = (torch.tensor(x[None], device="cuda") for x in (view.K, view.viewmat))

    def forward() -> Any:
        return rasterization(tensors["means"], tensors["quats"], tensors["scales"], tensors["opacities"], tensors["sh"],
                             pose, K, view.width, view.height, sh_degree=3, packed=False)[0]

    def both() -> None:
        forward().abs().mean().backward()
        torch.cuda.synchronize()

    def alone() -> None:
        with torch.no_grad():
            forward()
        torch.cuda.synchronize()

    return {"forward": measure(device, alone)[1], "forward and backward": measure(device, both)[1]}


def main(n: int) -> None:
    """Print a table of milliseconds per phase and method, and gsplat's beside them."""
    device, values = open_device(), values_of(n)
    K = np.array([[FOCAL, 0, WIDTH / 2], [0, FOCAL, HEIGHT / 2], [0, 0, 1]], np.float32)
    view = View(np.eye(4, dtype=np.float32), K, WIDTH, HEIGHT, time=0.5)
    name = device.xp.cuda.runtime.getDeviceProperties(device.xp.cuda.Device().id)["name"].decode()
    columns = {method: phases_of(method, values, device, view) for method in METHODS}
    print(f"{name}: {n} points, {WIDTH} × {HEIGHT} px, SH degree 3; ms")
    for method, (_, what) in columns.items():
        print(f"  {method}: {what}")
    print(f"{'':<12}" + "".join(f"{method:>12}" for method in columns))
    for phase in columns["gaussian3d"][0]:
        print(f"{phase:<12}" + "".join(f"{1e3 * times[phase]:>12.3f}" for times, _ in columns.values()))
    print(f"{'sum':<12}" + "".join(f"{1e3 * sum(times.values()):>12.3f}" for times, _ in columns.values()))
    theirs, own = gsplat_times(values, view, device), columns["gaussian3d"][0]
    if isinstance(theirs, str):
        print(theirs)
        return
    forward = own["cull"] + own["splat"] + own["render"]
    mine = {"forward": forward, "forward and backward": forward + own["render_vjp"] + own["splat_vjp"]}
    for what, seconds in theirs.items():
        print(f"{what}: gaian_hpc {1e3 * mine[what]:.3f}, gsplat {1e3 * seconds:.3f}, ratio {seconds / mine[what]:.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
