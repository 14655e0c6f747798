"""Splats that are 2D Gaussians on the screen, composited on a GPU (``kernels/ellipses``)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ...arrays import ArrayTable, Patch
from ...backends.cuda import Device
from ..base import OutputGradients, Outputs
from ..compositing.cuda import DeviceCompositor
from ..cuda import OnDevice

SOURCE = "ellipses/ellipses.cu"
N_COLUMNS = 16


class EllipsesOnDevice(OnDevice):
    """Mixin for an :class:`~gaian_hpc.renderers.ellipses.EllipseRenderer`: ``render`` and its vjp on a GPU."""

    splat_source = SOURCE
    footprint_fields = ("means2d", "radii")

    def render(self, patch: Patch, splats: ArrayTable) -> Outputs:
        """Composite splats, sorted by point id, over a patch."""
        fields = self._values(splats, "means2d", "conics", "depths", "colors", "opacities")
        table = self.device.empty((splats.n_rows, N_COLUMNS))
        self.device.kernels(SOURCE).over("pack", splats.n_rows, *fields, table)
        c = self._compositor.composite(patch, fields[2], table)
        place = self._placer(splats["depths"])
        planes = place(c.planes)
        return Outputs(planes[:3], place(1 - c.transmittance), {"depth": planes[3]} if self._depth else {}, c)

    def render_vjp(self, patch: Patch, splats: ArrayTable, outputs: Outputs, v_outputs: OutputGradients) -> ArrayTable:
        """Return gradients of the splat fields, and ``absgrad`` (M, 2) where it was asked for."""
        device, compositor, n = self.device, self._compositor, splats.n_rows
        v_planes = [(3, v_outputs.color)]
        if self._depth:
            v_planes.append((1, (v_outputs.maps or {}).get("depth")))
        sums = compositor.gradients(outputs.saved, v_planes, v_outputs.alpha)
        v = {f.name: device.empty((n, *f.shape)) for f in self.splat_fields if f.name != "radii"}
        absgrad = device.empty((n if self.absgrad else 0, 2))
        device.kernels(SOURCE).over("finish", n, np.int32(compositor.n_moments), np.int32(compositor.n_features),
                                    outputs.saved.table, sums, v["means2d"], v["conics"], v["opacities"], v["colors"],
                                    v["depths"], absgrad)
        if self.absgrad:
            v["absgrad"] = absgrad
        return self._table(v, splats["depths"])

    @property
    def _compositor(self) -> DeviceCompositor:
        return _build_compositor(self.device, self.absgrad, 4 if self._depth else 3)


@lru_cache
def _build_compositor(device: Device, absgrad: bool, n_channels: int) -> DeviceCompositor:
    method = f"Ellipse<{'true' if absgrad else 'false'}, {n_channels}>"
    return DeviceCompositor(device, SOURCE, method, 8 if absgrad else 6, n_channels, n_channels)
