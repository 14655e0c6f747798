"""3D Gaussian Splatting (Kerbl et al. 2023): anisotropic Gaussians with spherical-harmonics colour."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from ...arrays import ArrayTable, Attribute, Cloud, Field, LearningRate, Patch, View
from ...errors import SettingsError
from ..base import OutputGradients, Outputs
from .sh import C0, n_coefficients

MAX_DEGREE = 3


@dataclass(frozen=True)
class Options:
    """Settings of the method.

    Parameters
    ----------
    sh_degree : int
        Degree of the spherical harmonics, 0–3.
    sh_every : int
        Steps after which the active degree rises by one; 0 = full degree from the start.
    antialiased : bool
        Scale opacity by the blur's loss of density (Mip-Splatting, Yu et al. 2024).
    depth : bool
        Also render the map ``depth`` = Σ weight · camera depth.
    eps2d : float
        Blur added to the screen covariance, pixels².
    lr_means, lr_means_final, lr_sh, lr_opacities, lr_scales, lr_quats : float
        Learning rates; that of the means is times the scene extent and decays log-linearly over the run.
    opacity : float
        Opacity of a start point.
    """

    sh_degree: int = 3
    sh_every: int = 1000
    antialiased: bool = False
    depth: bool = False
    eps2d: float = 0.3
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
        if not 0 < self.opacity < 1:
            raise SettingsError(f"renderer.opacity is {self.opacity}; it must lie between 0 and 1")
        if not self.eps2d >= 0:
            raise SettingsError(f"renderer.eps2d is {self.eps2d}; it must be at least 0 px²")


def _attributes(o: Options) -> tuple[Attribute, ...]:
    k = n_coefficients(o.sh_degree)

    def sh(cloud: Cloud) -> np.ndarray:
        raw = np.zeros((len(cloud.positions), k, 3), np.float32)
        raw[:, 0] = (cloud.colors - 0.5) / C0
        return raw

    def log_scales(cloud: Cloud) -> np.ndarray:
        return np.repeat(np.log(cloud.spacing)[:, None], 3, axis=1).astype(np.float32)

    def quats(cloud: Cloud) -> np.ndarray:
        return np.tile(np.float32([1, 0, 0, 0]), (len(cloud.positions), 1))

    def logit_opacities(cloud: Cloud) -> np.ndarray:
        return np.full(len(cloud.positions), np.log(o.opacity / (1 - o.opacity)), np.float32)

    return (
        Attribute("means", (3,), lambda cloud: cloud.positions, LearningRate(o.lr_means, o.lr_means_final, True),
                  unit="world units"),
        Attribute("quats", (4,), quats, LearningRate(o.lr_quats), unit="wxyz, not normalised"),
        Attribute("scales", (3,), log_scales, LearningRate(o.lr_scales), "exp", "log_scales",
                  unit="log of world units"),
        Attribute("opacities", (), logit_opacities, LearningRate(o.lr_opacities), "sigmoid", "logit_opacities",
                  unit="logit"),
        Attribute("sh", (k, 3), sh, LearningRate(o.lr_sh), lr_scale=(1.0,) * 3 + (0.05,) * (3 * k - 3),
                  unit="SH coefficients of linear RGB minus 0.5"),
    )


DEFAULT_OPTIONS = Options()

# Gradients of colour and opacity mean the same in every view; those in pixels do not.
GRADIENT_FIELDS = (Field("means2d", (2,), "int8"), Field("conics", (3,), "int8"), Field("depths", (), "int8"),
                   Field("opacities", (), "int8", additive=True), Field("colors", (3,), "int8", additive=True))


class Gaussian3D:
    """3D Gaussian Splatting on the cpu backend; see :class:`gaian_hpc.renderers.base.PointRenderer`.

    Parameters
    ----------
    options : Options
    backend : str
        Name of the backend, ``cpu``.
    absgrad : bool
        Make ``render_vjp`` return absolute pixel gradients for density control.
    degree : int, optional
        Active SH degree; ``options.sh_degree`` by default.
    """

    name = "gaussian3d"
    Options = Options
    # Forms that lose more than 16-bit floats would shift splats by half a pixel or more; colours bear it.
    splat_fields = (Field("means2d", (2,), "fp16", in_pixels=True), Field("conics", (3,), "fp16"),
                    Field("depths", (), "fp16"), Field("colors", (3,), "int8"), Field("opacities", (), "int8"),
                    Field("radii", (2,), "fp16"))

    def __init__(self, options: Options = DEFAULT_OPTIONS, backend: str = "cpu", *, absgrad: bool = False,
                 degree: int | None = None):
        self.options = options
        self.backend = backend
        self.absgrad = absgrad
        self.degree = options.sh_degree if degree is None else degree
        self.attributes = _attributes(options)
        self.gradient_fields = GRADIENT_FIELDS + ((Field("absgrad", (2,), "int8"),) if absgrad else ())

    def at_degree(self, degree: int) -> Gaussian3D:
        """Return this renderer with ``degree`` active SH bands (at most ``options.sh_degree``)."""
        degree = min(degree, self.options.sh_degree)
        if degree == self.degree:
            return self
        return Gaussian3D(self.options, self.backend, absgrad=self.absgrad, degree=degree)

    def at_step(self, step: int) -> Gaussian3D:
        """Return the renderer of a training step: the active degree rises by one every ``sh_every`` steps."""
        every = self.options.sh_every
        return self.at_degree(step // every if every else self.options.sh_degree)

    def with_options(self, **changes) -> Gaussian3D:
        """Return this renderer with some options replaced."""
        return Gaussian3D(replace(self.options, **changes), self.backend, absgrad=self.absgrad, degree=self.degree)

    def cull(self, view: View, points: ArrayTable) -> np.ndarray:
        """Return the rows whose splat has alpha ≥ 1/255 inside its pixel box on the picture, ascending int64."""
        from . import cpu
        from .projection import pack_camera

        o = self.options
        mask = np.empty(len(points["means"]), np.bool_)
        cpu.visible(pack_camera(view), points["means"], points["quats"], points["scales"], points["opacities"],
                    o.eps2d, o.antialiased, mask)
        return np.flatnonzero(mask)

    def splat(self, view: View, points: ArrayTable, ids: np.ndarray) -> ArrayTable:
        """Project rows ``ids``; returns ``splat_fields``, float32."""
        from . import cpu
        from .projection import pack_camera

        o = self.options
        out = {f.name: np.empty((len(ids), *f.shape), np.float32) for f in self.splat_fields}
        cpu.project(pack_camera(view), ids, points["means"], points["quats"], points["scales"], points["opacities"],
                    points["sh"], self.degree, o.eps2d, o.antialiased, out["means2d"], out["conics"], out["depths"],
                    out["colors"], out["opacities"], out["radii"])
        return ArrayTable(out, len(ids))

    def splat_vjp(self, view: View, points: ArrayTable, ids: np.ndarray, splats: ArrayTable,
                  v_splats: ArrayTable) -> ArrayTable:
        """Return gradients of the activated attributes of rows ``ids``; ``sh`` up to the active degree only."""
        from . import cpu
        from .projection import pack_camera

        o, m = self.options, len(ids)
        shapes = {"means": (3,), "quats": (4,), "scales": (3,), "opacities": (), "sh": (n_coefficients(self.degree), 3)}
        out = {name: np.empty((m, *shape), np.float32) for name, shape in shapes.items()}
        cpu.project_vjp(pack_camera(view), ids, points["means"], points["quats"], points["scales"],
                        points["opacities"], points["sh"], self.degree, o.eps2d, o.antialiased, splats["colors"],
                        v_splats["means2d"], v_splats["conics"], v_splats["depths"], v_splats["colors"],
                        v_splats["opacities"], out["means"], out["quats"], out["scales"], out["opacities"], out["sh"])
        return ArrayTable(out, m)

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
        return _build_kernels(self.absgrad, 3 + self.options.depth)


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
