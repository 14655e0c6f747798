"""Splats go to where they are rendered and gradients come back to where they belong, whatever the plan."""

import os

import numpy as np
import pytest

from gaian_hpc.arrays import ArrayTable, Field
from gaian_hpc.distributed.buffers import Buffers
from gaian_hpc.distributed.exchange import Exchange, OwnSplats, Plan
from gaian_hpc.distributed.ledger import PHASES
from gaian_hpc.distributed.world import aligned
from tests.unit.distributed.test_buffers import Device

pytestmark = pytest.mark.mpi

SPLATS = (Field("means2d", (2,), "fp16", in_pixels=True), Field("depths", (), "fp16"), Field("colors", (3,), "int8"))
GRADIENTS = (Field("means2d", (2,), "int8"), Field("colors", (3,), "int8", additive=True))
N_PATCHES = 9


def scene(size, rng, kind):
    """Return the owner of each of 200 points, and which points each patch reads."""
    owners = rng.integers(0, size, 200)
    if kind == "an empty shard":
        owners[owners == size - 1] = 0
    reads = [np.sort(rng.permutation(200)[:rng.integers(0, 90)]) for _ in range(N_PATCHES)]
    if kind == "patches that read nothing":
        reads = [r[:0] if p % 2 else r for p, r in enumerate(reads)]
    return owners, reads


def values_of(ids, shape, scale=1.0):
    """Return values that tell the id and the column they belong to."""
    width = int(np.prod(shape, dtype=int))
    return (scale * (ids[:, None] + np.arange(width) / 10)).reshape(len(ids), *shape).astype(np.float32)


@pytest.mark.parametrize("kind", ["all mixed", "an empty shard", "patches that read nothing", "one rank renders all"])
@pytest.mark.parametrize("next_id", [1 << 20, 1 << 40])
def test_every_pair_crosses_once_each_way(world, kind, next_id):
    rng = np.random.default_rng(world.size)
    owners, reads = scene(world.size, rng, kind)
    offset = next_id - 200
    renders = rng.integers(0, world.size, N_PATCHES) * (kind != "one rank renders all")
    mine = np.flatnonzero(owners == world.rank)
    ids = mine + offset
    table = ArrayTable({f.name: values_of(mine, f.shape) for f in SPLATS}, len(mine))
    rows = [np.flatnonzero(np.isin(mine, r)) for r in reads]
    counts = np.array([[np.isin(r, np.flatnonzero(owners == rank)).sum() for r in reads] for rank in range(world.size)])
    exchange, plan = Exchange(world, SPLATS, GRADIENTS), Plan(counts, renders)
    patches = exchange.forward(plan, OwnSplats(ids, table, rows, np.zeros((N_PATCHES, 2), np.float32)), next_id)
    assert [p.index for p in patches] == np.flatnonzero(renders == world.rank).tolist()
    for p in patches:
        assert (p.ids == reads[p.index] + offset).all()
        for f in SPLATS:
            assert (p.table[f.name] == values_of(reads[p.index], f.shape)).all()
    v = [ArrayTable({f.name: values_of(p.ids - offset, f.shape, 1 + p.index) for f in GRADIENTS}, len(p.ids))
         for p in patches]
    returned = exchange.reverse(plan, patches, v)
    for p, part in enumerate(returned):
        for f in GRADIENTS:
            assert (part[f.name] == values_of(mine[rows[p]], f.shape, 1 + p)).all()
    id_bytes = 4 if next_id <= 1 << 32 else 8

    def sizes(n, *widths):
        return sum(aligned(width * n) for width in widths)

    for phase, bytes_of in (("splats", lambda n: sizes(n, 8, 4, 12, id_bytes)),
                            ("gradients", lambda n: sizes(n, 8, 12))):
        sent = exchange.ledger.sent[PHASES.index(phase)]
        pairs = plan.pairs() if phase == "splats" else plan.pairs().T
        assert sent[0] == bytes_of(pairs[world.rank, world.rank])
        assert sent[1] == sum(bytes_of(n) for r, n in enumerate(pairs[world.rank].tolist()) if r != world.rank)


@pytest.mark.parametrize("codec", ["fp16", "int8"])
def test_lossy_positions_keep_a_fraction_of_a_pixel_far_from_the_origin(world, codec):
    if world.size == 1:
        pytest.skip("one rank sends nothing")
    n = 50
    where = np.float32([4000, 2000]) + np.random.default_rng(0).uniform(-100, 100, (n, 2)).astype(np.float32)
    table = ArrayTable({"means2d": where, "depths": np.ones(n, np.float32), "colors": np.ones((n, 3), np.float32)}, n)
    counts = np.zeros((world.size, 1), np.int64)
    counts[0] = n
    mine = n if world.rank == 0 else 0
    own = OwnSplats(np.arange(mine), ArrayTable({k: x[:mine] for k, x in table.items()}, mine), [np.arange(mine)],
                    np.float32([[4000, 2000]]))
    plan = Plan(counts, np.array([1]))
    patches = Exchange(world, SPLATS, GRADIENTS, codec).forward(plan, own, n)
    if world.rank == 1:
        assert 0 < np.abs(patches[0].table["means2d"] - where).max() < 0.04


def test_memory_of_a_device_is_handed_to_mpi_as_it_is(world):
    pieces = [[Device.array(np.full(5 + dst, 16 * world.rank + dst, np.uint8))] for dst in range(world.size)]
    sizes = np.full(world.size, aligned(5 + world.rank))
    received = world.alltoall(pieces, sizes, Buffers(Device(), True))
    for src, data in enumerate(received):
        if src != world.rank:
            assert isinstance(data, Device.Array)
            assert (data.get()[:5 + world.rank] == 16 * src + world.rank).all()


@pytest.mark.skipif("GAIAN_LARGE_TESTS" not in os.environ, reason="needs 10 GB of memory; set GAIAN_LARGE_TESTS")
def test_a_message_of_more_than_two_gigabytes_arrives(world):
    if world.size == 1:
        pytest.skip("one rank sends nothing")
    n = (1 << 31) + (1 << 20)
    piece = np.zeros(n if world.rank == 0 else 0, np.uint8)
    piece[-1:] = 7
    messages = [[piece] if dst == 1 else [] for dst in range(world.size)]
    sizes = np.zeros(world.size, np.int64)
    sizes[0] = aligned(n) if world.rank == 1 else 0
    received = world.alltoall(messages if world.rank == 0 else [[]] * world.size, sizes)
    if world.rank == 1:
        assert received[0][n - 1] == 7 and len(received[0]) == aligned(n)
