"""What ranks do together: every collective returns what the ranks' values say it must."""

import numpy as np
import pytest

from gaian_hpc.distributed.world import AgreedError, aligned
from gaian_hpc.errors import DataError

pytestmark = pytest.mark.mpi


def test_ranks_and_hosts_are_those_of_the_launcher(world):
    assert world.collect(world.rank) == list(range(world.size))
    assert world.hosts.tolist() == [0] * world.size  # one machine
    assert world.local_size == world.size
    assert world.links()[world.rank] == 0 and (np.delete(world.links(), world.rank) == 1).all()


def test_stack_returns_the_arrays_of_all_ranks_in_rank_order(world):
    stacked = world.stack(np.arange(6, dtype=np.float32).reshape(2, 3) + 10 * world.rank)
    assert stacked.shape == (world.size, 2, 3)
    assert stacked[:, 0, 0].tolist() == [10.0 * r for r in range(world.size)]


@pytest.mark.parametrize("dtype", [np.int64, np.float32, bool])
@pytest.mark.parametrize("shape", [(), (3,), (2, 5)])
def test_gather_concatenates_rows_of_any_kind_in_rank_order(world, dtype, shape):
    def rows(rank):  # rank 1 has none
        n = 0 if rank == 1 else 3 + rank
        return (np.arange(n * int(np.prod(shape, dtype=int))) + rank).reshape(n, *shape).astype(dtype)

    gathered = world.gather(rows(world.rank))
    expected = np.concatenate([rows(r) for r in range(world.size)])
    assert gathered.dtype == expected.dtype and (gathered == expected).all() and gathered.shape == expected.shape


def test_alltoall_delivers_every_piece_and_leaves_out_what_stays(world):
    def pieces(src, dst):
        return [np.full(1 + 3 * src + dst, 10 * src + dst, np.uint8), np.full(src, dst, np.uint8)]

    def size(src, dst):
        return sum(aligned(len(p)) for p in pieces(src, dst))

    received = world.alltoall([pieces(world.rank, dst) for dst in range(world.size)],
                              np.array([size(src, world.rank) for src in range(world.size)]))
    assert len(received[world.rank]) == 0
    for src in set(range(world.size)) - {world.rank}:
        first, second = pieces(src, world.rank)
        assert (received[src][:len(first)] == first).all()
        assert (received[src][aligned(len(first)):][:len(second)] == second).all()


def test_a_fault_of_one_rank_is_raised_on_all_with_its_name_and_cause(world):
    if world.size == 1:
        pytest.skip("one rank has no others")
    with pytest.raises(AgreedError, match=r"rank 1 of \d+ \(.*\): disc\.h5 is gone; restore it"), world.agreed():
        if world.rank == 1:
            raise DataError("disc.h5 is gone; restore it")
    assert world.collect(world.rank) == list(range(world.size))  # all are still in step


def test_the_fault_that_all_ranks_raise_is_told_once(world):
    if world.size == 1:
        pytest.skip("one rank has no others")
    with pytest.raises(AgreedError, match=r"^rank 0 of"), world.agreed():
        raise FileNotFoundError(2, "No such file or directory", "scene/images")


def test_values_that_differ_between_ranks_are_refused_by_name(world):
    world.require_same(version="1", steps=3)
    if world.size == 1:
        pytest.skip("one rank has no others")
    with pytest.raises(AgreedError, match=r"rank 1 of \d+ has steps 4 and rank 0 has 3"):
        world.require_same(version="1", steps=4 if world.rank == 1 else 3)


def test_threads_are_dealt_out_to_the_ranks_that_share_cores(world):
    import os

    cores = len(os.sched_getaffinity(0))
    assert world.threads() == max(1, cores // world.size)
