"""3D Convex Splatting on a GPU (``kernels/convex3d``)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ...arrays import ArrayTable, Patch, View
from ...backends.cuda import Device
from ..base import OutputGradients, Outputs
from ..compositing.cuda import DeviceCompositor
from ..cuda import OnDevice
from ..sh import n_coefficients
from . import Convex3D, Options

CONVEXES = "convex3d/convexes.cu"
N_COLUMNS, N_MOMENTS = 32, 20


class CudaConvex3D(OnDevice, Convex3D):
    """The method with all its kernels on ``device``; tables may lie on the host or there.

    Projection is in float64, what a pixel does in float32.
    """

    source = "convex3d/convex3d.cu"
    camera_type = np.float64
    splat_source = CONVEXES
    footprint_fields = ("centers2d", "extents")

    def __init__(self, options: Options, device: Device, *, degree: int | None = None):
        super().__init__(options, device, degree=degree)
        self.device = device

    def cull(self, view: View, points: ArrayTable) -> np.ndarray:
        """Return the rows of convexes that may reach alpha ≥ 1/255 on the picture, ascending int64."""
        n = len(points["points"])
        mask = self.device.empty(n, np.bool_)
        self._project("visible", n, self._camera(view), *self._shapes(points), self._opacities(points), self._by_length,
                      mask)
        return self._placer(points["points"])(self.device.xp.flatnonzero(mask))

    def splat(self, view: View, points: ArrayTable, ids: np.ndarray) -> ArrayTable:
        """Project rows ``ids``; returns ``splat_fields``, float32."""
        m, device, opacities = len(ids), self.device, self._opacities(points)
        rows, (sh,) = device.array(ids, np.int64), self._values(points, "sh")
        out = {f.name: device.empty((m, *f.shape)) for f in self.splat_fields if f.name != "opacities"}
        self._project("project", m, rows, self._camera(view), *self._shapes(points), opacities, sh,
                      np.int32(sh.shape[1]), self._by_length, out["centers2d"], out["edges"], out["sharpness"],
                      out["depths"], out["colors"], out["extents"])
        return self._table(out | {"opacities": device.xp.take(opacities, rows)}, points["points"])

    def splat_vjp(self, view: View, points: ArrayTable, ids: np.ndarray, splats: ArrayTable,
                  v_splats: ArrayTable) -> ArrayTable:
        """Return gradients of the activated attributes of rows ``ids``; ``sh`` up to the active degree only."""
        m, device, o = len(ids), self.device, self.options
        (sh,) = self._values(points, "sh")
        shapes = {"points": (o.n_points, 3), "delta": (), "sigma": (), "sh": (n_coefficients(self.degree), 3)}
        out = {name: device.empty((m, *shape)) for name, shape in shapes.items()}
        *v, v_opacities = self._values(v_splats, "edges", "sharpness", "depths", "colors", "opacities")
        self._project("project_vjp", m, device.array(ids, np.int64), self._camera(view), *self._shapes(points), sh,
                      np.int32(sh.shape[1]), self._by_length, np.int32(o.through_depth),
                      device.array(splats["colors"]), *v, *out.values())
        return self._table(out | {"opacities": v_opacities}, points["points"])

    def render(self, patch: Patch, splats: ArrayTable) -> Outputs:
        """Composite splats, sorted by point id, over a patch."""
        fields = self._values(splats, "centers2d", "edges", "sharpness", "opacities", "colors", "depths", "extents")
        table = self.device.empty((splats.n_rows, N_COLUMNS))
        self.device.kernels(CONVEXES).over("pack", splats.n_rows, *fields, table)
        c = self._compositor.composite(patch, fields[5], table)
        place = self._placer(splats["depths"])
        planes = place(c.planes)
        return Outputs(planes[:3], place(1 - c.transmittance), {"depth": planes[3]} if self.options.depth else {}, c)

    def render_vjp(self, patch: Patch, splats: ArrayTable, outputs: Outputs, v_outputs: OutputGradients) -> ArrayTable:
        """Return gradients of the splat fields, and ``means2d`` (M, 2), that of a shift of the whole splat."""
        device, compositor, n = self.device, self._compositor, splats.n_rows
        v_planes = [(3, v_outputs.color)]
        if self.options.depth:
            v_planes.append((1, (v_outputs.maps or {}).get("depth")))
        sums = compositor.gradients(outputs.saved, v_planes, v_outputs.alpha)
        v = {f.name: device.empty((n, *f.shape)) for f in self.gradient_fields}
        device.kernels(CONVEXES).over("finish", n, np.int32(compositor.n_features), outputs.saved.table, sums,
                                      v["edges"], v["sharpness"], v["opacities"], v["colors"], v["depths"],
                                      v["means2d"])
        return self._table(v, splats["depths"])

    def _shapes(self, points: ArrayTable) -> list[Any]:
        corners, *widths = self._values(points, "points", "delta", "sigma")
        return [corners, np.int32(corners.shape[1]), *widths]

    def _opacities(self, points: ArrayTable) -> Any:
        return self._values(points, "opacities")[0]

    @property
    def _by_length(self) -> np.int32:
        return np.int32(self.options.unit_normals)

    @property
    def _compositor(self) -> DeviceCompositor:
        return _build_compositor(self.device, 4 if self.options.depth else 3)


@lru_cache
def _build_compositor(device: Device, n_channels: int) -> DeviceCompositor:
    return DeviceCompositor(device, CONVEXES, f"Convex<{n_channels}>", N_MOMENTS, n_channels, n_channels)
