"""The field tables and structure-of-arrays containers that every layer exchanges."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

TILE_SIZE = 16

Activation = Literal["identity", "exp", "sigmoid"]


@dataclass(frozen=True, slots=True)
class Field:
    """A per-row float32 array of splats or their gradients.

    Parameters
    ----------
    name : str
    shape : tuple of int
        Shape per row.
    transport : {"fp32", "fp16", "bf16", "int8"}
        The narrowest form in which its method lets it cross ranks; runs use fp32 unless they ask for less.
    in_pixels : bool
        Two columns x, y in pixels: a lossy form is taken relative to the middle of the patch, where it has more digits.
    additive : bool
        Values of different views mean the same and add up (a colour's gradient): what one rounding lost, the
        next message can make up for.
    """

    name: str
    shape: tuple[int, ...] = ()
    transport: str = "fp32"
    in_pixels: bool = False
    additive: bool = False

    @property
    def width(self) -> int:
        """Number of float32 values per row."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class LearningRate:
    """A log-linear schedule from ``initial`` to ``final`` over a run (Kerbl et al. 2023, supplement).

    Parameters
    ----------
    initial, final : float
        Rates at the first and the last step; equal rates are constant.
    per_extent : bool
        Multiply by the scene extent (for attributes measured in world units).
    """

    initial: float
    final: float | None = None
    per_extent: bool = False

    def at(self, progress: float, extent: float) -> float:
        """Return the rate at ``progress`` in [0, 1] of the run for a scene of ``extent`` world units."""
        rate = self.initial
        if self.final is not None:
            t = min(max(progress, 0.0), 1.0)
            rate = float(np.exp((1 - t) * np.log(self.initial) + t * np.log(self.final)))
        return rate * extent if self.per_extent else rate


@dataclass(frozen=True, slots=True)
class Cloud:
    """The points a scene starts from.

    Attributes
    ----------
    positions : (N, 3) float32, world units
    colors : (N, 3) float32 in [0, 1]
    spacing : (N,) float32, world units
        Root of the mean squared distance to the three nearest neighbours.
    ids : (N,) int64, ascending
    seed : int
        Key of counter-based random initial values.
    """

    positions: np.ndarray
    colors: np.ndarray
    spacing: np.ndarray
    ids: np.ndarray
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Attribute:
    """One trainable array of a method's points.

    Parameters
    ----------
    name : str
        Name of the activated value, as a renderer reads it (``scales``).
    shape : tuple of int
        Shape per point.
    init : callable
        ``init(cloud) -> (N, *shape) float32`` raw (stored) values.
    lr : LearningRate
    activation : {"identity", "exp", "sigmoid"}
        From the stored to the activated value; the runtime applies it and its derivative, not the renderer.
    raw_name : str, optional
        Name of the stored value (``log_scales``); the same as ``name`` by default.
    lr_scale : tuple of float, optional
        Factor per flattened column of ``shape`` (the higher SH coefficients learn 20 times slower).
    unit : str
        Unit of the stored value, written into checkpoints.
    """

    name: str
    shape: tuple[int, ...]
    init: Callable[[Cloud], np.ndarray]
    lr: LearningRate
    activation: Activation = "identity"
    raw_name: str = ""
    lr_scale: tuple[float, ...] | None = None
    unit: str = "1"

    @property
    def stored(self) -> str:
        """Name of the raw array in stores and checkpoints."""
        return self.raw_name or self.name

    @property
    def width(self) -> int:
        """Number of float32 values per point."""
        return int(np.prod(self.shape, dtype=np.int64))


class ArrayTable(Mapping[str, np.ndarray]):
    """Named arrays of equal length (structure of arrays): points, splats and their gradients."""

    __slots__ = ("_arrays", "_n")

    def __init__(self, arrays: Mapping[str, np.ndarray], n: int | None = None):
        self._arrays = dict(arrays)
        lengths = {name: len(a) for name, a in self._arrays.items()}
        self._n = n if n is not None else next(iter(lengths.values()), 0)
        for name, length in lengths.items():
            if length != self._n:
                raise ValueError(f"array {name!r} has {length} rows where {self._n} were expected")

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    @property
    def n_rows(self) -> int:
        """Number of rows of every array."""
        return self._n

    def take(self, rows: np.ndarray) -> ArrayTable:
        """Return a copy of ``rows`` of every array."""
        return ArrayTable({name: a[rows] for name, a in self._arrays.items()})

    def nbytes(self) -> int:
        """Return the bytes of all arrays."""
        return sum(a.nbytes for a in self._arrays.values())


@dataclass(frozen=True, slots=True)
class View:
    """A posed pinhole camera; pixels are at +0.5 and axes are OpenCV's (x right, y down, z forward).

    Attributes
    ----------
    viewmat : (4, 4) float32
        World to camera.
    K : (3, 3) float32, pixels
    width, height : int, pixels
    near, far : float, world units
    index : int
        Position among all views of the scene, sorted by name.
    time : float
        In [0, 1]; used by time-varying methods only.
    """

    viewmat: np.ndarray
    K: np.ndarray
    width: int
    height: int
    name: str = ""
    index: int = 0
    near: float = 0.01
    far: float = 1e10
    time: float = 0.0

    @property
    def camera_center(self) -> np.ndarray:
        """Camera centre in world units, (3,) float32; the translation of the inverse of ``viewmat``."""
        return np.linalg.inv(self.viewmat.astype(np.float64))[:3, 3].astype(np.float32)


@dataclass(frozen=True, slots=True)
class Patch:
    """A tile-aligned rectangle [x0, x1) × [y0, y1) of a view, the unit of rendering work."""

    view: View
    x0: int
    y0: int
    x1: int
    y1: int
    index: int = field(default=0)

    @property
    def width(self) -> int:
        return self.x1 - self.x0

    @property
    def height(self) -> int:
        return self.y1 - self.y0
