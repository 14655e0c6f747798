"""The tile compositor on a GPU, for any method: tile lists, forward and backward (``kernels/compositing``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...arrays import TILE_SIZE, Patch
from ...backends.cuda import Device
from ...backends.sorting import sort_pairs
from ...errors import BackendError

_MAX_PAIRS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class DeviceTileLists:
    """Splats per tile of one patch, on the device.

    Attributes
    ----------
    offsets : (T + 1,) int64
        Tile t owns entries offsets[t] … offsets[t + 1].
    items : (I,) uint32
        Splat rows, front to back within each tile.
    slots : (I,) uint32
        Row of each entry in a table grouped by splat.
    order : (M,) uint32
        Splat rows, front to back.
    counts, ends : (M,) int64
        Tiles of the k-th splat from the front, and where its rows of that table end.
    n_x, n_y : int
        Tiles of the patch.
    """

    offsets: Any
    items: Any
    slots: Any
    order: Any
    counts: Any
    ends: Any
    n_x: int
    n_y: int


@dataclass(frozen=True, slots=True)
class DeviceComposited:
    """A patch as its method's splats make it, and what its gradients need, on the device.

    Attributes
    ----------
    table : (M, COLUMNS) float32
    planes : (P, h, w) float32
        The channels and, where the method has a channel of depths, their median and perhaps their distortion.
    transmittance : (h, w) float32
    last : (h, w) int32
        Rank of the last contributor of the tile's list.
    """

    patch: Patch
    lists: DeviceTileLists
    table: Any
    planes: Any
    transmittance: Any
    last: Any


class DeviceCompositor:
    """The compositor of one method.

    Parameters
    ----------
    device : Device
    source : str
        Kernel file that includes ``compositing/sort.cuh`` and ``compositing/binning.cuh``.
    method : str
        C++ type of the method in it.
    n_moments, n_features, n_planes : int
        Its terms of the geometry, its features, and the planes that it makes.
    """

    def __init__(self, device: Device, source: str, method: str, n_moments: int, n_features: int, n_planes: int):
        self.n_moments, self.n_features, self.n_planes = n_moments, n_features, n_planes
        self._device = device
        self._file = device.kernels(source)
        self._count, self._emit, self._forward = (f"{kernel}<{method}>" for kernel in ("count_tiles", "emit_tiles",
                                                                                       "composite"))
        self._backward = f"composite_vjp<{method}, {'true' if device.deterministic else 'false'}>"
        self._file.prepare(self._count, self._emit, self._forward, self._backward)

    def composite(self, patch: Patch, depths: Any, table: Any) -> DeviceComposited:
        """Blend splats over a patch.

        Parameters
        ----------
        depths : (M,) float32
        table : (M, COLUMNS) float32
        """
        device, size, lists = self._device, (patch.height, patch.width), self.bin_splats(patch, depths, table)
        out = DeviceComposited(patch, lists, table, device.empty((self.n_planes, *size)), device.empty(size),
                               device.empty(size, np.int32))
        self._file.launch(self._forward, lists.n_x * lists.n_y, *_geometry(patch, lists), lists.offsets, lists.items,
                          table, out.planes, out.transmittance, out.last)
        return out

    def gradients(self, c: DeviceComposited, v_planes: Sequence[tuple[int, Any]], v_alpha: Any) -> Any:
        """Return what each splat's terms add up to, (M, n_moments + n_features) float32 on the device.

        Parameters
        ----------
        c : DeviceComposited
        v_planes : sequence of (k, (k, h, w) or (h, w) float32)
            Gradients of groups of k planes, all planes in all, on host or device; ``None`` is zero. That of a median
            has no effect.
        v_alpha : (h, w) float32, optional
        """
        device, lists, size = self._device, c.lists, c.last.shape
        width, n, deterministic = self.n_moments + self.n_features, len(c.lists.order), self._device.deterministic

        def gradient(shape: tuple[int, ...], x: Any) -> Any:
            return device.zeros(shape) if x is None else device.array(x, np.float32).reshape(shape)

        parts = [gradient((k, *size), x) for k, x in v_planes]
        v = parts[0] if len(parts) == 1 else device.xp.concatenate(parts)
        rows = device.zeros((len(lists.items) if deterministic else n, width))
        self._file.launch(self._backward, lists.n_x * lists.n_y, *_geometry(c.patch, lists), lists.offsets, lists.items,
                          lists.slots if deterministic else lists.items, c.table, c.planes, v, gradient(size, v_alpha),
                          c.transmittance, c.last, rows)
        if not deterministic:
            return rows
        sums = device.empty((n, width))
        self._file.launch("sum_slots", -(-n * width // 256), np.int64(n), np.int32(width), lists.order, lists.counts,
                          lists.ends, rows, sums)
        return sums

    def bin_splats(self, patch: Patch, depths: Any, table: Any) -> DeviceTileLists:
        """Return the tile lists of a patch; the number of pairs is all that comes back to the host.

        Parameters
        ----------
        depths : (M,) float32
        table : (M, COLUMNS) float32

        Raises
        ------
        BackendError
            If there are too many pairs for one patch.
        """
        device, n = self._device, len(depths)
        n_x, n_y = -(-patch.width // TILE_SIZE), -(-patch.height // TILE_SIZE)
        keys, rows = device.empty(n, np.uint32), device.empty(n, np.uint32)
        self._file.over("depth_keys", n, depths, keys, rows)
        _, order = sort_pairs(device, self._file, keys, rows, 32)
        counts = device.empty(n, np.int64)
        place = (np.int32(n_x), np.int32(n_y), np.int32(patch.x0), np.int32(patch.y0))
        self._file.over(self._count, n, order, table, *place, counts)
        ends = device.cumsum(counts)
        n_pairs = int(ends[-1]) if n else 0
        if n_pairs > _MAX_PAIRS:
            raise BackendError(f"a patch of {patch.width} × {patch.height} px meets {n_pairs} tiles of splats; one "
                               f"takes at most {_MAX_PAIRS}: use smaller patches (--patch_size)")
        tiles, owners = device.empty(n_pairs, np.uint32), device.empty(n_pairs, np.uint32)
        self._file.over(self._emit, n, order, table, *place, counts, ends, tiles, owners)
        slots = device.xp.arange(n_pairs, dtype=np.uint32)
        tiles, slots = sort_pairs(device, self._file, tiles, slots, (n_x * n_y - 1).bit_length())
        offsets = device.empty(n_x * n_y + 1, np.int64)
        self._file.launch("tile_offsets", -(-len(offsets) // 256), np.int64(n_pairs), tiles, np.int32(n_x * n_y),
                          offsets)
        return DeviceTileLists(offsets, device.xp.take(owners, slots), slots, order, counts, ends, n_x, n_y)


def _geometry(patch: Patch, lists: DeviceTileLists) -> tuple[np.int32, ...]:
    return (np.int32(lists.n_x), np.int32(patch.x0), np.int32(patch.y0), np.int32(patch.width), np.int32(patch.height))
