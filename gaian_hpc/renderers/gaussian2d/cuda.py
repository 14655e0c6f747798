"""2D Gaussian surfels on a GPU (``kernels/gaussian2d``)."""

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
from . import Gaussian2D, Options

SURFELS, NORMALS = "gaussian2d/surfels.cu", "gaussian2d/normals.cu"
N_COLUMNS, N_MOMENTS = 28, 12
# By the depth of the maps, "" for none: the C++ type of the compositor's method, its features and its planes.
METHODS = {"": ("Surfel<3>", 3, 3), "center": ("Surfel<7>", 7, 9), "intersection": ("IntersectedSurfel", 7, 10)}


class CudaGaussian2D(OnDevice, Gaussian2D):
    """The method with all its kernels on ``device``; tables may lie on the host or there.

    Projection is in float64, what a pixel does in float32.
    """

    source = "gaussian2d/gaussian2d.cu"
    camera_type = np.float64
    splat_source = SURFELS
    footprint_fields = ("means2d", "regions", "opacities")

    def __init__(self, options: Options, device: Device, *, degree: int | None = None, maps: bool = False,
                 weights: tuple[float, float] = (0.0, 0.0)):
        super().__init__(options, device, degree=degree, maps=maps, weights=weights)
        self.device = device

    def cull(self, view: View, points: ArrayTable) -> np.ndarray:
        """Return the rows of surfels that may reach alpha ≥ 1/255 on the picture, ascending int64."""
        n = len(points["means"])
        mask = self.device.empty(n, np.bool_)
        self._project("visible", n, self._camera(view), *self._points(points)[:4], mask)
        return self._placer(points["means"])(self.device.xp.flatnonzero(mask))

    def splat(self, view: View, points: ArrayTable, ids: np.ndarray) -> ArrayTable:
        """Project rows ``ids``; returns ``splat_fields``, float32."""
        m, device, values = len(ids), self.device, self._points(points)
        rows = device.array(ids, np.int64)
        out = {f.name: device.empty((m, *f.shape)) for f in self.splat_fields if f.name != "opacities"}
        self._project("project", m, rows, self._camera(view), *values, np.int32(values[-1].shape[1]), out["means2d"],
                      out["inverses"], out["regions"], out["depths"], out["normals"], out["colors"])
        return self._table(out | {"opacities": device.xp.take(values[3], rows)}, points["means"])

    def splat_vjp(self, view: View, points: ArrayTable, ids: np.ndarray, splats: ArrayTable,
                  v_splats: ArrayTable) -> ArrayTable:
        """Return gradients of the activated attributes of rows ``ids``; ``sh`` up to the active degree only."""
        m, device = len(ids), self.device
        means, quats, scales, _, sh = self._points(points)
        shapes = {"means": (3,), "quats": (4,), "scales": (2,), "sh": (n_coefficients(self.degree), 3)}
        out = {name: device.empty((m, *shape)) for name, shape in shapes.items()}
        *v, v_opacities = self._values(v_splats, "means2d", "inverses", "depths", "normals", "colors", "opacities")
        self._project("project_vjp", m, device.array(ids, np.int64), self._camera(view), means, quats, scales, sh,
                      np.int32(sh.shape[1]), device.array(splats["colors"]), *v, *out.values())
        return self._table(out | {"opacities": v_opacities}, points["means"])

    def render(self, patch: Patch, splats: ArrayTable) -> Outputs:
        """Composite splats, sorted by point id, over a patch."""
        *fields, depths = self._values(splats, "means2d", "inverses", "opacities", "regions", "colors", "normals",
                                       "depths")
        table = self.device.empty((splats.n_rows, N_COLUMNS))
        self.device.kernels(SURFELS).over("pack", splats.n_rows, *fields, depths, table)
        c = self._compositor.composite(patch, depths, table)
        place = self._placer(splats["depths"])
        planes, transmittance = place(c.planes), place(c.transmittance)
        return Outputs(planes[:3], 1 - transmittance, self._maps(planes, transmittance), c)

    def render_vjp(self, patch: Patch, splats: ArrayTable, outputs: Outputs, v_outputs: OutputGradients) -> ArrayTable:
        """Return gradients of the splat fields; that of ``means2d`` (M, 2) is of a shift of the whole splat."""
        device, compositor, c, n = self.device, self._compositor, outputs.saved, splats.n_rows

        def there(x: Any) -> Any:
            return None if x is None else device.array(x, np.float32)

        v_maps = {name: there(x) for name, x in (v_outputs.maps or {}).items()}
        groups, v_alpha = self._plane_gradients(
            c.planes, c.transmittance, OutputGradients(there(v_outputs.color), there(v_outputs.alpha), v_maps))
        sums = compositor.gradients(c, groups, v_alpha)
        v = {f.name: device.empty((n, *f.shape)) for f in self.gradient_fields}
        device.kernels(SURFELS).over("finish", n, np.int32(compositor.n_features), c.table, sums, v["means2d"],
                                     v["inverses"], v["opacities"], v["colors"], v["normals"], v["depths"])
        return self._table(v, splats["depths"])

    def _normal_loss(self, patch: Patch, planes: Any, origin: tuple[int, int], mask: Any) -> tuple[float, Any]:
        if type(planes) is np.ndarray:
            return super()._normal_loss(patch, planes, origin, mask)
        device, view, h, w = self.device, patch.view, patch.height, patch.width
        kernels, n_tiles = device.kernels(NORMALS), -(-h // 16) * -(-w // 16)
        camera = device.array(np.array([view.K[0, 0], view.K[1, 1], view.K[0, 2], view.K[1, 2], view.width,
                                        view.height], np.float64))
        keep = self._everywhere(planes.shape[1:]) if mask is None else mask
        slopes, v = device.empty((h + 2, w + 2, 6), np.float64), device.empty((5, h, w))
        sums = device.empty(-(-(h + 2) // 16) * -(-(w + 2) // 16), np.float64)
        region = tuple(map(np.int32, (*planes.shape[1:], *origin, patch.x0 - origin[0], patch.y0 - origin[1], h, w)))
        kernels.launch("normal_slopes", len(sums), camera, planes, keep, *region, slopes, v, sums)
        kernels.launch("normal_depths", n_tiles, camera, planes, *region, slopes, v)
        return float(device.host(sums).sum()), v

    def _everywhere(self, shape: tuple[int, int]) -> Any:
        return self.device.array(np.ones(shape, np.bool_))

    def _points(self, points: ArrayTable) -> list[Any]:
        return self._values(points, "means", "quats", "scales", "opacities", "sh")

    @property
    def _compositor(self) -> DeviceCompositor:
        return _build_compositor(self.device, self.options.depth if self.maps else "")


@lru_cache
def _build_compositor(device: Device, depth: str) -> DeviceCompositor:
    method, n_features, n_planes = METHODS[depth]
    return DeviceCompositor(device, SURFELS, method, N_MOMENTS, n_features, n_planes)
