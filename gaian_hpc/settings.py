"""The typed tree of all settings; defaults < TOML file < command line (``gaian_hpc.cli`` parses them)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class DataSettings:
    """What is read from a scene.

    Parameters
    ----------
    factor : int
        Downscale pictures by this; ``images_<factor>`` is used where it exists, else scaled on load.
    max_side : int
        Downscale on load so that the longer side is at most this many pixels; 0 keeps the size.
    test_every : int
        Every n-th view by sorted name is a test view; 0 trains on all.
    init : str
        Start points: ``sfm``, ``random``, or the path of a PLY file.
    n_random : int
        Number of start points when ``init`` is ``random``.
    cache_mb : int
        Bound on the memory of decoded pictures, MiB.
    prefetch : int
        Pictures decoded ahead of their use.
    background : str
        ``black``, ``white`` or ``random`` (a new colour for every view and step).
    masks : bool
        Use ``masks/`` where present.
    """

    factor: int = 1
    max_side: int = 0
    test_every: int = 8
    init: str = "sfm"
    n_random: int = 100_000
    cache_mb: int = 1024
    prefetch: int = 4
    background: Literal["black", "white", "random"] = "black"
    masks: bool = True


@dataclass(frozen=True)
class OptimizerSettings:
    """Adam over points (Kerbl et al. 2023); ``selective`` touches only the points that a unit sees (Taming 3DGS)."""

    kind: Literal["selective", "dense"] = "selective"
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-15
    lr_scale: float = 1.0


@dataclass(frozen=True)
class DensifySettings:
    """Density control; ``default`` is clone/split/prune/reset of 3DGS, ``mcmc`` is Kheradmand et al. 2024.

    Parameters
    ----------
    cap : int
        Largest number of points of the whole scene, for every strategy; 0 = no cap (``mcmc``: 1,000,000).
    start, stop, every : int
        Edits happen at multiples of ``every`` with start < step < stop; stop = 0 means half of the run,
        at most 15,000 (``mcmc``: 25,000 or 5/6 of the run).
    """

    strategy: Literal["default", "mcmc", "none"] = "default"
    cap: int = 0
    start: int = 500
    stop: int = 0
    every: int = 100
    grad_threshold: float = 0.0002
    absgrad: bool = False
    absgrad_threshold: float = 0.0008
    split_scale: float = 0.01
    prune_opacity: float = 0.005
    prune_scale: float = 0.1
    reset_every: int = 3000
    noise_lr: float = 5e5
    opacity_reg: float = 0.01
    scale_reg: float = 0.01
    grow_factor: float = 1.05


@dataclass(frozen=True)
class CheckpointSettings:
    """When checkpoints are written and how many are kept (0 = all)."""

    every: int = 1000
    keep: int = 2
    compress: bool = False


@dataclass(frozen=True)
class Settings:
    """All settings of a training run.

    Parameters
    ----------
    steps : int
        Optimizer steps; the position learning rate decays over them.
    views_per_step : int
        Views of one unit (batch); learning rates and betas follow the square-root rule.
    patch_size : int
        Largest side of a patch in pixels, rounded to tiles; part of the result's last bits.
    threads : int
        Threads per rank; 0 = all cores this process may use.
    ssim_weight : float
        Loss = (1 - w) L1 + w (1 - SSIM).
    """

    method: str = "gaussian3d"
    backend: Literal["auto", "cpu", "cuda"] = "auto"
    steps: int = 30_000
    seed: int = 0
    threads: int = 0
    views_per_step: int = 1
    patch_size: int = 512
    ssim_weight: float = 0.2
    data: DataSettings = field(default_factory=DataSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    densify: DensifySettings = field(default_factory=DensifySettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    log_every: int = 10
