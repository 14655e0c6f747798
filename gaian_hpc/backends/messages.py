"""Rows of device arrays as the bytes that cross ranks, and back, without a detour over the host.

The bytes are those of :mod:`gaian_hpc.distributed.codecs`, so that either end may be a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .cuda import Device

SOURCE = "training/codecs.cu"
_HEADER, _BLOCK = 8, 64


def pack(device: Device, values: Any, rows: Any, codec: str) -> Any:
    """Return rows of an array as bytes on the device.

    Parameters
    ----------
    values : (N, …) float32 on the device
    rows : (M,) int64 on the device
    codec : {"fp32", "fp16", "bf16", "int8"}

    Raises
    ------
    ValueError
        If a value that is to be scaled is not finite.
    """
    width = int(np.prod(values.shape[1:], dtype=np.int64))
    n, kernels = len(rows) * width, device.kernels(SOURCE)
    source = (np.int32(width), rows, values)
    if n == 0:
        return device.empty(0, np.uint8)
    if codec == "fp32":
        out = device.empty(4 * n, np.uint8)
        kernels.over("pack_fp32", n, *source, out)
        return out
    top = device.zeros(1, np.uint32)
    kernels.over("largest", n, *source, top)
    if not np.isfinite(device.host(top).view(np.float32)[0]):
        raise ValueError(f"a value to be sent as {codec} is not finite")
    if codec == "bf16":
        out = device.empty(2 * n, np.uint8)
        kernels.over("pack_bf16", n, *source, out)
    elif codec == "fp16":
        out = device.empty(_HEADER + 2 * n, np.uint8)
        kernels.over("pack_fp16", n, *source, top, out)
    else:
        out = device.empty(4 * -(-n // _BLOCK) + n, np.uint8)
        kernels.over("pack_int8", n, *source, out)
    return out


def unpack(device: Device, data: Any, n_rows: int, shape: tuple[int, ...], codec: str) -> Any:
    """Return the (n_rows, *shape) float32 values that :func:`pack` made into ``data``."""
    out = device.empty((n_rows, *shape))
    if out.size and codec == "fp32":
        return data.view(np.float32).reshape(out.shape)
    device.kernels(SOURCE).over(f"unpack_{codec}", out.size, data, out)
    return out
