"""Methods whose splats are 2D Gaussians on the screen: what they exchange, how they are composited, and its vjp."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Self

import numpy as np

from ...arrays import ArrayTable, Field, Patch, View
from ..base import OutputGradients, Outputs
from ..degrees import ProgressiveDegree

# Gradients of colour and opacity mean the same in every view; those in pixels do not.
GRADIENT_FIELDS = (Field("means2d", (2,), "int8"), Field("conics", (3,), "int8"), Field("depths", (), "int8"),
                   Field("opacities", (), "int8", additive=True), Field("colors", (3,), "int8", additive=True))


class EllipseRenderer(ProgressiveDegree):
    """Base of methods that cull and project points to screen Gaussians; a method adds these and their derivative.

    Parameters
    ----------
    depth : bool
        Also render the map ``depth`` = Σ weight · camera depth.
    absgrad : bool
        Make ``render_vjp`` return absolute pixel gradients for density control.
    """

    # Forms that lose more than 16-bit floats would shift splats by half a pixel or more; colours bear it.
    splat_fields = (Field("means2d", (2,), "fp16", in_pixels=True), Field("conics", (3,), "fp16"),
                    Field("depths", (), "fp16"), Field("colors", (3,), "int8"), Field("opacities", (), "int8"),
                    Field("radii", (2,), "fp16"))

    def __init__(self, depth: bool, absgrad: bool):
        self.absgrad = absgrad
        self.gradient_fields = GRADIENT_FIELDS + ((Field("absgrad", (2,), "int8"),) if absgrad else ())
        self._depth = depth

    def _with(self, options: Any, degree: int) -> Self:
        return type(self)(options, self.backend, absgrad=self.absgrad, degree=degree)

    def footprints(self, view: View, splats: ArrayTable) -> np.ndarray:
        """Return (M, 4) float32 boxes x0, y0, x1, y1 in pixels that hold every alpha ≥ 1/255."""
        r = splats["radii"] * np.float32(1.001) + np.float32(0.01)
        return np.concatenate([splats["means2d"] - r, splats["means2d"] + r], axis=1)

    def render(self, patch: Patch, splats: ArrayTable) -> Outputs:
        """Composite splats, sorted by point id, over a patch."""
        from ..compositing.binning import aligned_rows
        from . import cpu

        compositor, bin_splats = self._kernels
        n_channels = compositor.n_channels
        table = aligned_rows(splats.n_rows, cpu.N_COLUMNS)
        cpu.pack(splats["means2d"], splats["conics"], splats["depths"], splats["colors"], splats["opacities"], table)
        lists = bin_splats(patch, splats["depths"], self.footprints(patch.view, splats), table)
        planes = np.empty((n_channels, patch.height, patch.width), np.float32)
        transmittance = np.empty((patch.height, patch.width), np.float32)
        last = np.empty((patch.height, patch.width), np.int32)
        compositor.forward(lists.shares, lists.offsets, lists.items, lists.n_x, patch.x0, patch.y0, table, planes,
                           transmittance, last)
        maps = {"depth": planes[3]} if n_channels == 4 else {}
        return Outputs(planes[:3], 1 - transmittance, maps, (lists, table, transmittance, last))

    def render_vjp(self, patch: Patch, splats: ArrayTable, outputs: Outputs, v_outputs: OutputGradients) -> ArrayTable:
        """Return gradients of the splat fields, and ``absgrad`` (M, 2) where it was asked for."""
        from ..compositing.cpu import sum_slots
        from . import cpu

        compositor, _ = self._kernels
        lists, table, transmittance, last = outputs.saved
        v_planes = v_outputs.color
        if compositor.n_channels == 4:
            v_depth = (v_outputs.maps or {}).get("depth")
            v_planes = np.concatenate([v_planes, np.zeros((1, *last.shape), np.float32) if v_depth is None
                                       else v_depth[None]])
        v_alpha = np.zeros(last.shape, np.float32) if v_outputs.alpha is None else v_outputs.alpha
        width = compositor.n_moments + compositor.n_channels
        per_pair = np.empty((len(lists.items), width), np.float32)
        compositor.backward(lists.shares, lists.offsets, lists.items, lists.slots, lists.n_x, patch.x0, patch.y0,
                            table, np.ascontiguousarray(v_planes), np.ascontiguousarray(v_alpha),
                            transmittance, last, per_pair)
        sums = np.empty((splats.n_rows, width), np.float32)
        sum_slots(lists.starts, per_pair, sums)
        v = {f.name: np.empty((splats.n_rows, *f.shape), np.float32) for f in self.splat_fields if f.name != "radii"}
        absgrad = np.empty((splats.n_rows if self.absgrad else 0, 2), np.float32)
        cpu.finish(table, sums, compositor.n_moments, v["means2d"], v["conics"], v["opacities"], v["colors"],
                   v["depths"], absgrad)
        if self.absgrad:
            v["absgrad"] = absgrad
        return ArrayTable(v, splats.n_rows)

    @property
    def _kernels(self):
        return _build_kernels(self.absgrad, 3 + self._depth)


@lru_cache
def _build_kernels(absgrad: bool, n_channels: int):
    from ..compositing import binning, lanes
    from ..compositing import cpu as compositing
    from ..stamp import source_stamp
    from . import cpu

    stamp = source_stamp(cpu, lanes, compositing, binning)
    moments, n_moments = (cpu.moments_absgrad, 8) if absgrad else (cpu.moments, 6)
    compositor = compositing.make_compositor(cpu.load, cpu.span, cpu.alpha, moments, cpu.N_GEOMETRY, n_moments,
                                             n_channels, stamp)
    return compositor, binning.make_binner(cpu.load, cpu.span, stamp)
