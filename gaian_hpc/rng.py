"""Counter-based random numbers keyed by (seed, purpose, step, id): Philox4x32-10 (Salmon et al. 2011, "Random123").

A number depends on its key alone, never on the rank, the thread, the position in an array or on what else is drawn.
Normals come from additions, multiplications, divisions and square roots only, which IEEE 754 rounds alike everywhere:
the mathematical library of a machine has no part in the bits.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_ROUNDS = 10
_CHUNK = 8192  # ids per pass: temporaries stay in the second-level cache

_LN2 = 0.6931471805599453
_SQRT_HALF = 0.7071067811865476
_LOG_SERIES = tuple(1.0 / (2 * k + 1) for k in range(10, -1, -1))
_SIN_SERIES = tuple((-1.0) ** k / math.factorial(2 * k + 1) for k in range(8, -1, -1))
_COS_SERIES = tuple((-1.0) ** k / math.factorial(2 * k) for k in range(8, -1, -1))


def philox4x32(counters: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Encrypt counters with Philox4x32-10.

    Parameters
    ----------
    counters : (N, 4) uint32
    key : two int in [0, 2^32)

    Returns
    -------
    (N, 4) uint32
    """
    c0, c1, c2, c3 = (np.ascontiguousarray(counters[:, i]).astype(np.uint64) for i in range(4))
    for i in range(_ROUNDS):
        k0 = np.uint64((key[0] + i * _WEYL[0]) & 0xFFFFFFFF)
        k1 = np.uint64((key[1] + i * _WEYL[1]) & 0xFFFFFFFF)
        p0 = c0 * _MULTIPLIERS[0]
        p1 = c2 * _MULTIPLIERS[1]
        c0 = (p1 >> _SHIFT) ^ c1 ^ k0
        c2 = (p0 >> _SHIFT) ^ c3 ^ k1
        c1 = p1 & _MASK
        c3 = p0 & _MASK
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


def random_bits(seed: int, purpose: str | int, step: int, ids: np.ndarray, n: int) -> np.ndarray:
    """Return ``n`` random 32-bit words for each id.

    Parameters
    ----------
    seed : int
        The run's seed; its lowest 64 bits count.
    purpose : str or int
        Names an independent stream (``"densify.split"``).
    step : int in [0, 2^32)
    ids : (N,) int64, non-negative
        Point ids, view indices or draw numbers; the value of an id does not depend on the other ids.
    n : int

    Returns
    -------
    (N, n) uint32

    Raises
    ------
    ValueError
        If ``step`` is out of range.
    """
    if not 0 <= step < 2**32:
        raise ValueError(f"step {step} is outside of [0, 2^32)")
    ids = np.ascontiguousarray(ids, np.int64).view(np.uint64)
    key = stream_key(seed, purpose)
    blocks = -(-n // 4)
    out = np.empty((len(ids), n), np.uint32)
    rows = max(1, _CHUNK // max(blocks, 1))
    for start in range(0, len(ids), rows):
        part = ids[start:start + rows]
        counters = np.empty((len(part), blocks, 4), np.uint32)
        counters[..., 0] = (part & _MASK)[:, None]
        counters[..., 1] = (part >> _SHIFT)[:, None]
        counters[..., 2] = step
        counters[..., 3] = np.arange(blocks, dtype=np.uint32)
        words = philox4x32(counters.reshape(-1, 4), key).reshape(len(part), 4 * blocks)
        out[start:start + rows] = words[:, :n]
    return out


def uniform(seed: int, purpose: str | int, step: int, ids: np.ndarray, shape: tuple[int, ...] = (),
            dtype: type = np.float32) -> np.ndarray:
    """Return uniform numbers in [0, 1) of ``shape`` for each id; parameters as in :func:`random_bits`.

    Returns
    -------
    (N, *shape) float32 (24 random bits) or float64 (53 random bits)

    Raises
    ------
    ValueError
        If ``dtype`` is neither float32 nor float64.
    """
    n = math.prod(shape)
    if np.dtype(dtype) == np.float32:
        words = random_bits(seed, purpose, step, ids, n)
        values = (words >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
    elif np.dtype(dtype) == np.float64:
        words = random_bits(seed, purpose, step, ids, 2 * n)
        high = (words[:, 0::2] >> np.uint32(5)).astype(np.float64)
        low = (words[:, 1::2] >> np.uint32(6)).astype(np.float64)
        values = (high * 2.0**26 + low) * 2.0**-53
    else:
        raise ValueError(f"uniform numbers are float32 or float64, not {np.dtype(dtype)}")
    return values.reshape(len(ids), *shape)


def normal(seed: int, purpose: str | int, step: int, ids: np.ndarray, shape: tuple[int, ...] = ()) -> np.ndarray:
    """Return standard normal numbers of ``shape`` for each id; parameters as in :func:`random_bits`.

    Box and Muller 1958 in float64, each pair from two words; no value exceeds 6.8 in magnitude.

    Returns
    -------
    (N, *shape) float32
    """
    n = math.prod(shape)
    pairs = -(-n // 2)
    out = np.empty((len(ids), 2 * pairs), np.float32)
    rows = max(1, _CHUNK // max(pairs, 1))
    for start in range(0, len(ids), rows):
        words = random_bits(seed, purpose, step, ids[start:start + rows], 2 * pairs)
        radius = np.sqrt(-2.0 * _log((words[:, 0::2].astype(np.float64) + 0.5) * 2.0**-32))
        cosine, sine = _circle(words[:, 1::2])
        out[start:start + rows, 0::2] = radius * cosine
        out[start:start + rows, 1::2] = radius * sine
    return np.ascontiguousarray(out[:, :n]).reshape(len(ids), *shape)


def stream_key(seed: int, purpose: str | int) -> tuple[int, int]:
    """Return the Philox key of one purpose under one seed, itself drawn by Philox."""
    if isinstance(purpose, str):
        purpose = int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=8).digest(), "little")
    counter = np.array([[purpose & 0xFFFFFFFF, (purpose >> 32) & 0xFFFFFFFF, 0, 0]], np.uint32)
    words = philox4x32(counter, (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF))
    return int(words[0, 0]), int(words[0, 1])


def _polynomial(coefficients: tuple[float, ...], x: np.ndarray) -> np.ndarray:
    """Return the polynomial of ``x``, highest coefficient first (Horner)."""
    total = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        total *= x
        total += c
    return total


def _log(u: np.ndarray) -> np.ndarray:
    """Return log(u) for u > 0 in float64, by the series of the inverse hyperbolic tangent."""
    mantissa, exponent = np.frexp(u)
    low = mantissa < _SQRT_HALF
    mantissa = np.where(low, 2.0 * mantissa, mantissa)
    s = (mantissa - 1.0) / (mantissa + 1.0)  # |s| <= 0.172
    return (exponent - low) * _LN2 + 2.0 * s * _polynomial(_LOG_SERIES, s * s)


def _circle(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return cosine and sine of an angle uniform on the circle, from 32-bit words: quadrant and place within it."""
    quadrant = words >> np.uint32(30)
    x = ((words & np.uint32(0x3FFFFFFF)).astype(np.float64) * 2.0**-30 - 0.5) * (math.pi / 2)
    square = x * x
    cosine = _polynomial(_COS_SERIES, square)
    sine = x * _polynomial(_SIN_SERIES, square)
    odd = (quadrant & np.uint32(1)).astype(bool)
    first = np.where(odd, -sine, cosine)
    second = np.where(odd, cosine, sine)
    sign = np.where(quadrant >= 2, -1.0, 1.0)
    return sign * first, sign * second
