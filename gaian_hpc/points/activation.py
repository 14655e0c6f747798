"""Activations built from basic arithmetic, so that the optimizer's kernels and the store agree to the last bit.

A mathematical library may round differently in vectors, in remainders and between machines; addition,
multiplication, division and square root do not. Stored values thus determine activated ones everywhere; only a GPU
uses functions of its own, and alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit

from ..arrays import Attribute
from ..backends.host import HOST, Host

if TYPE_CHECKING:
    from ..backends.cuda import Device

IDENTITY, EXP, SIGMOID = 0, 1, 2
CODES = {"identity": IDENTITY, "exp": EXP, "sigmoid": SIGMOID}

_LOG2E = 1.4426950408889634
_LN2_HIGH = 6.93147180369123816490e-01
_LN2_LOW = 1.90821492927058770002e-10
_SQRT_HALF = 0.7071067811865476
_MANTISSA = 0x000FFFFFFFFFFFFF


@njit(cache=True, error_model="numpy")
def exp64(x):
    """Return exp(x) in float64 to about one unit in the last place; beyond ±708 the result stays finite."""
    t = min(max(x, -708.0), 708.0)
    k = np.floor(t * _LOG2E + 0.5)
    r = (t - k * _LN2_HIGH) - k * _LN2_LOW  # |r| <= ln(2) / 2
    p = 1.0 / 479001600.0
    p = p * r + 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    scale = np.int64((np.int64(k) + 1023) << 52).view(np.float64)
    return x if x != x else p * scale


@njit(cache=True, error_model="numpy")
def log64(x):
    """Return log(x) in float64 to about one unit in the last place; -inf for zero and less."""
    if x <= 0.0:
        return -np.inf
    bits = np.float64(x).view(np.int64)
    exponent = (bits >> 52) - 1022
    mantissa = np.int64((bits & _MANTISSA) | (1022 << 52)).view(np.float64)  # [0.5, 1)
    if mantissa < _SQRT_HALF:
        mantissa *= 2.0
        exponent -= 1
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    p = 0.0
    for j in range(10, -1, -1):
        p = p * z + 1.0 / (2.0 * j + 1.0)
    return exponent * _LN2_HIGH + (exponent * _LN2_LOW + 2.0 * s * p)


@njit(cache=True, error_model="numpy")
def activate_one(code, raw):
    """Return the float32 activated value of one stored value; ``code`` as in ``CODES``."""
    if code == EXP:
        return np.float32(exp64(np.float64(raw)))
    if code == SIGMOID:
        return np.float32(1.0 / (1.0 + exp64(-np.float64(raw))))
    return raw


@njit(cache=True, error_model="numpy")
def _deactivate_one(code, value):
    if code == EXP:
        return np.float32(log64(value))
    if code == SIGMOID:
        return np.float32(log64(value) - log64(1.0 - value))
    return np.float32(value)


@njit(cache=True, nogil=True, error_model="numpy")
def _activate(code, raw, out):
    for i in range(raw.size):
        out[i] = activate_one(code, raw[i])


@njit(cache=True, nogil=True, error_model="numpy")
def _deactivate(code, value, out):
    for i in range(value.size):
        out[i] = _deactivate_one(code, value[i])


def activate(attribute: Attribute, raw: Any, place: Host | Device = HOST) -> Any:
    """Return the activated values of ``raw`` (float32), which lies at ``place``; the same array for the identity."""
    if attribute.activation == "identity":
        return raw
    if place is not HOST:
        out = place.empty(raw.shape)
        place.kernels("training/points.cu").over("activate_all", raw.size, np.int32(CODES[attribute.activation]), raw,
                                                 out)
        return out
    out = np.empty(raw.shape, np.float32)
    _activate(CODES[attribute.activation], np.ascontiguousarray(raw, np.float32).reshape(-1), out.reshape(-1))
    return out


def deactivate(attribute: Attribute, value: np.ndarray) -> np.ndarray:
    """Return the stored values whose activation is ``value``, float32; ±inf at the ends of the range."""
    flat = np.ascontiguousarray(value, np.float64)
    out = np.empty(flat.shape, np.float32)
    _deactivate(CODES[attribute.activation], flat.reshape(-1), out.reshape(-1))
    return out
