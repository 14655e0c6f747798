"""Phases of a step on a GPU besides rendering: the loss, Adam and density statistics (``kernels/training``).

The functions take and return device arrays and follow their namesakes of the cpu backend; only sums of a loss come
back to the host.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays import ArrayTable, Patch, View
from ..backends import cuda as backend
from ..backends.cuda import Device
from ..distributed.world import World
from ..points.activation import CODES
from ..points.store import PointStore
from .loss import RADIUS, PatchLoss, Region
from .optimizer import Adam

LOSS, POINTS = "training/loss.cu", "training/points.cu"
_SIDE = 16


def device_of_rank(world: World) -> Device:
    """Collective over ``world``. Return the GPU of this rank, which no other rank of its host has.

    Raises
    ------
    BackendError
        If there is none; on all ranks if on one.
    """
    with world.agreed():
        mine = backend.visible_devices()
    here = world.hosts == world.hosts[world.rank]
    seen = [devices for devices, near in zip(world.collect(mine), here, strict=True) if near]
    with world.agreed():
        number = backend.choose_device(seen, int(np.count_nonzero(here[:world.rank])))
        return backend.open_device(number)


def region_loss(device: Device, x: Any, y: Any, patch: Patch, ssim_weight: float) -> PatchLoss:
    """Return a patch's part of the loss of its view; see :func:`gaian_hpc.training.loss.region_loss`.

    Parameters
    ----------
    x, y : (3, h, w) float32 on the device
        Render and target in the patch's :class:`~gaian_hpc.training.loss.Region`.
    """
    region, kernels = Region.of(patch), device.kernels(LOSS)
    channels, height, width = x.shape
    map_size = (patch.height + 2 * RADIUS, patch.width + 2 * RADIUS)
    maps = device.empty((3, channels, *map_size))
    ssim = device.empty(channels * _n_tiles(*map_size))
    whole, n = (np.int32(height), np.int32(width)), 3.0 * patch.view.width * patch.view.height
    kernels.launch("ssim_maps", len(ssim), x, y, *whole, np.int32(region.top - RADIUS),
                   np.int32(region.left - RADIUS), np.int32(map_size[0]), np.int32(map_size[1]), np.int32(channels),
                   maps, ssim)
    v_image = device.empty((channels, patch.height, patch.width))
    l1 = device.empty(channels * _n_tiles(patch.height, patch.width))
    kernels.launch("loss_gradient", len(l1), x, y, *whole, np.int32(region.top), np.int32(region.left),
                   np.int32(patch.height), np.int32(patch.width), np.int32(channels), maps,
                   np.float32((1 - ssim_weight) / n), np.float32(ssim_weight / n), v_image, l1)
    return PatchLoss(float(device.host(l1).sum(dtype=np.float64)), float(device.host(ssim).sum(dtype=np.float64)),
                     v_image)


def _n_tiles(height: int, width: int) -> int:
    return -(-height // _SIDE) * -(-width // _SIDE)


class DeviceAdam(Adam):
    """:class:`~gaian_hpc.training.optimizer.Adam` for a store whose arrays lie on ``device``."""

    def __init__(self, device: Device, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self._device = device

    def update(self, store: PointStore, rows: Any, v_rows: ArrayTable, step: int) -> None:
        """Move stored values, moments and activated values by one step, in one kernel an attribute."""
        device = self._device
        targets, sources = (device.array(x) for x in self._pairs(store.n, device.host(rows)))
        values = store.values
        for name in v_rows:
            attribute, gradient = self._attributes[name], v_rows[name]
            columns = int(np.prod(gradient.shape[1:], dtype=np.int64))
            rates, root_scale = self._rates(attribute, columns, step)
            coefficients = np.array([self.beta1, 1 - self.beta1, self.beta2, 1 - self.beta2, root_scale, self.eps],
                                    np.float32)
            device.kernels(POINTS).over(
                "adam", len(targets) * columns, np.int32(columns), np.int32(attribute.width),
                np.int32(CODES[attribute.activation]), targets, sources, gradient, device.array(rates),
                device.array(coefficients), store.raw[name], store.first_moments[name], store.second_moments[name],
                values[name])


def observe(device: Device, view: View, rows: Any, gradient: Any, views_per_step: int, grad_sum: Any,
            count: Any) -> None:
    """Add the norms of screen gradients (M, 2) in normalised device coordinates to the statistics of ``rows``."""
    half = 0.5 * views_per_step
    device.kernels(POINTS).over("observe", len(rows), rows, gradient, np.float32(half * view.width),
                                np.float32(half * view.height), grad_sum, count)
