"""Runs of several ranks with the cuda backend, its kernels on the CPU, each rank with a device of its own."""

import pytest

from gaian_hpc.backends import cuda
from tests.cuda.emulation.device import emulated_device
from tests.cuda.emulation.module import COMPILER, has_compiler
from tests.mpi.test_training import result_of, train

pytestmark = [pytest.mark.mpi, pytest.mark.skipif(not has_compiler(), reason=f"no C++ compiler {COMPILER!r}")]


def test_ranks_do_not_change_the_bits_of_deterministic_sums(world, city, shared_tmp, tmp_path_factory, monkeypatch):
    monkeypatch.setattr(cuda, "open_device", lambda: emulated_device(deterministic=True))
    changes, alone = {"backend": "cuda"}, None
    train(city, shared_tmp, world, changes)
    world.barrier()
    if world.is_root:
        from gaian_hpc.distributed.world import World

        run = tmp_path_factory.mktemp("alone")
        train(city, run, World(), changes)
        alone = result_of(run)
    assert result_of(shared_tmp) == world.broadcast(alone)
