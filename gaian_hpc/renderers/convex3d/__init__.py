"""3D Convex Splatting (Held et al. 2024): smooth convex hulls of a few points with spherical-harmonics colour."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Self

import numpy as np

from ...arrays import ArrayTable, Attribute, Cloud, Field, LearningRate, Patch, View
from ...errors import SettingsError
from ..base import OutputGradients, Outputs
from ..degrees import ProgressiveDegree
from ..sh import C0, n_coefficients

if TYPE_CHECKING:
    from ...backends.cuda import Device
    from ..compositing.cpu import Compositor

MAX_DEGREE = 3


@dataclass(frozen=True)
class Options:
    """Settings of the method.

    Parameters
    ----------
    n_points : int
        Points of a convex, 4–6.
    sh_degree : int
        Degree of the spherical harmonics, 0–3.
    sh_every : int
        Steps after which the active degree rises by one; 0 = full degree from the start.
    unit_normals : bool
        Measure distances to edges in pixels, as the paper writes, and not times the edge's length, as its code does.
    through_depth : bool
        Take gradients through the depth that scales smoothness and sharpness too; the released code does not.
    depth : bool
        Also render the map ``depth`` = Σ weight · camera depth of the centre.
    lr_points, lr_points_final, lr_sh, lr_opacities, lr_delta, lr_sigma : float
        Learning rates; that of the points is times the scene extent and decays log-linearly over the run.
    opacity, delta, sigma : float
        Opacity, smoothness and sharpness of a start convex.
    size : float
        Radius of a start convex in units of the distance to its neighbours.
    """

    n_points: int = 6
    sh_degree: int = 3
    sh_every: int = 1000
    unit_normals: bool = False
    through_depth: bool = False
    depth: bool = False
    lr_points: float = 2.5e-4
    lr_points_final: float = 2.5e-6
    lr_sh: float = 2.5e-3
    lr_opacities: float = 0.05
    lr_delta: float = 0.01
    lr_sigma: float = 0.01
    opacity: float = 0.1
    delta: float = 0.1
    sigma: float = 0.05
    size: float = 1.2

    def __post_init__(self) -> None:
        if not 4 <= self.n_points <= 6:
            raise SettingsError(f"renderer.n_points is {self.n_points}; allowed are 4 to 6")
        if not 0 <= self.sh_degree <= MAX_DEGREE:
            raise SettingsError(f"renderer.sh_degree is {self.sh_degree}; allowed are 0 to {MAX_DEGREE}")
        if not 0 < self.opacity < 1:
            raise SettingsError(f"renderer.opacity is {self.opacity}; it must lie between 0 and 1")
        for name in ("delta", "sigma", "size"):
            if not getattr(self, name) > 0:
                raise SettingsError(f"renderer.{name} is {getattr(self, name)}; it must be above 0")


def lattice(n: int) -> np.ndarray:
    """Return ``n`` points spread evenly over the unit sphere (Fibonacci lattice), (n, 3) float64."""
    i = np.arange(n)
    z, turn = 1 - 2 * i / (n - 1), np.pi * (3 - np.sqrt(5.0)) * i
    r = np.sqrt(np.maximum(1 - z * z, 0))
    return np.stack([r * np.cos(turn), r * np.sin(turn), z], axis=1)


def point_attributes(o: Options) -> tuple[Attribute, ...]:
    """Return the attribute table of convexes."""
    k = n_coefficients(o.sh_degree)

    def points(cloud: Cloud) -> np.ndarray:
        radii = (o.size * cloud.spacing)[:, None, None]
        return (cloud.positions[:, None] + radii * lattice(o.n_points)).astype(np.float32)

    def constant(value: float):
        return lambda cloud: np.full(len(cloud.positions), value, np.float32)

    def sh(cloud: Cloud) -> np.ndarray:
        raw = np.zeros((len(cloud.positions), k, 3), np.float32)
        raw[:, 0] = (cloud.colors - 0.5) / C0
        return raw

    return (
        Attribute("points", (o.n_points, 3), points, LearningRate(o.lr_points, o.lr_points_final, True),
                  unit="world units"),
        Attribute("delta", (), constant(np.log(o.delta)), LearningRate(o.lr_delta), "exp", "log_delta",
                  unit="log of smoothness"),
        Attribute("sigma", (), constant(np.log(o.sigma)), LearningRate(o.lr_sigma), "exp", "log_sigma",
                  unit="log of sharpness"),
        Attribute("opacities", (), constant(np.log(o.opacity / (1 - o.opacity))), LearningRate(o.lr_opacities),
                  "sigmoid", "logit_opacities", unit="logit"),
        Attribute("sh", (k, 3), sh, LearningRate(o.lr_sh), lr_scale=(1.0,) * 3 + (0.05,) * (3 * k - 3),
                  unit="SH coefficients of linear RGB minus 0.5"),
    )


DEFAULT_OPTIONS = Options()


class Convex3D(ProgressiveDegree):
    """3D Convex Splatting on the cpu backend; see :class:`gaian_hpc.renderers.base.PointRenderer`.

    Parameters
    ----------
    options : Options
    backend : str
        Name of the backend, ``cpu``.
    degree : int, optional
        Active SH degree; ``options.sh_degree`` by default.
    """

    name = "convex3d"
    Options = Options
    splat_fields = (Field("centers2d", (2,)), Field("edges", (6, 3)), Field("sharpness"), Field("depths"),
                    Field("colors", (3,), "int8"), Field("opacities", (), "int8"), Field("extents", (4,)))
    gradient_fields = (Field("edges", (6, 3)), Field("sharpness"), Field("depths"),
                       Field("opacities", (), "int8", additive=True), Field("colors", (3,), "int8", additive=True),
                       Field("means2d", (2,), "int8"))

    def __init__(self, options: Options = DEFAULT_OPTIONS, backend: str = "cpu", *, degree: int | None = None):
        self.options = options
        self.backend = backend
        self.degree = options.sh_degree if degree is None else degree
        self.attributes = point_attributes(options)

    @classmethod
    def on_device(cls, options: Options, device: Device) -> Convex3D:
        """Return the method on a GPU."""
        from .cuda import CudaConvex3D

        return CudaConvex3D(options, device)

    def _with(self, options: Options, degree: int) -> Self:
        return type(self)(options, self.backend, degree=degree)

    def with_maps(self) -> Self:
        """Return the method with its map, depth."""
        return self.with_options(depth=True)

    def centers(self, points: ArrayTable) -> np.ndarray:
        """Return the mean of each convex's points, (N, 3) float32."""
        return points["points"].mean(axis=1)

    n_split_draws = 3
    split_scales = ()

    def sizes(self, points: ArrayTable) -> np.ndarray:
        """Return the root mean square distance of each convex's points from their mean, per axis, (N,) float32."""
        spread = points["points"] - self.centers(points)[:, None]
        return np.sqrt(np.square(spread).sum(axis=2).mean(axis=1) / np.float32(3))

    def split_offsets(self, points: ArrayTable, draws: np.ndarray, shrink: float) -> dict[str, np.ndarray]:
        """Return the way from parents' points to those of children: smaller, and about a sample of the parent's."""
        spread = (points["points"] - self.centers(points)[:, None]).astype(np.float64)
        # As many normal numbers as axes, through the points' own spread: Σ = (1/n) Σ_k s_k s_kᵀ.
        root = np.linalg.cholesky(np.einsum("nki,nkj->nij", spread, spread) / spread.shape[1] + 1e-12 * np.eye(3))
        shift = np.einsum("nij,nj->ni", root, draws)
        return {"points": shift[:, None] + (1 / shrink - 1) * spread}

    def cull(self, view: View, points: ArrayTable) -> np.ndarray:
        """Return the rows of convexes that may reach alpha ≥ 1/255 on the picture, ascending int64."""
        from ..projection import pack_camera
        from . import cpu

        mask = np.empty(len(points["points"]), np.bool_)
        cpu.visible(pack_camera(view), points["points"], points["delta"], points["sigma"], points["opacities"],
                    self.options.unit_normals, mask)
        return np.flatnonzero(mask)

    def splat(self, view: View, points: ArrayTable, ids: np.ndarray) -> ArrayTable:
        """Project rows ``ids``; returns ``splat_fields``, float32."""
        from ..projection import pack_camera
        from . import cpu

        out = {f.name: np.empty((len(ids), *f.shape), np.float32) for f in self.splat_fields if f.name != "opacities"}
        cpu.project(pack_camera(view), ids, points["points"], points["delta"], points["sigma"], points["opacities"],
                    points["sh"], self.degree, self.options.unit_normals, out["centers2d"], out["edges"],
                    out["sharpness"], out["depths"], out["colors"], out["extents"])
        return ArrayTable(out | {"opacities": points["opacities"][ids]}, len(ids))

    def splat_vjp(self, view: View, points: ArrayTable, ids: np.ndarray, splats: ArrayTable,
                  v_splats: ArrayTable) -> ArrayTable:
        """Return gradients of the activated attributes of rows ``ids``; ``sh`` up to the active degree only."""
        from ..projection import pack_camera
        from . import cpu

        o, m = self.options, len(ids)
        shapes = {"points": (o.n_points, 3), "delta": (), "sigma": (), "sh": (n_coefficients(self.degree), 3)}
        out = {name: np.empty((m, *shape), np.float32) for name, shape in shapes.items()}
        cpu.project_vjp(pack_camera(view), ids, points["points"], points["delta"], points["sigma"], points["sh"],
                        self.degree, o.unit_normals, o.through_depth, splats["colors"], v_splats["edges"],
                        v_splats["sharpness"], v_splats["depths"], v_splats["colors"], out["points"], out["delta"],
                        out["sigma"], out["sh"])
        return ArrayTable(out | {"opacities": v_splats["opacities"]}, m)

    def footprints(self, view: View, splats: ArrayTable) -> np.ndarray:
        """Return (M, 4) float32 boxes x0, y0, x1, y1 in pixels that hold every alpha ≥ 1/255."""
        boxes = np.tile(splats["centers2d"], 2) + splats["extents"]
        slack = np.float32(0.02) + np.float32(1e-3) * np.abs(splats["extents"])
        return boxes + np.float32([-1, -1, 1, 1]) * slack

    def render(self, patch: Patch, splats: ArrayTable) -> Outputs:
        """Composite splats, sorted by point id, over a patch."""
        from . import cpu

        compositor = _build_compositor(3 + self.options.depth)
        table = compositor.table(splats.n_rows)
        cpu.pack(splats["centers2d"], splats["edges"], splats["sharpness"], splats["opacities"], splats["colors"],
                 splats["depths"], table)
        c = compositor.composite(patch, splats["depths"], self.footprints(patch.view, splats), table)
        return Outputs(c.planes[:3], 1 - c.transmittance, {"depth": c.planes[3]} if self.options.depth else {}, c)

    def render_vjp(self, patch: Patch, splats: ArrayTable, outputs: Outputs, v_outputs: OutputGradients) -> ArrayTable:
        """Return gradients of the splat fields, and ``means2d`` (M, 2), that of a shift of the whole splat."""
        from . import cpu

        v_planes = [(3, v_outputs.color)]
        if self.options.depth:
            v_planes.append((1, (v_outputs.maps or {}).get("depth")))
        sums = _build_compositor(3 + self.options.depth).gradients(outputs.saved, v_planes, v_outputs.alpha)
        v = {f.name: np.empty((splats.n_rows, *f.shape), np.float32) for f in self.gradient_fields}
        cpu.finish(outputs.saved.table, sums, v["edges"], v["sharpness"], v["opacities"], v["colors"], v["depths"],
                   v["means2d"])
        return ArrayTable(v, splats.n_rows)


@lru_cache
def _build_compositor(n_channels: int) -> Compositor:
    from ..compositing import binning, lanes
    from ..compositing import cpu as compositing
    from ..stamp import source_stamp
    from . import cpu

    stamp = source_stamp(cpu, lanes, compositing, binning)
    return compositing.make_compositor(
        cpu.load, cpu.span, cpu.alpha, compositing.constant_features, compositing.terms_of(cpu.moments),
        n_geometry=cpu.N_GEOMETRY, n_moments=cpu.N_MOMENTS, n_features=n_channels, n_channels=n_channels, stamp=stamp)
