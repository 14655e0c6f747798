"""The process beside the ranks tells who was killed, with or without the kernel's help, and ends the others."""

import errno
import mmap
import os
import subprocess
import sys
import time

import pytest

from gaian_hpc.distributed import watcher


@pytest.fixture
def ranks():
    """Return three processes that sleep."""
    processes = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) for _ in range(3)]
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def refuse(pid):
    raise OSError(errno.ENOSYS, "Function not implemented")


@pytest.mark.parametrize("has_pidfd", [True, False])
def test_a_rank_that_is_killed_is_named_and_the_others_are_ended(ranks, monkeypatch, capsys, has_pidfd):
    if not has_pidfd:
        monkeypatch.setattr(os, "pidfd_open", refuse)
    read, write = os.pipe()
    monkeypatch.setattr(sys, "stdin", os.fdopen(read))
    ranks[1].kill()
    ranks[1].wait()
    pids = {4 + i: process.pid for i, process in enumerate(ranks)}
    assert watcher.watch("gaian train", 9, mmap.mmap(-1, 9), pids) == 1
    assert "gaian train: error: rank 5 of 9 (" in (said := capsys.readouterr().err) and str(ranks[1].pid) in said
    deadline = time.monotonic() + 5
    while any(process.poll() is None for process in ranks):
        assert time.monotonic() < deadline
    os.close(write)


@pytest.mark.parametrize("has_pidfd", [True, False])
def test_nothing_is_said_of_ranks_that_have_left_or_when_all_is_done(ranks, monkeypatch, capsys, has_pidfd):
    if not has_pidfd:
        monkeypatch.setattr(os, "pidfd_open", refuse)
    read, write = os.pipe()
    monkeypatch.setattr(sys, "stdin", os.fdopen(read))
    pids = {i: process.pid for i, process in enumerate(ranks)}
    marks = mmap.mmap(-1, 3)
    marks[2] = 1
    ranks[2].kill()
    ranks[2].wait()
    assert watcher.watch("gaian train", 3, marks, pids) == 0
    del pids[2]
    os.close(write)
    assert watcher.watch("gaian train", 3, marks, pids) == 0
    assert capsys.readouterr().err == "" and ranks[0].poll() is None
