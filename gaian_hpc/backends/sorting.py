"""Stable radix sort of pairs on a GPU (``kernels/compositing/sort.cuh``)."""

from __future__ import annotations

from typing import Any

import numpy as np

from .cuda import Device, KernelFile

SORT_ITEMS = 2048  # pairs that a block takes
_RADIX = 256


def sort_pairs(device: Device, kernels: KernelFile, keys: Any, values: Any, bits: int) -> tuple[Any, Any]:
    """Return (n,) uint32 keys, of which the low ``bits`` count, and values in stable ascending order.

    ``kernels`` is a file that includes the sort.
    """
    n = len(keys)
    n_blocks = -(-n // SORT_ITEMS)
    for shift in range(0, bits if n > 1 else 0, 8):
        counts = device.empty(_RADIX * n_blocks, np.int64)
        kernels.launch("radix_count", n_blocks, np.int64(n), keys, np.int32(shift), counts)
        sorted_keys, sorted_values = device.empty(n, np.uint32), device.empty(n, np.uint32)
        kernels.launch("radix_scatter", n_blocks, np.int64(n), keys, values, np.int32(shift), counts,
                       device.xp.cumsum(counts), sorted_keys, sorted_values)
        keys, values = sorted_keys, sorted_values
    return keys, values
