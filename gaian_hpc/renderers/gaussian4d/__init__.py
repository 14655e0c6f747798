"""4D Gaussian Splatting with native 4D primitives (Yang et al. 2024): a 3D Gaussian of its own at every time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...arrays import ArrayTable, Attribute, Cloud, LearningRate, View
from ...errors import SettingsError
from ...rng import uniform
from ..ellipses import EllipseRenderer
from ..sh import C0, n_coefficients

if TYPE_CHECKING:
    from ...backends.cuda import Device

MAX_DEGREE = 3
MAX_HARMONIC = 2


@dataclass(frozen=True)
class Options:
    """Settings of the method; times are those of the scene's views, from 0 to 1.

    Parameters
    ----------
    sh_degree : int
        Degree of the spherical harmonics, 0–3.
    sh_every : int
        Steps after which the active degree rises by one; 0 = full degree from the start.
    sh_degree_t : int
        Harmonics of time in the colour, 0–2; active once the spherical degree is 3 (the published code's rule).
    duration : float
        Period of the first harmonic of time.
    rotate_time : bool
        Rotate space and time together, by two quaternions; otherwise points do not move, ``quats_l`` turns them in
        space, and ``scales_t`` is a variance, as in the published code.
    blur_t : float
        Added to the variance in time when weighing a point.
    direction : {"canonical", "conditional"}
        Where a point's colour is seen from: its 4D mean, or its mean at the time.
    depth : bool
        Also render the map ``depth`` = Σ weight · camera depth.
    eps2d : float
        Blur added to the screen covariance, pixels².
    lr_means, lr_means_final, lr_times, lr_sh, lr_opacities, lr_scales, lr_quats : float
        Learning rates; that of the means is times the scene extent and decays log-linearly over the run.
    opacity : float
        Opacity of a start point.
    scale_t : float
        Standard deviation in time of a start point, or its square where ``rotate_time`` is false.
    """

    sh_degree: int = 3
    sh_every: int = 1000
    sh_degree_t: int = 0
    duration: float = 1.0
    rotate_time: bool = True
    blur_t: float = 0.0
    direction: str = "canonical"
    depth: bool = False
    eps2d: float = 0.3
    lr_means: float = 1.6e-4
    lr_means_final: float = 1.6e-6
    lr_times: float = 1.6e-4
    lr_sh: float = 2.5e-3
    lr_opacities: float = 0.05
    lr_scales: float = 5e-3
    lr_quats: float = 1e-3
    opacity: float = 0.1
    scale_t: float = 0.45

    def __post_init__(self) -> None:
        for name, top in (("sh_degree", MAX_DEGREE), ("sh_degree_t", MAX_HARMONIC)):
            if not 0 <= getattr(self, name) <= top:
                raise SettingsError(f"renderer.{name} is {getattr(self, name)}; allowed are 0 to {top}")
        if not 0 < self.opacity < 1:
            raise SettingsError(f"renderer.opacity is {self.opacity}; it must lie between 0 and 1")
        for name in ("eps2d", "blur_t"):
            if not getattr(self, name) >= 0:
                raise SettingsError(f"renderer.{name} is {getattr(self, name)}; it must be at least 0")
        for name in ("duration", "scale_t"):
            if not getattr(self, name) > 0:
                raise SettingsError(f"renderer.{name} is {getattr(self, name)}; it must be above 0")
        if self.direction not in ("canonical", "conditional"):
            raise SettingsError(f"renderer.direction is {self.direction!r}; it must be 'canonical' or 'conditional'")


def point_attributes(o: Options) -> tuple[Attribute, ...]:
    """Return the attribute table of 4D Gaussians."""
    n_basis = n_coefficients(o.sh_degree)
    k = n_basis * (o.sh_degree_t + 1)

    def sh(cloud: Cloud) -> np.ndarray:
        raw = np.zeros((len(cloud.positions), k, 3), np.float32)
        raw[:, 0] = (cloud.colors - 0.5) / C0
        return raw

    def times(cloud: Cloud) -> np.ndarray:
        return uniform(cloud.seed, "gaussian4d.times", 0, cloud.ids)

    def log_scales(cloud: Cloud) -> np.ndarray:
        return np.repeat(np.log(cloud.spacing)[:, None], 3, axis=1).astype(np.float32)

    def log_scales_t(cloud: Cloud) -> np.ndarray:
        return np.full(len(cloud.positions), np.log(o.scale_t), np.float32)

    def quats(cloud: Cloud) -> np.ndarray:
        return np.tile(np.float32([1, 0, 0, 0]), (len(cloud.positions), 1))

    def logit_opacities(cloud: Cloud) -> np.ndarray:
        return np.full(len(cloud.positions), np.log(o.opacity / (1 - o.opacity)), np.float32)

    return (
        Attribute("means", (3,), lambda cloud: cloud.positions, LearningRate(o.lr_means, o.lr_means_final, True),
                  unit="world units"),
        Attribute("times", (), times, LearningRate(o.lr_times), unit="scene time, 0 to 1"),
        Attribute("scales", (3,), log_scales, LearningRate(o.lr_scales), "exp", "log_scales",
                  unit="log of world units"),
        Attribute("scales_t", (), log_scales_t, LearningRate(o.lr_scales), "exp", "log_scales_t",
                  unit="log of scene time"),
        Attribute("quats_l", (4,), quats, LearningRate(o.lr_quats), unit="wxyz, not normalised"),
        Attribute("quats_r", (4,), quats, LearningRate(o.lr_quats), unit="wxyz, not normalised"),
        Attribute("opacities", (), logit_opacities, LearningRate(o.lr_opacities), "sigmoid", "logit_opacities",
                  unit="logit"),
        Attribute("sh", (k, 3), sh, LearningRate(o.lr_sh), lr_scale=(1.0,) * 3 + (0.05,) * (3 * k - 3),
                  unit="SH coefficients of linear RGB minus 0.5, harmonic of time by harmonic of time"),
    )


def _rotations(quats: np.ndarray) -> np.ndarray:
    """Return the rotation matrices (N, 3, 3) float64 of quaternions wxyz (N, 4)."""
    from scipy.spatial.transform import Rotation

    return Rotation.from_quat(quats.astype(np.float64), scalar_first=True).as_matrix()


DEFAULT_OPTIONS = Options()
GEOMETRY = ("means", "times", "scales", "scales_t", "quats_l", "quats_r", "opacities")


class Gaussian4D(EllipseRenderer):
    """4D Gaussians on the cpu backend; see :class:`gaian_hpc.renderers.base.PointRenderer`.

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

    name = "gaussian4d"
    Options = Options
    needs_time = True
    n_split_draws = 4
    split_scales = ("scales", "scales_t")

    def __init__(self, options: Options = DEFAULT_OPTIONS, backend: str = "cpu", *, absgrad: bool = False,
                 degree: int | None = None):
        super().__init__(options.depth, absgrad)
        self.options = options
        self.backend = backend
        self.degree = options.sh_degree if degree is None else degree
        self.attributes = point_attributes(options)

    @classmethod
    def on_device(cls, options: Options, device: Device, *, absgrad: bool = False) -> Gaussian4D:
        """Return the method on a GPU."""
        from .cuda import CudaGaussian4D

        return CudaGaussian4D(options, device, absgrad=absgrad)

    @property
    def degree_t(self) -> int:
        """Active harmonics of time."""
        return self.options.sh_degree_t if self.degree == MAX_DEGREE else 0

    def sizes(self, points: ArrayTable) -> np.ndarray:
        """Return the largest scale in space, (N,) float32."""
        return points["scales"].max(axis=1)

    def split_offsets(self, points: ArrayTable, draws: np.ndarray, shrink: float) -> dict[str, np.ndarray]:
        """Return what standard normal ``draws`` (M, 4) of points (M, …) add to means and times, float64."""
        from .cpu import rotated

        scales = np.concatenate([points["scales"], points["scales_t"][:, None]], axis=1).astype(np.float64)
        offsets = draws * (scales if self.options.rotate_time else scales ** [1, 1, 1, 0.5])
        if self.options.rotate_time:
            rotated(points["quats_l"], points["quats_r"], offsets)
        else:
            offsets[:, :3] = np.einsum("nij,nj->ni", _rotations(points["quats_l"]), offsets[:, :3])
        return {"means": offsets[:, :3], "times": offsets[:, 3]}

    def at_time(self, points: ArrayTable, time: float) -> dict[str, np.ndarray]:
        """Return the 3D Gaussians at a time, as a checkpoint of ``gaussian3d`` would store them.

        Parameters
        ----------
        points : table of (N, ...)
            Activated values.
        time : float

        Returns
        -------
        dict of str to (M, ...) float32
            ``means``, ``quats`` wxyz, ``scales`` logarithms, ``opacities`` logits, ``sh``; points that weigh at most
            0.05 then are left out.
        """
        from scipy.spatial.transform import Rotation

        from . import cpu

        o, n = self.options, points.n_rows
        means, roots, weights = np.empty((n, 3)), np.empty((n, 3, 3)), np.empty(n)
        cpu.slices(time, *(points[name] for name in GEOMETRY[:-1]), o.blur_t, o.rotate_time, means, roots, weights)
        kept = weights > cpu.WEIGHT_MIN
        axes, scales, _ = np.linalg.svd(roots[kept])
        axes[:, :, 2] *= np.sign(np.linalg.det(axes))[:, None]
        opacities = np.clip(points["opacities"][kept] * weights[kept], 1e-7, 1 - 1e-7)
        k = n_coefficients(self.options.sh_degree)
        harmonics = points["sh"][kept].reshape(-1, o.sh_degree_t + 1, k, 3)[:, :self.degree_t + 1]
        phases = 2 * np.pi * np.arange(self.degree_t + 1) * (time - points["times"][kept][:, None]) / o.duration
        sh = np.einsum("nh,nhkc->nkc", np.cos(phases), harmonics)
        raw = {"means": means[kept], "quats": Rotation.from_matrix(axes).as_quat(scalar_first=True),
               "scales": np.log(np.maximum(scales, 1e-12)), "opacities": np.log(opacities / (1 - opacities)), "sh": sh}
        return {name: np.ascontiguousarray(x, np.float32) for name, x in raw.items()}

    def cull(self, view: View, points: ArrayTable) -> np.ndarray:
        """Return the rows that weigh something at the view's time and reach its picture then, ascending int64."""
        from ..projection import pack_camera
        from . import cpu

        o = self.options
        mask = np.empty(len(points["means"]), np.bool_)
        cpu.visible(pack_camera(view), float(view.time), *(points[name] for name in GEOMETRY), o.eps2d, o.blur_t,
                    o.rotate_time, mask)
        return np.flatnonzero(mask)

    def splat(self, view: View, points: ArrayTable, ids: np.ndarray) -> ArrayTable:
        """Project rows ``ids`` as they are at the view's time; returns ``splat_fields``, float32."""
        from . import cpu

        out = {f.name: np.empty((len(ids), *f.shape), np.float32) for f in self.splat_fields}
        cpu.project(*self._inputs(view, points, ids), out["means2d"], out["conics"], out["depths"], out["colors"],
                    out["opacities"], out["radii"])
        return ArrayTable(out, len(ids))

    def splat_vjp(self, view: View, points: ArrayTable, ids: np.ndarray, splats: ArrayTable,
                  v_splats: ArrayTable) -> ArrayTable:
        """Return gradients of the activated attributes of rows ``ids``; ``sh`` up to the active harmonics only."""
        from . import cpu

        m, k = len(ids), n_coefficients(self.degree)
        shapes = {a.name: a.shape for a in self.attributes} | {"sh": (k * (self.degree_t + 1), 3)}
        out = {name: np.empty((m, *shape), np.float32) for name, shape in shapes.items()}
        cpu.project_vjp(*self._inputs(view, points, ids), splats["colors"], v_splats["means2d"], v_splats["conics"],
                        v_splats["depths"], v_splats["colors"], v_splats["opacities"],
                        *(out[name] for name in (*GEOMETRY, "sh")))
        return ArrayTable(out, m)

    def _inputs(self, view: View, points: ArrayTable, ids: np.ndarray) -> tuple:
        from ..projection import pack_camera

        o = self.options
        return (pack_camera(view), float(view.time), ids, *(points[name] for name in (*GEOMETRY, "sh")), self.degree,
                self.degree_t, o.duration, o.eps2d, o.blur_t, o.rotate_time, o.direction == "conditional")
