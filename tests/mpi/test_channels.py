"""Messages over one-sided MPI arrive whole, once and in order, through rings that are far too small for them."""

import time

import numpy as np
import pytest

from gaian_hpc.distributed.channels import Channels
from gaian_hpc.distributed.ledger import PHASES, Ledger
from gaian_hpc.distributed.world import AgreedError, aligned

pytestmark = pytest.mark.mpi


def pieces_of(src, dst, number):
    """Return the pieces of a message that tell where it belongs; lengths from none to several rings."""
    rng = np.random.default_rng([src, dst, number])
    return [rng.integers(0, 256, n).astype(np.uint8) for n in rng.integers(0, 2000, rng.integers(0, 4))]


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("progress", [False, True])
@pytest.mark.parametrize("ring", [256, 1000, 1 << 16])
def test_messages_between_all_ranks_arrive_whole_once_and_in_order(world, ring, progress, separate):
    n = 300 if ring > 256 else 20  # more than the engine has places for
    seen = {src: [] for src in range(world.size)}
    with Channels(world, ring, progress=progress, separate=separate) as channels:
        for number in range(n):
            for dst in range(world.size):
                channels.post(dst, 3, number, 7 * number, pieces_of(world.rank, dst, number))
        deadline = time.monotonic() + 60
        while any(len(s) < n for s in seen.values()) or not channels.idle:
            assert time.monotonic() < deadline, {src: len(s) for src, s in seen.items()}
            for m in channels.pump():
                assert (m.kind, m.part) == (3, 7 * m.unit)
                seen[m.src].append(m.unit)
                at = 0
                for piece in pieces_of(m.src, world.rank, m.unit):
                    assert (m.data[at:at + len(piece)] == piece).all()
                    at += aligned(len(piece))
                assert at == len(m.data)
        assert all(s == list(range(n)) for s in seen.values())
        world.barrier()


def test_a_receiver_that_computes_meanwhile_does_not_hold_up_the_sender_for_good(world):
    if world.size == 1:
        pytest.skip("one rank has no others")
    with Channels(world, 1 << 16) as channels:
        if world.rank == 0:
            channels.post(1, 1, 0, 0, [np.arange(208, dtype=np.uint8)])
            while not channels.idle:
                channels.pump()
        elif world.rank == 1:
            time.sleep(0.3)
            messages = []
            while not messages:
                messages = channels.pump()
            assert (messages[0].data == np.arange(208)).all()
        world.barrier()


def test_bytes_are_counted_by_phase_and_link(world):
    ledger = Ledger()
    with Channels(world, 4096, ledger) as channels:
        for dst in range(world.size):
            channels.post(dst, 0, 0, 0, [np.zeros(10, np.uint8), np.zeros(8, np.uint8)], "splats")
        while not channels.idle:
            channels.pump()
        world.barrier()
        channels.pump()
        world.barrier()
    assert ledger.sent[PHASES.index("splats")].tolist() == [32, 32 * (world.size - 1), 0]


def test_a_window_that_does_not_fit_is_refused_on_all_ranks_with_what_was_asked_for(world):
    if world.size == 1:
        pytest.skip("one rank needs no window")
    complaint = r"rank 0 of \d+: MPI cannot allocate a window of .* lower --pipeline.window_mb"
    with pytest.raises(AgreedError, match=complaint):
        Channels(world, 1 << 46)
    world.barrier()


def test_windows_are_as_large_as_they_say(world):
    with Channels(world, 1 << 20) as channels:
        expected = world.size * (1 << 20) + -(-24 * world.size // 32) * 32
        assert channels.window_bytes == (expected if world.size > 1 else 0)
