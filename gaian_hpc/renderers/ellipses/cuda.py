"""Splats that are 2D Gaussians on the screen, composited on a GPU (``kernels/ellipses``)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ...arrays import ArrayTable, Patch
from ...backends.cuda import Device
from ..base import OutputGradients, Outputs
from ..compositing.cuda import Composited, DeviceCompositor, DeviceTileLists

SOURCE = "ellipses/ellipses.cu"
N_COLUMNS = 16


@dataclass(frozen=True, slots=True)
class _Saved:
    table: Any
    lists: DeviceTileLists
    composited: Composited


class EllipsesOnDevice:
    """Mixin for an :class:`~gaian_hpc.renderers.ellipses.EllipseRenderer`: ``render`` and its vjp on a GPU.

    Tables come from, and go back to, host or device: a result lies where its splats do.
    """

    device: Device

    def render(self, patch: Patch, splats: ArrayTable) -> Outputs:
        """Composite splats, sorted by point id, over a patch."""
        device, compositor = self.device, self._compositor
        fields = {name: device.array(splats[name]) for name in ("means2d", "conics", "depths", "colors", "opacities")}
        table = device.empty((splats.n_rows, N_COLUMNS))
        device.kernels(SOURCE).over("pack", splats.n_rows, *fields.values(), table)
        lists = compositor.bin_splats(patch, fields["depths"], table)
        out = compositor.forward(patch, lists, table)
        place = self._placer(splats["depths"])
        planes = place(out.planes)
        maps = {"depth": planes[3]} if compositor.n_channels == 4 else {}
        return Outputs(planes[:3], place(1 - out.transmittance), maps, _Saved(table, lists, out))

    def render_vjp(self, patch: Patch, splats: ArrayTable, outputs: Outputs, v_outputs: OutputGradients) -> ArrayTable:
        """Return gradients of the splat fields, and ``absgrad`` (M, 2) where it was asked for."""
        device, compositor, saved, n = self.device, self._compositor, outputs.saved, splats.n_rows
        size = (patch.height, patch.width)
        v_planes = device.array(v_outputs.color, np.float32)
        if compositor.n_channels == 4:
            v_depth = (v_outputs.maps or {}).get("depth")
            v_depth = device.zeros(size) if v_depth is None else device.array(v_depth, np.float32)
            v_planes = device.xp.concatenate([v_planes, v_depth[None]])
        v_alpha = device.zeros(size) if v_outputs.alpha is None else device.array(v_outputs.alpha, np.float32)
        sums = compositor.backward(patch, saved.lists, saved.table, saved.composited, v_planes, v_alpha)
        v = {f.name: device.empty((n, *f.shape)) for f in self.splat_fields if f.name != "radii"}
        absgrad = device.empty((n if self.absgrad else 0, 2))
        device.kernels(SOURCE).over("finish", n, np.int32(compositor.n_moments), np.int32(compositor.n_channels),
                                    saved.table, sums, v["means2d"], v["conics"], v["opacities"], v["colors"],
                                    v["depths"], absgrad)
        if self.absgrad:
            v["absgrad"] = absgrad
        place = self._placer(splats["depths"])
        return ArrayTable({name: place(x) for name, x in v.items()}, n)

    def _placer(self, like: Any):
        """Return what moves results to where ``like`` is."""
        return self.device.host if type(like) is np.ndarray else lambda x: x

    @property
    def _compositor(self) -> DeviceCompositor:
        return _build_compositor(self.device, self.absgrad, 4 if self._depth else 3)


@lru_cache
def _build_compositor(device: Device, absgrad: bool, n_channels: int) -> DeviceCompositor:
    method = f"Ellipse<{'true' if absgrad else 'false'}>"
    return DeviceCompositor(device, SOURCE, method, 8 if absgrad else 6, n_channels)
