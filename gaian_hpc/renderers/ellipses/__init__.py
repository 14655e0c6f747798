"""Methods whose splats are 2D Gaussians on the screen: what they exchange, how they are composited, and its vjp."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ...arrays import ArrayTable, Field, Patch, View
from ..base import OutputGradients, Outputs
from ..degrees import ProgressiveDegree

if TYPE_CHECKING:
    from ..compositing.cpu import Compositor

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

    def with_maps(self) -> Self:
        """Return the method with its map, depth."""
        return self.with_options(depth=True)

    def footprints(self, view: View, splats: ArrayTable) -> np.ndarray:
        """Return (M, 4) float32 boxes x0, y0, x1, y1 in pixels that hold every alpha ≥ 1/255."""
        r = splats["radii"] * np.float32(1.001) + np.float32(0.01)
        return np.concatenate([splats["means2d"] - r, splats["means2d"] + r], axis=1)

    def render(self, patch: Patch, splats: ArrayTable) -> Outputs:
        """Composite splats, sorted by point id, over a patch."""
        from . import cpu

        table = self._compositor.table(splats.n_rows)
        cpu.pack(splats["means2d"], splats["conics"], splats["depths"], splats["colors"], splats["opacities"], table)
        c = self._compositor.composite(patch, splats["depths"], self.footprints(patch.view, splats), table)
        return Outputs(c.planes[:3], 1 - c.transmittance, {"depth": c.planes[3]} if self._depth else {}, c)

    def render_vjp(self, patch: Patch, splats: ArrayTable, outputs: Outputs, v_outputs: OutputGradients) -> ArrayTable:
        """Return gradients of the splat fields, and ``absgrad`` (M, 2) where it was asked for."""
        from . import cpu

        v_planes = [(3, v_outputs.color)]
        if self._depth:
            v_planes.append((1, (v_outputs.maps or {}).get("depth")))
        sums = self._compositor.gradients(outputs.saved, v_planes, v_outputs.alpha)
        v = {f.name: np.empty((splats.n_rows, *f.shape), np.float32) for f in self.splat_fields if f.name != "radii"}
        absgrad = np.empty((splats.n_rows if self.absgrad else 0, 2), np.float32)
        cpu.finish(outputs.saved.table, sums, self._compositor.n_moments, v["means2d"], v["conics"],
                   v["opacities"], v["colors"], v["depths"], absgrad)
        if self.absgrad:
            v["absgrad"] = absgrad
        return ArrayTable(v, splats.n_rows)

    @property
    def _compositor(self) -> Compositor:
        return _build_compositor(self.absgrad, 3 + self._depth)


@lru_cache
def _build_compositor(absgrad: bool, n_channels: int) -> Compositor:
    from ..compositing import binning, lanes
    from ..compositing import cpu as compositing
    from ..stamp import source_stamp
    from . import cpu

    stamp = source_stamp(cpu, lanes, compositing, binning)
    moments, n_moments = (cpu.moments_absgrad, 8) if absgrad else (cpu.moments, 6)
    return compositing.make_compositor(
        cpu.load, cpu.span, cpu.alpha, compositing.constant_features, compositing.terms_of(moments),
        n_geometry=cpu.N_GEOMETRY, n_moments=n_moments, n_features=n_channels, n_channels=n_channels, stamp=stamp)
