"""Times of the phases of a step on a GPU, everything on the device: ``python -m tests.gpu.timing [POINTS]``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

from gaian_hpc.arrays import ArrayTable, Patch, View
from gaian_hpc.backends.cuda import Device, open_device
from gaian_hpc.renderers.base import OutputGradients
from gaian_hpc.renderers.gaussian3d import Gaussian3D
from gaian_hpc.training import cuda

WIDTH, HEIGHT, REPEATS = 1920, 1080, 20


def scene(device: Device, n: int) -> tuple[View, ArrayTable]:
    """Return a view of ``n`` random Gaussians, on the device."""
    rng = np.random.default_rng(0)
    points = {"means": rng.uniform([-8, -5, 4], [8, 5, 16], (n, 3)), "quats": rng.standard_normal((n, 4)),
              "scales": np.exp(rng.normal(-4, 0.7, (n, 3))), "opacities": rng.uniform(0.05, 1, n),
              "sh": 0.3 * rng.standard_normal((n, 16, 3))}
    K = np.array([[1400, 0, WIDTH / 2], [0, 1400, HEIGHT / 2], [0, 0, 1]], np.float32)
    return (View(np.eye(4, dtype=np.float32), K, WIDTH, HEIGHT),
            ArrayTable({name: device.array(x.astype(np.float32)) for name, x in points.items()}))


def measure(device: Device, phase: Callable) -> tuple[object, float]:
    """Return what a phase returns, and its median seconds over ``REPEATS`` after two calls to warm up."""
    result, seconds = None, []
    for _ in range(REPEATS + 2):
        device.xp.cuda.Device().synchronize()
        start = time.perf_counter()
        result = phase()
        device.xp.cuda.Device().synchronize()
        seconds.append(time.perf_counter() - start)
    return result, float(np.median(seconds[2:]))


def main(n: int) -> None:
    """Print a table of milliseconds per phase."""
    device = open_device()
    view, points = scene(device, n)
    patch, renderer = Patch(view, 0, 0, WIDTH, HEIGHT), Gaussian3D.on_device(Gaussian3D.Options(), device)
    target, times = device.zeros((3, HEIGHT, WIDTH)), {}

    ids, times["cull"] = measure(device, lambda: renderer.cull(view, points))
    splats, times["splat"] = measure(device, lambda: renderer.splat(view, points, ids))
    outputs, times["render"] = measure(device, lambda: renderer.render(patch, splats))
    loss, times["loss"] = measure(device, lambda: cuda.region_loss(device, outputs.color, target, patch, 0.2))
    v_splats, times["render_vjp"] = measure(
        device, lambda: renderer.render_vjp(patch, splats, outputs, OutputGradients(loss.v_image)))
    _, times["splat_vjp"] = measure(device, lambda: renderer.splat_vjp(view, points, ids, splats, v_splats))
    name = device.xp.cuda.runtime.getDeviceProperties(device.xp.cuda.Device().id)["name"].decode()
    print(f"{name}: {n} points, {len(ids)} in view, {len(outputs.saved.lists.items)} pairs, {WIDTH} × {HEIGHT} px")
    for phase, seconds in times.items():
        print(f"  {phase:<12} {seconds * 1e3:8.3f} ms")
    print(f"  {'sum':<12} {sum(times.values()) * 1e3:8.3f} ms")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
