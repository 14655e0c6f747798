"""Adam over points (Kingma and Ba 2015), fused with the chain rule and the refresh of activated values."""

from __future__ import annotations

import math

import numpy as np
from numba import njit, prange

from ..arrays import ArrayTable, Attribute
from ..points.activation import CODES, EXP, SIGMOID, activate_one
from ..points.store import PointStore
from ..settings import OptimizerSettings


class Adam:
    """Adam whose learning rates and moments follow the attribute table.

    ``selective`` touches the rows in scope only, both moments included, without bias correction (Taming 3DGS,
    Mallick et al. 2024); ``dense`` decays and moves every row at every step, with bias correction. For B views a
    step the square-root rules hold: rate · √B, β → 1 − B (1 − β), ε / √B (Malladi et al. 2022).

    Parameters
    ----------
    attributes : tuple of Attribute
    settings : OptimizerSettings
    extent : float, world units
        Scene extent, by which rates of attributes in world units are multiplied.
    total_steps : int
        Steps over which the rates decay.
    views_per_step : int
        Views B of a unit, whose losses are averaged.
    """

    def __init__(self, attributes: tuple[Attribute, ...], settings: OptimizerSettings, extent: float,
                 total_steps: int, views_per_step: int = 1):
        self._attributes = {a.name: a for a in attributes}
        self._settings = settings
        self._extent = float(extent)
        self._total_steps = max(int(total_steps), 1)
        self._root = math.sqrt(views_per_step)
        self.beta1, self.beta2 = (max(0.0, 1.0 - views_per_step * (1.0 - b)) for b in (settings.beta1, settings.beta2))
        self.eps = settings.eps / self._root

    def learning_rate(self, name: str, step: int) -> float:
        """Return the rate of attribute ``name`` at ``step``, all factors but those per column included."""
        rate = self._attributes[name].lr.at(step / self._total_steps, self._extent)
        return rate * self._settings.lr_scale * self._root

    def update(self, store: PointStore, rows: np.ndarray, v_rows: ArrayTable, step: int) -> None:
        """Move stored values, moments and activated values by one step.

        Parameters
        ----------
        store : PointStore
        rows : (U,) int64, ascending
            Local rows of the points in scope.
        v_rows : table of (U, *leading columns) float32
            Gradients with respect to the *activated* values. Where an attribute's gradient has fewer columns than
            the attribute, the remaining columns are not touched; attributes without a gradient stay as they are.
        step : int
            Counts from 1.

        Raises
        ------
        ValueError
            If ``step`` < 1, or a gradient has the wrong number of rows or too many columns.
        """
        if step < 1:
            raise ValueError(f"optimizer steps count from 1, not {step}")
        targets, sources = self._pairs(store.n, rows)
        values = store.values
        for name in v_rows:
            attribute = self._attributes[name]
            gradient = _columns(attribute, v_rows[name], len(rows))
            arrays = [x.reshape(store.n, attribute.width) for x in
                      (store.raw[name], store.first_moments[name], store.second_moments[name], values[name])]
            rates, root_scale = self._rates(attribute, gradient.shape[1], step)
            coefficients = np.array([self.beta1, 1 - self.beta1, self.beta2, 1 - self.beta2, root_scale, self.eps],
                                    np.float32)
            if attribute.activation == "identity":
                _step_stored(targets, sources, gradient, *arrays[:3], rates, coefficients)
            else:
                code = CODES[attribute.activation]
                _step_activated(code, targets, sources, gradient, *arrays, rates, coefficients)

    def _pairs(self, n: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows to move and where the gradient of each lies (-1: it is zero)."""
        order = np.arange(len(rows), dtype=np.int64)
        if self._settings.kind == "selective":
            return np.ascontiguousarray(rows, np.int64), order
        sources = np.full(n, -1, np.int64)
        sources[rows] = order
        return np.arange(n, dtype=np.int64), sources

    def _rates(self, attribute: Attribute, columns: int, step: int) -> tuple[np.ndarray, float]:
        """Return the rate of each leading column, float32, and the factor of √v, both with bias correction."""
        scale = np.ones(attribute.width) if attribute.lr_scale is None else np.asarray(attribute.lr_scale, np.float64)
        rates = self.learning_rate(attribute.name, step) * scale[:columns]
        root_scale = 1.0
        if self._settings.kind == "dense":
            rates = rates / (1.0 - self.beta1**step)
            root_scale = 1.0 / math.sqrt(1.0 - self.beta2**step)
        return rates.astype(np.float32), root_scale


def _columns(attribute: Attribute, gradient: np.ndarray, n_rows: int) -> np.ndarray:
    """Return the gradient as (U, leading columns) float32."""
    columns = math.prod(gradient.shape[1:])
    if len(gradient) != n_rows or columns > attribute.width:
        raise ValueError(f"gradient of {attribute.name!r} has shape {gradient.shape} where at most "
                         f"{(n_rows, *attribute.shape)} was expected")
    return np.ascontiguousarray(gradient, np.float32).reshape(n_rows, columns)


@njit(cache=True, parallel=True, nogil=True, error_model="numpy")
def _step_stored(targets, sources, gradient, raw, first, second, rates, coefficients):
    """Adam for attributes that are stored as they are used; one row per iteration, columns are contiguous."""
    b1, a1, b2, a2, root_scale, eps = coefficients
    for i in prange(targets.size):
        row = targets[i]
        source = sources[i]
        if source >= 0:
            for c in range(rates.size):
                g = gradient[source, c]
                m = b1 * first[row, c] + a1 * g
                v = b2 * second[row, c] + a2 * (g * g)
                first[row, c] = m
                second[row, c] = v
                raw[row, c] -= rates[c] * (m / (np.sqrt(v) * root_scale + eps))
        else:
            for c in range(rates.size):
                m = b1 * first[row, c]
                v = b2 * second[row, c]
                first[row, c] = m
                second[row, c] = v
                raw[row, c] -= rates[c] * (m / (np.sqrt(v) * root_scale + eps))


@njit(cache=True, parallel=True, nogil=True, error_model="numpy")
def _step_activated(code, targets, sources, gradient, raw, first, second, values, rates, coefficients):
    """Adam for attributes with an activation: its derivative before, the activated value after."""
    b1, a1, b2, a2, root_scale, eps = coefficients
    for i in prange(targets.size):
        row = targets[i]
        source = sources[i]
        for c in range(rates.size):
            g = gradient[source, c] if source >= 0 else np.float32(0.0)
            value = values[row, c]
            if code == EXP:
                g *= value
            elif code == SIGMOID:
                g *= value * (np.float32(1.0) - value)
            m = b1 * first[row, c] + a1 * g
            v = b2 * second[row, c] + a2 * (g * g)
            first[row, c] = m
            second[row, c] = v
            raw[row, c] -= rates[c] * (m / (np.sqrt(v) * root_scale + eps))
            values[row, c] = activate_one(code, raw[row, c])
