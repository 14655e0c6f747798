"""3D Gaussian splatting behind the renderer API, slow and in the precision that the caller chooses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...arrays import ArrayTable, Patch, View
from ..base import OutputGradients, Outputs
from .compositing import composite, composite_vjp
from .harmonics import sh_basis, sh_basis_jacobian
from .projection import Projection, half_widths, project, project_vjp

SPLAT_ARRAYS = ("means2d", "conics", "depths", "colors", "opacities")


class ReferenceGaussian3D:
    """The oracle of ``gaussian3d``: same calls and array names, arrays in ``dtype``.

    Parameters
    ----------
    options : ReferenceGaussian3D.Options
    dtype : numpy float type
        Precision of all computation; inputs are converted on entry.
    """

    name = "gaussian3d"

    @dataclass(frozen=True, slots=True)
    class Options:
        """SH degree in use, opacity compensation (Mip-Splatting), and the screen-space blur in px²."""

        sh_degree: int = 3
        antialiased: bool = False
        eps2d: float = 0.3

    def __init__(self, options: Options | None = None, dtype: type = np.float64):
        self.options = options or self.Options()
        self.dtype = dtype

    def at_degree(self, degree: int) -> ReferenceGaussian3D:
        """Return the renderer that uses SH bands up to ``degree``."""
        o = self.options
        return ReferenceGaussian3D(self.Options(degree, o.antialiased, o.eps2d), self.dtype)

    def _project(self, view: View, points: ArrayTable, ids: np.ndarray) -> Projection:
        means, quats, scales = (points[name][ids].astype(self.dtype) for name in ("means", "quats", "scales"))
        return project(view, means, quats, scales, self.options.eps2d)

    def cull(self, view: View, points: ArrayTable) -> np.ndarray:
        """Return the rows between near and far whose box of 3.33 sigma, in whole px, meets the picture."""
        p = self._project(view, points, np.arange(points.n_rows))
        box = np.ceil(half_widths(p))
        size = np.array([view.width, view.height])
        inside = (p.means2d + box > 0) & (p.means2d - box < size)
        return np.flatnonzero(p.valid & inside.all(axis=1)).astype(np.int64)

    def _directions(self, view: View, points: ArrayTable, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return unit vectors from the camera centre to the points, and the distances (M, 1)."""
        centre = np.linalg.inv(view.viewmat.astype(self.dtype))[:3, 3]
        offset = points["means"][ids].astype(self.dtype) - centre
        distance = np.linalg.norm(offset, axis=1, keepdims=True)
        return offset / distance, distance

    def splat(self, view: View, points: ArrayTable, ids: np.ndarray) -> ArrayTable:
        """Return ``means2d conics depths colors opacities radii compensations`` of rows ``ids``."""
        p = self._project(view, points, ids)
        basis = sh_basis(self._directions(view, points, ids)[0], self.options.sh_degree)
        sh = points["sh"][ids].astype(self.dtype)[:, : basis.shape[1]]
        colors = np.maximum(np.einsum("nk,nkc->nc", basis, sh) + self.dtype(0.5), 0)
        opacities = points["opacities"][ids].astype(self.dtype)
        if self.options.antialiased:
            opacities = opacities * p.compensations
        opacities = np.where(p.valid, opacities, 0)
        return ArrayTable({"means2d": p.means2d, "conics": p.conics, "depths": p.depths,
                           "colors": np.where(p.valid[:, None], colors, 0), "opacities": opacities,
                           "radii": half_widths(p, opacities), "compensations": p.compensations}, len(ids))

    def splat_vjp(self, view: View, points: ArrayTable, ids: np.ndarray, splats: ArrayTable,
                  v_splats: ArrayTable) -> ArrayTable:
        """Return dL/d(means, quats, scales, opacities, sh) of rows ``ids``."""
        p = self._project(view, points, ids)
        v = {name: v_splats[name].astype(self.dtype) for name in SPLAT_ARRAYS}
        opacities = points["opacities"][ids].astype(self.dtype)
        v_compensations = np.zeros_like(opacities)
        v_opacities = np.where(p.valid, v["opacities"], 0)
        if self.options.antialiased:
            v_compensations, v_opacities = v_opacities * opacities, v_opacities * p.compensations
        quats, scales = points["quats"][ids].astype(self.dtype), points["scales"][ids].astype(self.dtype)
        v_means, v_quats, v_scales = project_vjp(view, quats, scales, p, v["means2d"], v["depths"], v["conics"],
                                                 v_compensations, self.options.eps2d)
        lit = p.valid[:, None] & (splats["colors"] > 0)
        v_from_color, v_sh = self._color_vjp(view, points, ids, np.where(lit, v["colors"], 0))
        return ArrayTable({"means": v_means + v_from_color, "quats": v_quats, "scales": v_scales,
                           "opacities": v_opacities, "sh": v_sh}, len(ids))

    def _color_vjp(self, view: View, points: ArrayTable, ids: np.ndarray,
                   v_colors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        degree = self.options.sh_degree
        dirs, distance = self._directions(view, points, ids)
        sh = points["sh"][ids].astype(self.dtype)[:, : (degree + 1) ** 2]
        v_basis = np.einsum("nkc,nc->nk", sh, v_colors)
        v_dirs = np.einsum("nk,nkd->nd", v_basis, sh_basis_jacobian(dirs, degree))
        v_means = (v_dirs - dirs * np.sum(dirs * v_dirs, axis=1, keepdims=True)) / distance
        return v_means, sh_basis(dirs, degree)[:, :, None] * v_colors[:, None, :]

    def render(self, patch: Patch, splats: ArrayTable) -> Outputs:
        """Composite over ``patch``; maps are ``depth`` (sum of weight × z) and ``n_contrib``."""
        arrays = [splats[name].astype(self.dtype) for name in SPLAT_ARRAYS]
        picture = composite((patch.x0, patch.y0, patch.x1, patch.y1), *arrays)
        maps = {"depth": picture.depth, "n_contrib": picture.n_contrib}
        return Outputs(picture.color.transpose(2, 0, 1), picture.alpha, maps, picture)

    def render_vjp(self, patch: Patch, splats: ArrayTable, outputs: Outputs, v_outputs: OutputGradients) -> ArrayTable:
        """Return dL/d(splat arrays) and ``absgrad``."""
        zero = np.zeros(outputs.alpha.shape, self.dtype)
        v_alpha = zero if v_outputs.alpha is None else v_outputs.alpha.astype(self.dtype)
        v_depth = (v_outputs.maps or {}).get("depth", zero).astype(self.dtype)
        arrays = [splats[name].astype(self.dtype) for name in SPLAT_ARRAYS]
        v_color = v_outputs.color.astype(self.dtype).transpose(1, 2, 0)
        return ArrayTable(composite_vjp(outputs.saved, *arrays, v_color, v_alpha, v_depth), splats.n_rows)

    def loss(self, view: View, points: ArrayTable, v_outputs: OutputGradients) -> float:
        """Return the weighted sum of the whole picture's outputs, the scalar whose gradient the vjps give."""
        splats = self.splat(view, points, self.cull(view, points))
        out = self.render(Patch(view, 0, 0, view.width, view.height), splats)
        total = np.sum(v_outputs.color * out.color)
        if v_outputs.alpha is not None:
            total += np.sum(v_outputs.alpha * out.alpha)
        return float(total + sum(np.sum(v * out.maps[name]) for name, v in (v_outputs.maps or {}).items()))


def central_difference(function: Callable[[np.ndarray], float], x: np.ndarray, direction: np.ndarray,
                       step: float = 1e-6) -> float:
    """Return the derivative of ``function`` at ``x`` along ``direction``, error O(step²) plus rounding / step."""
    return (function(x + step * direction) - function(x - step * direction)) / (2 * step)
