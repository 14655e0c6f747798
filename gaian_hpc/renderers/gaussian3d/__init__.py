"""3D Gaussian Splatting (Kerbl et al. 2023): anisotropic Gaussians with spherical-harmonics colour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...arrays import ArrayTable, Attribute, Cloud, LearningRate, View
from ...errors import SettingsError
from ..ellipses import EllipseRenderer
from ..sh import C0, n_coefficients

if TYPE_CHECKING:
    from ...backends.cuda import Device

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


def point_attributes(o: Options) -> tuple[Attribute, ...]:
    """Return the attribute table of 3D Gaussians."""
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


class Gaussian3D(EllipseRenderer):
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

    def __init__(self, options: Options = DEFAULT_OPTIONS, backend: str = "cpu", *, absgrad: bool = False,
                 degree: int | None = None):
        super().__init__(options.depth, absgrad)
        self.options = options
        self.backend = backend
        self.degree = options.sh_degree if degree is None else degree
        self.attributes = point_attributes(options)

    @classmethod
    def on_device(cls, options: Options, device: Device, *, absgrad: bool = False) -> Gaussian3D:
        """Return the method on a GPU."""
        from .cuda import CudaGaussian3D

        return CudaGaussian3D(options, device, absgrad=absgrad)

    def cull(self, view: View, points: ArrayTable) -> np.ndarray:
        """Return the rows whose splat has alpha ≥ 1/255 inside its pixel box on the picture, ascending int64."""
        from ..projection import pack_camera
        from . import cpu

        o = self.options
        mask = np.empty(len(points["means"]), np.bool_)
        cpu.visible(pack_camera(view), points["means"], points["quats"], points["scales"], points["opacities"],
                    o.eps2d, o.antialiased, mask)
        return np.flatnonzero(mask)

    def splat(self, view: View, points: ArrayTable, ids: np.ndarray) -> ArrayTable:
        """Project rows ``ids``; returns ``splat_fields``, float32."""
        from ..projection import pack_camera
        from . import cpu

        o = self.options
        out = {f.name: np.empty((len(ids), *f.shape), np.float32) for f in self.splat_fields}
        cpu.project(pack_camera(view), ids, points["means"], points["quats"], points["scales"], points["opacities"],
                    points["sh"], self.degree, o.eps2d, o.antialiased, out["means2d"], out["conics"], out["depths"],
                    out["colors"], out["opacities"], out["radii"])
        return ArrayTable(out, len(ids))

    def splat_vjp(self, view: View, points: ArrayTable, ids: np.ndarray, splats: ArrayTable,
                  v_splats: ArrayTable) -> ArrayTable:
        """Return gradients of the activated attributes of rows ``ids``; ``sh`` up to the active degree only."""
        from ..projection import pack_camera
        from . import cpu

        o, m = self.options, len(ids)
        shapes = {"means": (3,), "quats": (4,), "scales": (3,), "opacities": (), "sh": (n_coefficients(self.degree), 3)}
        out = {name: np.empty((m, *shape), np.float32) for name, shape in shapes.items()}
        cpu.project_vjp(pack_camera(view), ids, points["means"], points["quats"], points["scales"],
                        points["opacities"], points["sh"], self.degree, o.eps2d, o.antialiased, splats["colors"],
                        v_splats["means2d"], v_splats["conics"], v_splats["depths"], v_splats["colors"],
                        v_splats["opacities"], out["means"], out["quats"], out["scales"], out["opacities"], out["sh"])
        return ArrayTable(out, m)
