"""How many ranks a launcher started, and how long messages may be."""

import numpy as np
import pytest

from gaian_hpc.distributed.world import LINE, World, aligned, expected_ranks, open_world

LAUNCHED = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")


@pytest.mark.parametrize("variables, n", [
    ({}, 1), ({"PMI_SIZE": "3"}, 3), ({"OMPI_COMM_WORLD_SIZE": "5"}, 5),
    ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}, 4),
    ({"PMI_SIZE": "8", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}, 8),  # mpirun in a job
    ({"SLURM_STEP_NUM_TASKS": "4"}, 1),
])
def test_ranks_are_counted_by_what_launchers_say(monkeypatch, variables, n):
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert expected_ranks() == n


def test_one_rank_needs_no_mpi(monkeypatch):
    import sys

    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "mpi4py", None)  # an import would fail
    with open_world() as world:
        assert (world.rank, world.size, world.is_root, world.local_size) == (0, 1, True, 1)
        rows = np.arange(6).reshape(2, 3)
        assert (world.gather(rows) == rows).all() and world.stack(rows).shape == (1, 2, 3)


def test_one_rank_agrees_with_itself():
    World().require_same(version="1")
    with pytest.raises(OSError), World().agreed():
        raise OSError("not made a rank's fault where there is one rank")


def test_counts_of_lines_reach_far_beyond_two_to_the_31_bytes():
    from gaian_hpc.distributed.mpi import _lines

    sizes = np.array([3 << 31, 0, 5, 1 << 36])
    lines, starts = _lines(sizes)
    assert lines.max() < 2**31 and (lines * LINE >= sizes).all() and (lines * LINE - sizes < LINE).all()
    assert starts.tolist() == [0, lines[0], lines[0], lines[0] + 1]
    assert (starts * LINE).tolist()[3] > 2**32


def test_pieces_begin_at_multiples_of_the_alignment():
    assert [aligned(n) for n in (0, 1, 16, 17)] == [0, 16, 16, 32]
