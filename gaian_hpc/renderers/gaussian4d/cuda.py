"""4D Gaussians on a GPU (``kernels/gaussian4d``)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arrays import ArrayTable, View
from ...backends.cuda import Device, KernelFile
from ..ellipses.cuda import EllipsesOnDevice
from ..projection import pack_camera
from ..sh import n_coefficients
from . import GEOMETRY, Gaussian4D, Options

SOURCE = "gaussian4d/gaussian4d.cu"


class CudaGaussian4D(EllipsesOnDevice, Gaussian4D):
    """The method with all its kernels on ``device``; tables may lie on the host or there."""

    def __init__(self, options: Options, device: Device, *, absgrad: bool = False, degree: int | None = None):
        super().__init__(options, device, absgrad=absgrad, degree=degree)
        self.device = device

    def cull(self, view: View, points: ArrayTable) -> np.ndarray:
        """Return the rows that weigh something at the view's time and reach its picture then, ascending int64."""
        n = len(points["means"])
        mask = self.device.empty(n, np.bool_)
        self._kernels_of_degree().over("visible", n, *self._inputs(view, points), mask)
        return self._placer(points["means"])(self.device.xp.flatnonzero(mask))

    def splat(self, view: View, points: ArrayTable, ids: np.ndarray) -> ArrayTable:
        """Project rows ``ids`` as they are at the view's time; returns ``splat_fields``, float32."""
        m, device = len(ids), self.device
        out = {f.name: device.empty((m, *f.shape)) for f in self.splat_fields}
        self._kernels_of_degree().over(
            f"project<{self.degree}>", m, *self._inputs(view, points), device.array(ids, np.int64), out["means2d"],
            out["conics"], out["depths"], out["colors"], out["opacities"], out["radii"])
        place = self._placer(points["means"])
        return ArrayTable({name: place(x) for name, x in out.items()}, m)

    def splat_vjp(self, view: View, points: ArrayTable, ids: np.ndarray, splats: ArrayTable,
                  v_splats: ArrayTable) -> ArrayTable:
        """Return gradients of the activated attributes of rows ``ids``; ``sh`` up to the active harmonics only."""
        m, device = len(ids), self.device
        shapes = {a.name: a.shape for a in self.attributes}
        shapes["sh"] = (n_coefficients(self.degree) * (self.degree_t + 1), 3)
        out = {name: device.empty((m, *shapes[name])) for name in (*GEOMETRY, "sh")}
        v = [device.array(v_splats[name], np.float32) for name in ("means2d", "conics", "depths", "colors",
                                                                   "opacities")]
        self._kernels_of_degree().over(
            f"project_vjp<{self.degree}>", m, *self._inputs(view, points), device.array(ids, np.int64),
            device.array(splats["colors"]), *v, *out.values())
        place = self._placer(points["means"])
        return ArrayTable({name: place(x) for name, x in out.items()}, m)

    def _kernels_of_degree(self) -> KernelFile:
        kernels = self.device.kernels(SOURCE)
        kernels.prepare(f"project<{self.degree}>", f"project_vjp<{self.degree}>")
        return kernels

    def _inputs(self, view: View, points: ArrayTable) -> tuple[Any, ...]:
        o, array = self.options, self.device.array
        return (array(pack_camera(view), np.float32), np.float32(view.time), np.float32(o.duration),
                np.float32(o.eps2d), np.float32(o.blur_t), np.int32(o.rotate_time),
                np.int32(o.direction == "conditional"), np.int32(self.degree_t),
                *(array(points[name]) for name in (*GEOMETRY, "sh")), np.int32(points["sh"].shape[1]))
