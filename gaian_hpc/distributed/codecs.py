"""Forms in which arrays cross ranks: fp32 exact; fp16, bf16 and int8 shorter and lossy.

fp16 is scaled by a power of two per message and field, so that gradients of a mean over a million pixels stay within
its range. int8 has one float32 scale for :data:`BLOCK` values; where a field is additive, :class:`Feedback` adds to the
next message what the rounding of the last one lost (error feedback: Seide et al. 2014; Karimireddy et al. 2019).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ..arrays import Field
from ..errors import ExchangeError, SettingsError

CODECS = ("fp32", "fp16", "bf16", "int8")
BLOCK = 64
_LOSS = {"fp32": 0, "bf16": 1, "fp16": 1, "int8": 2}
_HEADER = 8
_FP16_TOP = 14  # the largest value is scaled to [2^14, 2^15): below 65504, and 38 powers of two above the smallest


def codec_of(field: Field, wanted: str) -> str:
    """Return the codec that ``field`` crosses ranks with: ``wanted``, or the narrowest that its method allows."""
    return wanted if _LOSS[wanted] <= _LOSS[field.transport] else field.transport


def parse_overrides(text: str) -> dict[str, str]:
    """Return codec by field of ``"colors=int8,means2d=fp32"``.

    Raises
    ------
    SettingsError
    """
    table = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, codec = item.partition("=")
        if codec not in CODECS:
            raise SettingsError(f"setting exchange.fields has {item!r}; it must be FIELD=CODEC with a codec of "
                                f"{', '.join(CODECS)}, separated by commas")
        table[name] = codec
    return table


def encoded_bytes(n: int, codec: str) -> int:
    """Return the bytes of ``n`` values; none for none."""
    if n == 0:
        return 0
    if codec == "fp32":
        return 4 * n
    if codec == "bf16":
        return 2 * n
    if codec == "fp16":
        return _HEADER + 2 * n
    return 4 * -(-n // BLOCK) + n


def encode(values: np.ndarray, codec: str) -> np.ndarray:
    """Return (n, …) float32 values as bytes, :func:`encoded_bytes` of them.

    Raises
    ------
    ExchangeError
        If a value that is to be shortened is not finite.
    """
    flat = np.ascontiguousarray(values, np.float32).reshape(-1)
    if codec == "fp32" or flat.size == 0:
        return flat.view(np.uint8)
    top = float(np.max(np.abs(flat)))
    if not np.isfinite(top):
        raise ExchangeError(f"a value to be sent as {codec} is {top}; lower --optimizer.lr_scale, or check the start "
                            "points for huge values")
    if codec == "bf16":
        return _to_bf16(flat.view(np.uint32)).view(np.uint8)
    if codec == "fp16":
        exponent = _FP16_TOP - int(np.frexp(top)[1]) if top > 0 else 0
        header = np.array([exponent], np.int64).view(np.uint8)
        return np.concatenate([header, np.ldexp(flat, exponent).astype(np.float16).view(np.uint8)])
    return _to_int8(flat)


def decode(data: np.ndarray, n_rows: int, shape: tuple[int, ...], codec: str) -> np.ndarray:
    """Return the (n_rows, *shape) float32 values that :func:`encode` made into ``data``."""
    n = n_rows * int(np.prod(shape, dtype=np.int64))
    if n == 0:
        return np.empty((n_rows, *shape), np.float32)
    if codec == "fp32":
        flat = data.view(np.float32)
    elif codec == "bf16":
        flat = (data.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    elif codec == "fp16":
        exponent = int(data[:_HEADER].view(np.int64)[0])
        flat = np.ldexp(data[_HEADER:].view(np.float16).astype(np.float32), -exponent)
    else:
        n_blocks = -(-n // BLOCK)
        scales = data[:4 * n_blocks].view(np.float32)
        flat = data[4 * n_blocks:].view(np.int8).astype(np.float32)
        flat *= np.repeat(scales, BLOCK)[:n]
    return flat.reshape(n_rows, *shape)


class Feedback:
    """What the rounding of one field lost, by point id, to be added to what is sent next.

    Parameters
    ----------
    shape : tuple of int
        Shape per row.
    """

    def __init__(self, shape: tuple[int, ...]):
        self.ids = np.empty(0, np.int64)
        self.residuals = np.empty((0, *shape), np.float32)

    def add(self, ids: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return ``values`` with the residuals of ``ids`` added, each to the first row of its id, and take them out."""
        if len(self.ids) == 0 or len(ids) == 0:
            return values
        unique, first = np.unique(ids, return_index=True)
        at = np.minimum(np.searchsorted(self.ids, unique), len(self.ids) - 1)
        known = self.ids[at] == unique
        out = values.copy()
        out[first[known]] += self.residuals[at[known]]
        kept = np.ones(len(self.ids), bool)
        kept[at[known]] = False
        self.ids, self.residuals = self.ids[kept], self.residuals[kept]
        return out

    def keep(self, ids: np.ndarray, lost: np.ndarray) -> None:
        """Keep what was lost of the rows just sent; rows of one id add up."""
        if len(ids) == 0:
            return
        all_ids = np.concatenate([self.ids, ids])
        unique, inverse = np.unique(all_ids, return_inverse=True)
        residuals = np.zeros((len(unique), *lost.shape[1:]), np.float32)
        np.add.at(residuals, inverse, np.concatenate([self.residuals, lost]))
        self.ids, self.residuals = unique, residuals


@njit(cache=True, nogil=True, error_model="numpy")
def _to_bf16(bits):
    """Round to the nearest bfloat16, ties to even."""
    out = np.empty(bits.size, np.uint16)
    for i in range(bits.size):
        b = bits[i]
        out[i] = (b + np.uint32(0x7FFF) + ((b >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return out


def _to_int8(flat: np.ndarray) -> np.ndarray:
    n_blocks = -(-flat.size // BLOCK)
    padded = np.zeros(n_blocks * BLOCK, np.float32)
    padded[:flat.size] = flat
    blocks = padded.reshape(n_blocks, BLOCK)
    scales = np.abs(blocks).max(axis=1) / np.float32(127)
    steps = np.where(scales > 0, scales, np.float32(1))
    codes = np.rint(blocks / steps[:, None]).astype(np.int8).reshape(-1)[:flat.size]
    return np.concatenate([scales.view(np.uint8), codes.view(np.uint8)])
