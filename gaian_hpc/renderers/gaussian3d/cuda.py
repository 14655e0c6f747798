"""3D Gaussian Splatting on a GPU (``kernels/gaussian3d``)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arrays import ArrayTable, View
from ...backends.cuda import Device
from ..ellipses.cuda import EllipsesOnDevice
from ..sh import n_coefficients
from . import Gaussian3D, Options


class CudaGaussian3D(EllipsesOnDevice, Gaussian3D):
    """The method with all its kernels on ``device``; tables may lie on the host or there."""

    source = "gaussian3d/gaussian3d.cu"

    def __init__(self, options: Options, device: Device, *, absgrad: bool = False, degree: int | None = None):
        super().__init__(options, device, absgrad=absgrad, degree=degree)
        self.device = device

    def cull(self, view: View, points: ArrayTable) -> np.ndarray:
        """Return the rows whose splat has alpha ≥ 1/255 inside its pixel box on the picture, ascending int64."""
        n = len(points["means"])
        mask = self.device.empty(n, np.bool_)
        self._project("visible", n, self._camera(view), *self._points(points)[:4], *self._flags(), mask)
        return self._placer(points["means"])(self.device.xp.flatnonzero(mask))

    def splat(self, view: View, points: ArrayTable, ids: np.ndarray) -> ArrayTable:
        """Project rows ``ids``; returns ``splat_fields``, float32."""
        m, values = len(ids), self._points(points)
        out = {f.name: self.device.empty((m, *f.shape)) for f in self.splat_fields}
        self._project("project", m, self.device.array(ids, np.int64), self._camera(view), *values,
                      np.int32(values[-1].shape[1]), *self._flags(), out["means2d"], out["conics"], out["depths"],
                      out["colors"], out["opacities"], out["radii"])
        return self._table(out, points["means"])

    def splat_vjp(self, view: View, points: ArrayTable, ids: np.ndarray, splats: ArrayTable,
                  v_splats: ArrayTable) -> ArrayTable:
        """Return gradients of the activated attributes of rows ``ids``; ``sh`` up to the active degree only."""
        m, values, device = len(ids), self._points(points), self.device
        shapes = {"means": (3,), "quats": (4,), "scales": (3,), "opacities": (), "sh": (n_coefficients(self.degree), 3)}
        out = {name: device.empty((m, *shape)) for name, shape in shapes.items()}
        v = self._values(v_splats, "means2d", "conics", "depths", "colors", "opacities")
        self._project("project_vjp", m, device.array(ids, np.int64), self._camera(view), *values,
                      np.int32(values[-1].shape[1]), *self._flags(), device.array(splats["colors"]), *v, *out.values())
        return self._table(out, points["means"])

    def _points(self, points: ArrayTable) -> list[Any]:
        return self._values(points, "means", "quats", "scales", "opacities", "sh")

    def _flags(self) -> tuple[np.float32, np.int32]:
        return np.float32(self.options.eps2d), np.int32(self.options.antialiased)
