"""Every kernel once, on a scene so small that a sanitizer takes seconds; the program of ``test_sanitized``."""

from __future__ import annotations

import numpy as np

from gaian_hpc.arrays import ArrayTable, Patch, View
from gaian_hpc.backends.messages import pack, unpack
from gaian_hpc.points.cuda import morton_codes
from gaian_hpc.renderers.base import OutputGradients
from gaian_hpc.renderers.gaussian3d import Gaussian3D
from gaian_hpc.renderers.gaussian4d import Gaussian4D
from gaian_hpc.training import cuda
from tests.cuda.emulation.device import emulated_device


def run(sanitizer: str) -> None:
    """Run the step and print what it did; a sanitizer ends the process at a mistake."""
    rng = np.random.default_rng(0)
    n = 60
    K = np.array([[20, 0, 18], [0, 20, 14], [0, 0, 1]], np.float32)
    view = View(np.eye(4, dtype=np.float32), K, 37, 29)
    points = {"means": rng.uniform([-2, -2, 1], [2, 2, 5], (n, 3)), "quats": rng.standard_normal((n, 4)),
              "scales": np.exp(rng.uniform(-3, -1, (n, 3))), "opacities": rng.uniform(0.1, 1, n),
              "sh": rng.standard_normal((n, 4, 3))}
    patch = Patch(view, 0, 0, view.width, view.height)
    device = emulated_device(sanitizer=sanitizer)
    table = ArrayTable({name: device.array(x.astype(np.float32)) for name, x in points.items()})
    renderer = Gaussian3D.on_device(Gaussian3D.Options(sh_degree=1), device, absgrad=True)
    ids = renderer.cull(view, table)
    splats = renderer.splat(view, table, ids)
    outputs = renderer.render(patch, splats)
    loss = cuda.region_loss(device, outputs.color, device.zeros(outputs.color.shape), patch, 0.2)
    v_splats = renderer.render_vjp(patch, splats, outputs, OutputGradients(loss.v_image))
    v_points = renderer.splat_vjp(view, table, ids, splats, v_splats)
    cuda.observe(device, view, ids, v_splats["absgrad"], 1, device.zeros(n), device.zeros(n))
    moving = {"times": rng.random(n), "scales_t": rng.uniform(0.2, 1, n), "quats_l": rng.standard_normal((n, 4)),
              "quats_r": rng.standard_normal((n, 4))}
    at_times = ArrayTable({**table, **{name: device.array(x.astype(np.float32)) for name, x in moving.items()}})
    renderer = Gaussian4D.on_device(Gaussian4D.Options(sh_degree=1), device)
    ids = renderer.cull(view, at_times)
    splats = renderer.splat(view, at_times, ids)
    renderer.splat_vjp(view, at_times, ids, splats, splats)
    morton_codes(device, table["means"], np.zeros(3), np.ones(3))
    ids = device.array(np.arange(v_points.n_rows))
    for codec in ("fp32", "fp16", "bf16", "int8"):
        data = pack(device, v_points["means"], device.array(np.arange(0, len(ids), 2)), codec)
        unpack(device, data, -(-len(ids) // 2), (3,), codec)
    print("pairs summed, bytes packed")
