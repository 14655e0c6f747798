"""4D Gaussians on a GPU (``kernels/gaussian4d``)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arrays import ArrayTable, View
from ...backends.cuda import Device
from ..ellipses.cuda import EllipsesOnDevice
from ..sh import n_coefficients
from . import GEOMETRY, Gaussian4D, Options


class CudaGaussian4D(EllipsesOnDevice, Gaussian4D):
    """The method with all its kernels on ``device``; tables may lie on the host or there."""

    source = "gaussian4d/gaussian4d.cu"

    def __init__(self, options: Options, device: Device, *, absgrad: bool = False, degree: int | None = None):
        super().__init__(options, device, absgrad=absgrad, degree=degree)
        self.device = device

    def cull(self, view: View, points: ArrayTable) -> np.ndarray:
        """Return the rows that weigh something at the view's time and reach its picture then, ascending int64."""
        n = len(points["means"])
        mask = self.device.empty(n, np.bool_)
        self._project("visible", n, *self._inputs(view, points), mask)
        return self._placer(points["means"])(self.device.xp.flatnonzero(mask))

    def splat(self, view: View, points: ArrayTable, ids: np.ndarray) -> ArrayTable:
        """Project rows ``ids`` as they are at the view's time; returns ``splat_fields``, float32."""
        m, device = len(ids), self.device
        out = {f.name: device.empty((m, *f.shape)) for f in self.splat_fields}
        self._project("project", m, *self._inputs(view, points), device.array(ids, np.int64), out["means2d"],
                      out["conics"], out["depths"], out["colors"], out["opacities"], out["radii"])
        return self._table(out, points["means"])

    def splat_vjp(self, view: View, points: ArrayTable, ids: np.ndarray, splats: ArrayTable,
                  v_splats: ArrayTable) -> ArrayTable:
        """Return gradients of the activated attributes of rows ``ids``; ``sh`` up to the active harmonics only."""
        m, device = len(ids), self.device
        shapes = {a.name: a.shape for a in self.attributes}
        shapes["sh"] = (n_coefficients(self.degree) * (self.degree_t + 1), 3)
        out = {name: device.empty((m, *shapes[name])) for name in (*GEOMETRY, "sh")}
        v = self._values(v_splats, "means2d", "conics", "depths", "colors", "opacities")
        self._project("project_vjp", m, *self._inputs(view, points), device.array(ids, np.int64),
                      device.array(splats["colors"]), *v, *out.values())
        return self._table(out, points["means"])

    def _inputs(self, view: View, points: ArrayTable) -> tuple[Any, ...]:
        o = self.options
        return (self._camera(view), np.float32(view.time), np.float32(o.duration),
                np.float32(o.eps2d), np.float32(o.blur_t), np.int32(o.rotate_time),
                np.int32(o.direction == "conditional"), np.int32(self.degree_t),
                *self._values(points, *GEOMETRY, "sh"), np.int32(points["sh"].shape[1]))
