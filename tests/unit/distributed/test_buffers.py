"""Messages are laid out in device memory where MPI takes it, and staged where it does not."""

import numpy as np
import pytest

from gaian_hpc.distributed.buffers import Buffers
from gaian_hpc.distributed.world import LINE


class Device:
    """Stands for an array module with memory of its own: its arrays cannot be mixed with numpy's unasked."""

    class Array:
        def __init__(self, data):
            self.data = data

        def __len__(self):
            return len(self.data)

        def __getitem__(self, key):
            return Device.Array(self.data[key])

        def __setitem__(self, key, value):
            if not isinstance(value, Device.Array):
                raise TypeError("host memory written to a device array")
            self.data[key] = value.data

        def get(self):
            return self.data.copy()

        @property
        def __cuda_array_interface__(self):
            return {**self.data.__array_interface__, "version": 3}

    class xp:
        @staticmethod
        def empty(n, dtype):
            return Device.Array(np.zeros(n, dtype))

    def __init__(self):
        self.waited = 0

    @staticmethod
    def array(data):
        return Device.Array(np.array(data))

    @staticmethod
    def staging(n):
        return np.zeros(n, np.uint8)

    @staticmethod
    def fetch(x, out):
        out[:] = x.data

    def upload(self, data):
        return self.array(data)

    def synchronize(self):
        self.waited += 1


PIECES = [[np.arange(5, dtype=np.uint8), np.arange(70, dtype=np.uint8)], [], [np.full(3, 9, np.uint8)]]
STARTS = np.array([0, 2, 2])


def expected():
    out = np.zeros(3 * LINE, np.uint8)
    out[:5], out[16:86], out[2 * LINE:2 * LINE + 3] = PIECES[0][0], PIECES[0][1], 9
    return out


def written(memory):
    """Bytes that were written: those between pieces are whatever they were."""
    mask = expected() > 0
    return np.where(mask, memory, 0)


def test_host_messages_lie_on_lines_with_aligned_pieces():
    joined = Buffers().joined(PIECES, STARTS, 3)
    assert (written(joined) == expected()).all()
    assert Buffers().part(joined, 2, 3).tolist() == [9, 9, 9]


@pytest.mark.parametrize("direct", [True, False])
def test_device_messages_go_direct_or_through_the_host(direct):
    device = Device()
    buffers = Buffers(device, direct)
    pieces = [[device.array(p) for p in message] for message in PIECES]
    joined = buffers.joined(pieces, STARTS, 3)
    assert hasattr(joined, "__cuda_array_interface__") == direct  # what MPI is given
    assert isinstance(joined, np.ndarray) != direct
    assert device.waited == 1
    assert (written(joined.data if direct else joined) == expected()).all()
    part = buffers.part(joined, 2, 3)
    assert isinstance(part, Device.Array) and part.get().tolist() == [9, 9, 9]
