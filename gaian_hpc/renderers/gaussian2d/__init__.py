"""2D Gaussian Splatting (Huang et al. 2024): flat Gaussians, met by the ray of each pixel, that make good surfaces."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ...arrays import ArrayTable, Attribute, Cloud, Field, LearningRate, Patch, View
from ...errors import SettingsError
from ...rng import normal
from ..base import OutputGradients, Outputs
from ..degrees import ProgressiveDegree
from ..sh import C0, n_coefficients

if TYPE_CHECKING:
    from ...backends.cuda import Device
    from ..compositing.cpu import Compositor

MAX_DEGREE = 3
NEAR, FAR = 0.2, 100.0  # of the mapped depth in which distortion is measured (the published code's)
MAPPED = np.float32(NEAR * FAR / (FAR - NEAR))
LOSS_MAPS = (Field("alpha"), Field("depth"), Field("normals", (3,)))


@dataclass(frozen=True)
class Options:
    """Settings of the method.

    Parameters
    ----------
    sh_degree : int
        Degree of the spherical harmonics, 0–3.
    sh_every : int
        Steps after which the active degree rises by one; 0 = full degree from the start.
    depth : {"intersection", "center"}
        The depth that maps and distortion take: where a pixel's ray meets the surfel (Huang et al. 2024), or that of
        the surfel's centre, which is cheaper.
    normal_weight : float
        Weight of 1 − ⟨blended normal, normal of the depth map⟩, averaged over the pixels of a view.
    normal_from : int
        Step after which it counts.
    distortion_weight : float
        Weight of the spread of contributions along a ray; the paper takes 1000 for bounded, 100 for open scenes.
    distortion_from : int
        Step after which it counts.
    lr_means, lr_means_final, lr_sh, lr_opacities, lr_scales, lr_quats : float
        Learning rates; that of the means is times the scene extent and decays log-linearly over the run.
    opacity : float
        Opacity of a start point.
    """

    sh_degree: int = 3
    sh_every: int = 1000
    depth: str = "intersection"
    normal_weight: float = 0.05
    normal_from: int = 7000
    distortion_weight: float = 0.0
    distortion_from: int = 3000
    lr_means: float = 1.6e-4
    lr_means_final: float = 1.6e-6
    lr_sh: float = 2.5e-3
    lr_opacities: float = 0.05
    lr_scales: float = 5e-3
    lr_quats: float = 1e-3
    opacity: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.sh_degree <= MAX_DEGREE:
            raise SettingsError(f"renderer.sh_degree is {self.sh_degree}; allowed are 0 to {MAX_DEGREE}")
        if self.depth not in ("intersection", "center"):
            raise SettingsError(f"renderer.depth is {self.depth!r}; it must be 'intersection' or 'center'")
        for name in ("normal_weight", "distortion_weight", "normal_from", "distortion_from"):
            if not getattr(self, name) >= 0:
                raise SettingsError(f"renderer.{name} is {getattr(self, name)}; it must be at least 0")
        if not 0 < self.opacity < 1:
            raise SettingsError(f"renderer.opacity is {self.opacity}; it must lie between 0 and 1")


def point_attributes(o: Options) -> tuple[Attribute, ...]:
    """Return the attribute table of surfels."""
    k = n_coefficients(o.sh_degree)

    def sh(cloud: Cloud) -> np.ndarray:
        raw = np.zeros((len(cloud.positions), k, 3), np.float32)
        raw[:, 0] = (cloud.colors - 0.5) / C0
        return raw

    def log_scales(cloud: Cloud) -> np.ndarray:
        return np.repeat(np.log(cloud.spacing)[:, None], 2, axis=1).astype(np.float32)

    def quats(cloud: Cloud) -> np.ndarray:
        """Return directions spread evenly: a cloud does not say how its surfaces lie."""
        return normal(cloud.seed, "gaussian2d.quats", 0, cloud.ids, (4,))

    def logit_opacities(cloud: Cloud) -> np.ndarray:
        return np.full(len(cloud.positions), np.log(o.opacity / (1 - o.opacity)), np.float32)

    return (
        Attribute("means", (3,), lambda cloud: cloud.positions, LearningRate(o.lr_means, o.lr_means_final, True),
                  unit="world units"),
        Attribute("quats", (4,), quats, LearningRate(o.lr_quats), unit="wxyz, not normalised; the third axis is the "
                                                                       "normal"),
        Attribute("scales", (2,), log_scales, LearningRate(o.lr_scales), "exp", "log_scales",
                  unit="log of world units"),
        Attribute("opacities", (), logit_opacities, LearningRate(o.lr_opacities), "sigmoid", "logit_opacities",
                  unit="logit"),
        Attribute("sh", (k, 3), sh, LearningRate(o.lr_sh), lr_scale=(1.0,) * 3 + (0.05,) * (3 * k - 3),
                  unit="SH coefficients of linear RGB minus 0.5"),
    )


DEFAULT_OPTIONS = Options()


class Gaussian2D(ProgressiveDegree):
    """2D Gaussian Splatting on the cpu backend; see :class:`gaian_hpc.renderers.base.PointRenderer`.

    Parameters
    ----------
    options : Options
    backend : str
        Name of the backend, ``cpu``.
    degree : int, optional
        Active SH degree; ``options.sh_degree`` by default.
    maps : bool
        Also render the maps: ``normals`` (3, h, w) = Σ weight · normal in camera coordinates, ``depth`` = Σ weight ·
        depth, ``median``, the depth of the last contribution in front of which more than half of the light is left,
        and ``distortion``: for the depth of intersections Σ_i Σ_{j<i} w_i w_j (m_i − m_j)², m = (1 − near/z) ·
        far/(far − near), for that of centres as :func:`gaian_hpc.renderers.compositing.cpu.make_compositor` says.
    weights : (float, float)
        Of the losses of normals and of distortion; a renderer that has any renders maps.
    """

    name = "gaussian2d"
    Options = Options
    splat_fields = (Field("means2d", (2,), "fp16", in_pixels=True), Field("inverses", (3, 3)), Field("regions", (5,)),
                    Field("depths"), Field("normals", (3,), "fp16"), Field("colors", (3,), "int8"),
                    Field("opacities", (), "int8"))
    gradient_fields = (Field("means2d", (2,), "int8"), Field("inverses", (3, 3)), Field("depths"),
                       Field("normals", (3,), "fp16"), Field("opacities", (), "int8", additive=True),
                       Field("colors", (3,), "int8", additive=True))

    def __init__(self, options: Options = DEFAULT_OPTIONS, backend: str = "cpu", *, degree: int | None = None,
                 maps: bool = False, weights: tuple[float, float] = (0.0, 0.0)):
        self.options = options
        self.backend = backend
        self.degree = options.sh_degree if degree is None else degree
        self.maps = maps or any(weights)
        self.weights = weights
        self.attributes = point_attributes(options)
        self.loss_maps = LOSS_MAPS if any(weights) else ()

    @classmethod
    def on_device(cls, options: Options, device: Device) -> Gaussian2D:
        """Return the method on a GPU."""
        from .cuda import CudaGaussian2D

        return CudaGaussian2D(options, device)

    def _with(self, options: Options, degree: int) -> Self:
        return type(self)(options, self.backend, degree=degree, maps=self.maps, weights=self.weights)

    def with_maps(self) -> Self:
        """Return the method with all its maps."""
        return type(self)(self.options, self.backend, degree=self.degree, maps=True, weights=self.weights)

    def at_step(self, step: int) -> Self:
        """Return the renderer of a training step: degree, and the losses that count by then."""
        o, at_degree = self.options, super().at_step(step)
        weights = (o.normal_weight * (step > o.normal_from), o.distortion_weight * (step > o.distortion_from))
        return at_degree if weights == self.weights else type(self)(o, self.backend, degree=at_degree.degree,
                                                                    maps=self.maps, weights=weights)

    def cull(self, view: View, points: ArrayTable) -> np.ndarray:
        """Return the rows of surfels that may reach alpha ≥ 1/255 on the picture, ascending int64."""
        from ..projection import pack_camera
        from . import cpu

        mask = np.empty(len(points["means"]), np.bool_)
        cpu.visible(pack_camera(view), points["means"], points["quats"], points["scales"], points["opacities"], mask)
        return np.flatnonzero(mask)

    def splat(self, view: View, points: ArrayTable, ids: np.ndarray) -> ArrayTable:
        """Project rows ``ids``; returns ``splat_fields``, float32."""
        from ..projection import pack_camera
        from . import cpu

        out = {f.name: np.empty((len(ids), *f.shape), np.float32) for f in self.splat_fields if f.name != "opacities"}
        cpu.project(pack_camera(view), ids, points["means"], points["quats"], points["scales"], points["opacities"],
                    points["sh"], self.degree, out["means2d"], out["inverses"], out["regions"], out["depths"],
                    out["normals"], out["colors"])
        return ArrayTable(out | {"opacities": points["opacities"][ids]}, len(ids))

    def splat_vjp(self, view: View, points: ArrayTable, ids: np.ndarray, splats: ArrayTable,
                  v_splats: ArrayTable) -> ArrayTable:
        """Return gradients of the activated attributes of rows ``ids``; ``sh`` up to the active degree only."""
        from ..projection import pack_camera
        from . import cpu

        m = len(ids)
        shapes = {"means": (3,), "quats": (4,), "scales": (2,), "sh": (n_coefficients(self.degree), 3)}
        out = {name: np.empty((m, *shape), np.float32) for name, shape in shapes.items()}
        cpu.project_vjp(pack_camera(view), ids, points["means"], points["quats"], points["scales"], points["sh"],
                        self.degree, splats["colors"], v_splats["means2d"], v_splats["inverses"], v_splats["depths"],
                        v_splats["normals"], v_splats["colors"], out["means"], out["quats"], out["scales"], out["sh"])
        return ArrayTable(out | {"opacities": v_splats["opacities"]}, m)

    def footprints(self, view: View, splats: ArrayTable) -> np.ndarray:
        """Return (M, 4) float32 boxes x0, y0, x1, y1 in pixels that hold every alpha ≥ 1/255."""
        from . import cpu

        boxes = np.empty((splats.n_rows, 4), np.float32)
        cpu.footprints(splats["means2d"], splats["regions"], splats["opacities"], boxes)
        return boxes

    def render(self, patch: Patch, splats: ArrayTable) -> Outputs:
        """Composite splats, sorted by point id, over a patch."""
        from . import cpu

        compositor = self._compositor
        table = compositor.table(splats.n_rows)
        cpu.pack(splats["means2d"], splats["inverses"], splats["opacities"], splats["regions"], splats["colors"],
                 splats["normals"], splats["depths"], table)
        c = compositor.composite(patch, splats["depths"], self.footprints(patch.view, splats), table)
        return Outputs(c.planes[:3], 1 - c.transmittance, self._maps(c.planes, c.transmittance), c)

    def _maps(self, planes: np.ndarray, transmittance: np.ndarray) -> dict[str, np.ndarray]:
        if not self.maps:
            return {}
        maps = {"normals": planes[3:6], "depth": planes[6]}
        if self.options.depth == "center":
            return maps | {"median": planes[7], "distortion": planes[8]}
        # With ρ = 1/z, m = (1 − near·ρ)·far/(far − near): Σ Σ w w (m − m)² = scale² (Σ w Σ w ρ² − (Σ w ρ)²).
        distortion = MAPPED**2 * ((1 - transmittance) * planes[8] - planes[7] * planes[7])
        return maps | {"median": planes[9], "distortion": distortion}

    def render_vjp(self, patch: Patch, splats: ArrayTable, outputs: Outputs, v_outputs: OutputGradients) -> ArrayTable:
        """Return gradients of the splat fields; that of ``means2d`` (M, 2) is of a shift of the whole splat."""
        from . import cpu

        c = outputs.saved
        sums = self._compositor.gradients(c, *self._plane_gradients(c.planes, c.transmittance, v_outputs))
        v = {f.name: np.empty((splats.n_rows, *f.shape), np.float32) for f in self.gradient_fields}
        cpu.finish(c.table, sums, self.maps, v["means2d"], v["inverses"], v["opacities"], v["colors"],
                   v["normals"], v["depths"])
        return ArrayTable(v, splats.n_rows)

    def _plane_gradients(self, planes: Any, transmittance: Any,
                         v_outputs: OutputGradients) -> tuple[list[tuple[int, Any]], Any]:
        """Return gradients of groups of the compositor's planes, and of alpha, from those of the outputs."""
        v_planes, v_alpha = [(3, v_outputs.color)], v_outputs.alpha
        if self.maps:
            v_maps = v_outputs.maps or {}
            v_distortion = v_maps.get("distortion")
            v_planes += [(3, v_maps.get("normals")), (1, v_maps.get("depth"))]
            if self.options.depth == "center":
                v_planes += [(1, None), (1, v_distortion)]
            elif v_distortion is None:
                v_planes.append((3, None))
            else:
                v = MAPPED**2 * v_distortion
                v_planes += [(1, -2 * v * planes[7]), (1, v * (1 - transmittance)), (1, None)]
                v_alpha = v * planes[8] + (0 if v_alpha is None else v_alpha)
        return v_planes, v_alpha

    def map_loss(self, patch: Patch, outputs: Outputs, planes: Any, origin: tuple[int, int],
                 mask: Any) -> tuple[float, OutputGradients]:
        """Return the losses of normals and distortion; see :class:`gaian_hpc.renderers.base.RendererHooks`."""
        normal_weight, distortion_weight = self.weights
        total, v = 0.0, OutputGradients(None, None, {})
        if normal_weight:
            part, v_planes = self._normal_loss(patch, planes, origin, mask)
            v_planes *= np.float32(normal_weight)
            total += normal_weight * part
            v.alpha, v.maps = v_planes[0], {"depth": v_planes[1], "normals": v_planes[2:]}
        if distortion_weight:
            y, x = patch.y0 - origin[1], patch.x0 - origin[0]
            keep = (self._everywhere(outputs.alpha.shape) if mask is None
                    else mask[y:y + patch.height, x:x + patch.width])
            total += distortion_weight * float((outputs.maps["distortion"] * keep).sum(dtype=np.float64))
            v.maps["distortion"] = (distortion_weight * keep).astype(np.float32)
        return total, v

    def _everywhere(self, shape: tuple[int, int]) -> Any:
        return np.ones(shape, np.bool_)

    def _normal_loss(self, patch: Patch, planes: Any, origin: tuple[int, int], mask: Any) -> tuple[float, Any]:
        """Return :func:`gaian_hpc.renderers.gaussian2d.surface.normal_loss`."""
        from .surface import normal_loss

        return normal_loss(patch, planes, origin, mask)

    @property
    def _compositor(self) -> Compositor:
        return _build_compositor(self.options.depth if self.maps else "")


@lru_cache
def _build_compositor(depth: str) -> Compositor:
    from ..compositing import binning, lanes
    from ..compositing import cpu as compositing
    from ..stamp import source_stamp
    from . import cpu

    features, terms, n_features, n_channels = {
        "": (cpu.features_color, cpu.terms_color, 3, 3),
        "center": (compositing.constant_features, cpu.terms_center, 7, 7),
        "intersection": (cpu.features_intersection, cpu.terms_intersection, 7, 9)}[depth]
    return compositing.make_compositor(
        cpu.load, cpu.span, cpu.alpha, features, terms, n_geometry=cpu.N_GEOMETRY, n_moments=cpu.N_MOMENTS,
        n_features=n_features, n_channels=n_channels, depth_channel=6 if depth else -1,
        with_distortion=depth == "center", stamp=source_stamp(cpu, lanes, compositing, binning))
