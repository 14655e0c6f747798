"""Rotations and scalings of points, element by element so that results do not depend on neighbours in memory."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from ...arrays import ArrayTable, Attribute
from ...points.store import PointStore, activate, deactivate


class Split(Protocol):
    """How large points of a method are and how they are split; its renderer tells, unless they are Gaussians.

    Attributes
    ----------
    n_split_draws : int
        Standard normal numbers D that a child takes.
    split_scales : tuple of str
        Attributes that shrink with a child.
    """

    n_split_draws: int
    split_scales: tuple[str, ...]

    def sizes(self, points: ArrayTable) -> np.ndarray:
        """Return the size (N,) float32 of each point, world units: a standard deviation, or what comes near it."""

    def split_offsets(self, points: ArrayTable, draws: np.ndarray, shrink: float) -> dict[str, np.ndarray]:
        """Return what is added to stored values of children, by attribute.

        Parameters
        ----------
        points : table of (M, …)
            Activated values of the parents.
        draws : (M, D) float64
        shrink : float
            What a child's size is divided by.
        """


class GaussianSplit:
    """Children are samples of their parent, a Gaussian of ``means``, ``quats`` and two or three ``scales``."""

    n_split_draws = 3
    split_scales = ("scales",)

    def sizes(self, points: ArrayTable) -> np.ndarray:
        """Return the largest scale; see :class:`Split`."""
        return points["scales"].max(axis=1)

    def split_offsets(self, points: ArrayTable, draws: np.ndarray, shrink: float) -> dict[str, np.ndarray]:
        """Return offsets of the means; see :class:`Split`."""
        n_axes = points["scales"].shape[1]
        draws[:, :n_axes] *= points["scales"]
        draws[:, n_axes:] = 0.0
        return {"means": rotate(points["quats"], draws)}


def rotate(quats: np.ndarray, vectors: np.ndarray, inverse: bool = False) -> np.ndarray:
    """Rotate vectors by quaternions.

    Parameters
    ----------
    quats : (N, 4)
        ``wxyz``, normalised here; the zero quaternion does not rotate.
    vectors : (N, 3)
    inverse : bool
        Rotate backwards.

    Returns
    -------
    (N, 3) float64
    """
    w, x, y, z = (quats[:, i].astype(np.float64) for i in range(4))
    square = w * w + x * x + y * y + z * z
    factor = np.divide(2.0, square, out=np.zeros_like(square), where=square > 0)
    if inverse:
        w = -w
    a, b, c = (vectors[:, i].astype(np.float64) for i in range(3))
    # v' = v + 2 u × (u × v + w v) / |q|² with u the vector part
    p, q, r = y * c - z * b + w * a, z * a - x * c + w * b, x * b - y * a + w * c
    return np.stack([a + factor * (y * r - z * q), b + factor * (z * p - x * r), c + factor * (x * q - y * p)], axis=1)


def multiplied(attribute: Attribute, raw: np.ndarray, factor: float) -> np.ndarray:
    """Return stored values whose activated values are ``factor`` times those of ``raw``."""
    if attribute.activation == "exp":
        return raw + np.float32(math.log(factor))
    return deactivate(attribute, activate(attribute, raw).astype(np.float64) * factor)


def stored(attribute: Attribute, value: float) -> np.float32:
    """Return the stored value of one activated value."""
    return deactivate(attribute, np.array([value]))[0]


def attribute_of(store: PointStore, name: str) -> Attribute:
    """Return the entry of the attribute table called ``name``."""
    return next(a for a in store.attributes if a.name == name)
