"""The exchange of tables that lie on a GPU: messages are packed and unpacked there.

Where the MPI library takes pointers of the GPU, messages go to it as they are (``direct``); elsewhere each crosses to
the host and back in the form of the wire (``staged``). A library that does not take them ends the process at the first
try, so it is asked before: ``MPIX_Query_cuda_support`` of Open MPI and MPICH, or Cray's environment variable. Then one
message makes sure.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..backends.cuda import Device
from ..backends.messages import pack, unpack
from ..errors import ExchangeError
from .buffers import Buffers
from .exchange import Exchange
from .world import World, aligned

log = logging.getLogger(__name__)


class DeviceExchange(Exchange):
    """Moves tables of ``device`` between the ranks of ``world``.

    Parameters
    ----------
    device : Device
    path : {"auto", "direct", "staged"}
        ``auto`` is ``direct`` where the MPI library says that it takes pointers of a GPU.
    arguments
        Of :class:`Exchange`.

    Raises
    ------
    ExchangeError
        If ``direct`` was asked for and the library does not take them.
    """

    def __init__(self, device: Device, path: str, world: World, *arguments: Any):
        super().__init__(world, *arguments)
        self.place = device
        self._buffers = choose_buffers(device, path, world)

    def encode(self, values: Any, codec: str) -> Any:
        """Return values on the GPU as bytes there."""
        rows = self.place.xp.arange(len(values), dtype=np.int64)
        try:
            return pack(self.place, values, rows, codec)
        except ValueError as error:
            raise ExchangeError(f"{error}; lower --optimizer.lr_scale, or check the start points for huge "
                                "values") from error

    def decode(self, data: Any, n_rows: int, shape: tuple[int, ...], codec: str) -> Any:
        """Return values on the GPU from bytes there."""
        return unpack(self.place, data, n_rows, shape, codec)

    def transfer(self, messages: Sequence[Sequence[Any]], sizes: np.ndarray) -> list[Any]:
        """Collective. Exchange messages on the GPU, directly or by way of the host."""
        return self.world.alltoall(messages, sizes, self._buffers)


def choose_buffers(device: Device, path: str, world: World) -> Buffers:
    """Collective. Return how messages of ``device`` are laid out for MPI; raises as :class:`DeviceExchange`."""
    says = world.size > 1 and all(world.collect(takes_device_pointers()))
    direct = says if path == "auto" else path == "direct" and world.size > 1
    buffers = Buffers(device, direct)
    if world.size > 1:
        log.info("messages between GPUs are %s", "direct" if direct else "staged through the host")
    with world.agreed():
        if direct and not says:
            raise ExchangeError("exchange.gpu is direct, but the MPI library does not say that it takes pointers of a "
                                "GPU (MPIX_Query_cuda_support, MPICH_GPU_SUPPORT_ENABLED); use a CUDA-aware MPI, or "
                                "set exchange.gpu to staged")
    if direct and not passes_test(device, buffers, world):
        with world.agreed():
            raise ExchangeError("the MPI library says that it takes pointers of a GPU, but a test message arrived "
                                "wrong; set exchange.gpu to staged")
    return buffers


def takes_device_pointers() -> bool:
    """Return what the MPI library of this process says of pointers of a GPU; False where it says nothing."""
    if os.environ.get("MPICH_GPU_SUPPORT_ENABLED") == "1":  # Cray
        return True
    try:
        from mpi4py import MPI

        query = ctypes.CDLL(MPI.__file__).MPIX_Query_cuda_support
    except (ImportError, OSError, AttributeError):
        return False
    query.restype = ctypes.c_int
    return query() == 1


def passes_test(device: Device, buffers: Buffers, world: World) -> bool:
    """Collective. Send every rank a message from the GPU and return whether all arrived everywhere."""
    messages = [[device.array(np.full(100, (16 * world.rank + dst) % 251, np.uint8))] for dst in range(world.size)]
    received = world.alltoall(messages, np.full(world.size, aligned(100)), buffers)
    right = all((device.host(data)[:100] == np.uint8((16 * src + world.rank) % 251)).all()
                for src, data in enumerate(received) if src != world.rank)
    return all(world.collect(right))
