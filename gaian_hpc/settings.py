"""The typed tree of all settings and their allowed ranges (``gaian_hpc.config`` reads and writes them)."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal

from .errors import SettingsError


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers a setting may take: ``low`` to ``high``, either open where said."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    below: bool = False

    def admits(self, value: float) -> bool:
        """Tell whether ``value`` is finite and in the range."""
        over = value > self.low if self.above else value >= self.low
        under = value < self.high if self.below else value <= self.high
        return math.isfinite(value) and over and under

    def __str__(self) -> str:
        bounds = []
        if self.low > -math.inf:
            bounds.append(f"{'above' if self.above else 'at least'} {self.low:g}")
        if self.high < math.inf:
            bounds.append(f"{'below' if self.below else 'at most'} {self.high:g}")
        return " and ".join(bounds) or "finite"


def ranged(default: Any, low: float = -math.inf, high: float = math.inf, *, above: bool = False,
           below: bool = False) -> Any:
    """Return a dataclass field with a default and a :class:`Range`; methods' ``Options`` may use it, too.

    Parameters
    ----------
    default : int or float
    low, high : float
        Allowed bounds, themselves allowed unless ``above`` (for low) or ``below`` (for high) is true.
    """
    return field(default=default, metadata={"range": Range(low, high, above, below)})


def check_ranges(tree: Any, prefix: str = "") -> None:
    """Check every number of a dataclass tree against its range.

    Parameters
    ----------
    tree : dataclass instance
        Fields without a range must be finite all the same.
    prefix : str
        Put before the names in messages, as ``renderer.``.

    Raises
    ------
    SettingsError
        Naming the first setting out of range, the value found and those allowed.
    """
    for f in dataclasses.fields(tree):
        value, name = getattr(tree, f.name), prefix + f.name
        if dataclasses.is_dataclass(value):
            check_ranges(value, f"{name}.")
            continue
        allowed = f.metadata.get("range", Range())
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, (int, float)) and not allowed.admits(number):
                raise SettingsError(f"setting {name} is {value}; it must be {allowed}")


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
        ``black``, ``white`` or ``random``: a new colour for every view and step, so that nothing stays see-through
        by chance; rendered and evaluated on black.
    masks : bool
        Use ``masks/`` where present.
    near : float
        Near plane in world units: points closer to a camera are not seen by it.
    """

    factor: int = ranged(1, 1)
    max_side: int = ranged(0, 0)
    test_every: int = ranged(8, 0)
    init: str = "sfm"
    n_random: int = ranged(100_000, 1)
    cache_mb: int = ranged(1024, 1)
    prefetch: int = ranged(4, 0)
    background: Literal["black", "white", "random"] = "random"
    masks: bool = True
    near: float = ranged(0.01, 0, above=True)


@dataclass(frozen=True)
class OptimizerSettings:
    """Adam over points (Kerbl et al. 2023).

    Parameters
    ----------
    kind : str
        ``selective`` touches only the points that a unit sees (Taming 3DGS); ``dense`` touches all.
    beta1, beta2 : float
        Decay rates of the first and second moments.
    eps : float
        Added to the root of the second moment.
    lr_scale : float
        Factor on every learning rate.
    """

    kind: Literal["selective", "dense"] = "selective"
    beta1: float = ranged(0.9, 0, 1, below=True)
    beta2: float = ranged(0.999, 0, 1, below=True)
    eps: float = ranged(1e-15, 0, above=True)
    lr_scale: float = ranged(1.0, 0, above=True)


@dataclass(frozen=True)
class DensifySettings:
    """Density control.

    Parameters
    ----------
    strategy : str
        ``default`` is clone, split, prune and reset of 3DGS; ``mcmc`` is Kheradmand et al. 2024; ``none`` keeps
        the points there are.
    cap : int
        Largest number of points of the whole scene, for every strategy; 0 = a point per 128 training
        pixels, or as many as at the start if these are more.
    start, stop, every : int
        Edits happen at multiples of ``every`` with start < step < stop; stop = 0 means half of the
        horizon, at most 15,000 (``mcmc``: 5/6 of it, at most 25,000).
    grad_threshold : float
        Mean screen gradient (normalised device coordinates) from which a point is cloned or split.
    absgrad : bool
        Judge by the sum of absolute pixel gradients instead.
    absgrad_threshold : float
        The threshold used with ``absgrad``.
    split_scale : float
        Points larger than this share of the scene's extent are split, smaller ones cloned.
    prune_opacity : float
        Points below this opacity are removed.
    prune_scale : float
        Points larger than this share of the extent are removed after the first opacity reset; 0 = none. The reference
        takes 0.1, which removes the sky where the cameras stand close together.
    reset_every : int
        Steps between opacity resets; 0 = never.
    noise_lr : float
        ``mcmc``: factor of the position noise.
    opacity_reg, scale_reg : float
        ``mcmc``: weights of the mean opacity and the mean scale in the loss.
    grow_factor : float
        ``mcmc``: growth of the number of points per edit.
    """

    strategy: Literal["default", "mcmc", "none"] = "default"
    cap: int = ranged(0, 0)
    start: int = ranged(500, 0)
    stop: int = ranged(0, 0)
    every: int = ranged(100, 1)
    grad_threshold: float = ranged(0.0002, 0)
    absgrad: bool = False
    absgrad_threshold: float = ranged(0.0008, 0)
    split_scale: float = ranged(0.01, 0)
    prune_opacity: float = ranged(0.005, 0, 1, below=True)
    prune_scale: float = ranged(0.0, 0)
    reset_every: int = ranged(3000, 0)
    noise_lr: float = ranged(5e5, 0)
    opacity_reg: float = ranged(0.01, 0)
    scale_reg: float = ranged(0.01, 0)
    grow_factor: float = ranged(1.05, 1)


@dataclass(frozen=True)
class CheckpointSettings:
    """When checkpoints are written.

    Parameters
    ----------
    every : int
        Steps between checkpoints; one is written at the end in any case.
    keep : int
        Newest checkpoints kept; 0 = all.
    compress : bool
        Compress with deflate, which stock HDF5 tools read.
    """

    every: int = ranged(1000, 1)
    keep: int = ranged(2, 0)
    compress: bool = False


@dataclass(frozen=True)
class ExchangeSettings:
    """How splats and gradients cross ranks; fp32 keeps a run's bits the same on any number of them.

    Parameters
    ----------
    codec : str
        Form of splats, of their gradients and of the pixels at patch borders, as far as the method allows it for each
        of its fields; all but fp32 lose digits.
    fields : str
        Codec by field name, over what the method allows: ``colors=int8,means2d=fp32``.
    assignment : str
        ``locality`` renders patches where most of their points live, under a bound on render work; ``contiguous`` deals
        them out in order, as many to each rank.
    slack : float
        Render work of a rank, over the mean, that ``locality`` allows.
    host_factor : float
        Cost of a byte between hosts in bytes within a host.
    views_in_flight : int
        Views of a unit, per rank, that are rendered at once; more are assigned better and need more memory.
    gpu : str
        Backend ``cuda``: ``direct`` hands messages on the GPU to MPI, ``staged`` takes them through the host, ``auto``
        asks the MPI library.
    publish : str
        ``mode = replicated`` without barrier: form of what changes of points. All but ``fp32`` are lossy: they send
        the difference to what the receiver holds, with error feedback.
    """

    codec: Literal["fp32", "fp16", "bf16", "int8"] = "fp32"
    fields: str = ""
    assignment: Literal["locality", "contiguous"] = "locality"
    slack: float = ranged(1.15, 1)
    host_factor: float = ranged(4.0, 1)
    views_in_flight: int = ranged(4, 1)
    gpu: Literal["auto", "direct", "staged"] = "auto"
    publish: Literal["fp32", "fp16", "bf16", "int8"] = "fp32"


@dataclass(frozen=True)
class PlacementSettings:
    """Which rank owns which points; nothing of it enters the result of a run.

    Parameters
    ----------
    method : str
        ``metis`` partitions the graph of cells and patches, ``morton`` cuts a space-filling curve, ``random`` deals
        cells out.
    work_share : float
        Part of a rank's load that is its points' share of the render work; the rest is their number.
    points_slack : float
        Points of a rank, over the mean, that ``work_share`` may lead to.
    cell_points : int
        Points of a cell, the unit of profiling and migration, at the start.
    profile_points : int
        Points, over all ranks, that a profile follows through all training views; every k-th where there are more.
    check_every : int
        Steps between looks at what was measured.
    drift : float
        Points are placed anew when the share of splats that cross ranks has grown by this factor since they were
        placed, or the points of the fullest rank, over the mean, by it.
    rebalance : float
        Points move from slow ranks to fast ones when the slowest rank takes this many times the mean for its own
        points' work; 0 = never.
    memory_mb : int
        Memory of a rank for points, MiB; 0 = what its host has free.
    """

    method: Literal["metis", "morton", "random"] = "metis"
    work_share: float = ranged(0.5, 0, 1)
    points_slack: float = ranged(1.5, 1)
    cell_points: int = ranged(256, 1)
    profile_points: int = ranged(200_000, 1)
    check_every: int = ranged(50, 1)
    drift: float = ranged(1.25, 1)
    rebalance: float = ranged(1.25, 0)
    memory_mb: int = ranged(0, 0)


@dataclass(frozen=True)
class PipelineSettings:
    """How far ``sync = quality`` and ``sync = throughput`` run ahead.

    Parameters
    ----------
    units : int
        Units in flight, at most (K of Odin).
    tolerance : float
        ``throughput``: share of a unit's points that may be read before earlier updates of them are done, and size of
        these updates beside the mean of their unit's (t of Odin).
    validation : str
        For comparison only: ``none`` reads points whatever earlier units still hold, ``hogwild`` also updates them in
        whatever order gradients come; both lose the result of ``barrier``.
    window_mb : int
        Memory of a rank that others write messages to, MiB.
    progress : bool
        Keep MPI moving in a thread of its own while kernels run: between hosts over TCP nothing arrives otherwise until
        a rank has finished a patch. On fast networks and within a host it only costs.
    render_ahead : bool
        Render patches that no pending point is expected to reach before all points are there; what was expected
        wrongly is rendered again.
    """

    units: int = ranged(4, 1, 64)
    tolerance: float = ranged(0.2, 0, 1)
    validation: Literal["full", "none", "hogwild"] = "full"
    window_mb: int = ranged(64, 1)
    progress: bool = False
    render_ahead: bool = True


@dataclass(frozen=True)
class Settings:
    """All settings of a training run; those of the method itself are its ``Options``.

    Parameters
    ----------
    method : str
        Name of an installed method.
    backend : str
        Where kernels run; ``auto`` takes ``cuda`` where CuPy is installed and every rank has a GPU.
    deterministic : bool
        Backend ``cuda``: add up gradients in a fixed order, for the same bits in every run, at the cost of memory and
        time. Backend ``cpu`` always does.
    steps : int
        Optimizer steps of the run.
    horizon : int
        Steps over which learning rates decay and density control is laid out. Apart from ``steps``, so that a run
        can be stopped, or extended, without changing what its steps do; 0 = ``steps``.
    seed : int
        Key of all random numbers; the same seed and settings give the same bits.
    threads : int
        Threads per rank; 0 = all cores this process may use.
    views_per_step : int
        Views of one unit (batch); learning rates and betas follow the square-root rule.
    mode : str
        ``sharded``: a rank holds its own points and is sent splats. ``replicated``: it also holds copies of all others
        and renders whole views; with ``sync = barrier`` all gradients and points are exchanged every step, else
        only what is read, and of that what has changed.
    sync : str
        ``barrier``: all ranks end a step together. ``quality``: a unit reads each point as soon as all earlier
        updates of it are done, with the same result. ``throughput``: it also reads a bounded share of points before.
    batches : str
        ``shuffled``: units are cut from random epochs. ``scheduled``: these are arranged ahead of time so that units in
        flight (``pipeline.units``) share few points, each view near its random place. ``stratified``: each draws
        evenly from the views that the ranks' points lie in, an epoch still visiting each view once; the order then
        depends on the number of ranks.
    patch_size : int
        Largest side of a patch in pixels, rounded to tiles; part of the result's last bits.
    ssim_weight : float
        Loss = (1 - w) L1 + w (1 - SSIM).
    log_every : int
        Steps between lines of ``metrics.jsonl``.
    """

    method: str = "gaussian3d"
    backend: Literal["auto", "cpu", "cuda"] = "auto"
    deterministic: bool = False
    steps: int = ranged(30_000, 1)
    horizon: int = ranged(30_000, 0)
    seed: int = ranged(0, 0, 2**63 - 1)
    threads: int = ranged(0, 0)
    views_per_step: int = ranged(1, 1)
    mode: Literal["sharded", "replicated"] = "sharded"
    sync: Literal["barrier", "quality", "throughput"] = "barrier"
    batches: Literal["shuffled", "scheduled", "stratified"] = "shuffled"
    patch_size: int = ranged(192, 16)
    ssim_weight: float = ranged(0.2, 0, 1)
    data: DataSettings = field(default_factory=DataSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    densify: DensifySettings = field(default_factory=DensifySettings)
    placement: PlacementSettings = field(default_factory=PlacementSettings)
    exchange: ExchangeSettings = field(default_factory=ExchangeSettings)
    pipeline: PipelineSettings = field(default_factory=PipelineSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    log_every: int = ranged(10, 1)

    def validate(self) -> Settings:
        """Return self if every value is allowed.

        Raises
        ------
        SettingsError
            Naming the setting, the value found and those allowed.
        """
        check_ranges(self)
        if self.data.init not in ("sfm", "random") and not self.data.init.lower().endswith(".ply"):
            raise SettingsError(f"setting data.init is {self.data.init!r}; it must be sfm, random or a .ply path")
        start, stop = self.densify.start, self.densify.stop
        if 0 < stop <= start:
            raise SettingsError(f"setting densify.stop is {stop}; it must be 0 or above densify.start, {start}")
        return self
