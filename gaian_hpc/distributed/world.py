"""The ranks of a run: who they are, where they sit, and what they do together.

One rank needs no MPI: :class:`World` itself stands for it. :func:`open_world` starts MPI only where a launcher
started several ranks.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ExchangeError, GaianError, SettingsError

if TYPE_CHECKING:
    from .buffers import Buffers

LINE = 64
"""Bytes of the unit that messages are counted in: 2³¹ − 1 of them, the most that a C int counts, are 137 GB."""

ALIGNMENT = 16
"""Bytes at whose multiples the pieces of a message begin, so that they can be read in place."""


def aligned(n_bytes: int) -> int:
    """Return ``n_bytes`` rounded up to :data:`ALIGNMENT`."""
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT


class PendingSum:
    """A sum over ranks that is under way; this one, of a single rank, is done at once.

    Attributes
    ----------
    value : array
        The sum, once :meth:`is_done`.
    """

    def __init__(self, value: np.ndarray):
        self.value = value

    def is_done(self) -> bool:
        """Tell, without waiting, whether the sum is there."""
        return True


class World:
    """All ranks of a run; this class is a world of one.

    Attributes
    ----------
    rank, size : int
    hosts : (size,) int64
        Host of each rank, numbered in the order of their first rank.
    """

    rank = 0
    size = 1

    def __init__(self) -> None:
        self.hosts = np.zeros(1, np.int64)

    @property
    def is_root(self) -> bool:
        """Whether this is rank 0, which writes what there is one of."""
        return self.rank == 0

    @property
    def local_size(self) -> int:
        """Ranks on this host."""
        return int(np.count_nonzero(self.hosts == self.hosts[self.rank]))

    def threads(self) -> int:
        """Collective. Return the threads this rank should use where none are asked for: its cores, shared fairly.

        A launcher that binds gives each rank cores of its own; one that does not shows all ranks of a host the same.
        """
        cores = tuple(sorted(os.sched_getaffinity(0)))
        theirs = self.collect(cores)
        alike = sum(c == cores and host == self.hosts[self.rank] for c, host in zip(theirs, self.hosts, strict=True))
        return max(1, len(cores) // alike)

    def links(self) -> np.ndarray:
        """Return the class of the link to each rank, (size,) int64: an index of :data:`ledger.LINKS`."""
        far = self.hosts != self.hosts[self.rank]
        links = np.where(far, 2, 1)
        links[self.rank] = 0
        return links

    def broadcast(self, value: Any) -> Any:
        """Collective. Return the root's ``value`` on every rank (any object; for set-up)."""
        return value

    def collect(self, value: Any) -> list[Any]:
        """Collective. Return the values of all ranks in rank order (any object; for set-up)."""
        return [value]

    def barrier(self) -> None:
        """Collective. Wait for all ranks."""

    def stack(self, row: np.ndarray) -> np.ndarray:
        """Collective. Return the equally shaped arrays of all ranks, (size, *row.shape), in rank order."""
        return row[None]

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Collective. Return the sum over ranks, for integers, or floats of which one rank only is not zero."""
        return values

    def begin_sum(self, values: np.ndarray) -> PendingSum:
        """Collective, in the same order on all ranks. Begin a :meth:`sum` without waiting for it."""
        return PendingSum(values)

    def gather(self, rows: np.ndarray) -> np.ndarray:
        """Collective. Return the rows of all ranks in rank order, on every rank."""
        return rows

    def alltoall(self, messages: Sequence[Sequence[np.ndarray]], sizes: np.ndarray,
                 buffers: Buffers | None = None) -> list[np.ndarray]:
        """Collective. Send each rank its message and return those from all ranks; the one to oneself is left out.

        Parameters
        ----------
        messages : sequence of sequence of (n,) uint8
            The pieces of each message, by destination; every piece begins at a multiple of :data:`ALIGNMENT`.
        sizes : (size,) int64
            Bytes that come from each rank, all pieces rounded up.
        buffers : Buffers, optional
            How they are laid out; in host memory where none are given.

        Returns
        -------
        list of (sizes[src],) uint8
            By source; empty for this rank.
        """
        return [np.empty(0, np.uint8)]

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Collective. Let all ranks raise together what one of them raises in the block.

        Raises
        ------
        GaianError
            On every rank, naming the first rank at fault and its cause.
        """
        yield

    def require_same(self, **values: Any) -> None:
        """Collective. Refuse if a named value differs between ranks.

        Raises
        ------
        ExchangeError
            On every rank, naming the value, the first rank at odds with rank 0, and both values.
        """
        theirs = self.collect(values)
        for name, mine in theirs[0].items():
            for rank, other in enumerate(theirs):
                if other[name] != mine:
                    raise AgreedError(f"rank {rank} of {self.size} has {name} {other[name]!r} and rank 0 has {mine!r}; "
                                      "start all ranks with the same program, settings and files", 1)


class AgreedError(ExchangeError):
    """An error that every rank raises; it carries the exit code of its cause."""

    def __init__(self, message: str, exit_code: int):
        super().__init__(message)
        self.exit_code = exit_code


def expected_ranks() -> int:
    """Return the number of ranks that a launcher says it started; 1 without a launcher.

    Hydra and Slurm's PMI-1/2 set ``PMI_SIZE``, Open MPI its own variable. A Slurm step without either (PMIx, or none)
    tells its number of tasks.
    """
    for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    in_step = "SLURM_STEP_ID" in os.environ and "SLURM_PROCID" in os.environ
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "")
    return int(tasks) if in_step and tasks.isdigit() else 1


def require_one_rank() -> None:
    """Refuse to run a program of one rank on several, which would all write the same files.

    Raises
    ------
    SettingsError
    """
    n = expected_ranks()
    if n > 1:
        raise SettingsError(f"started on {n} ranks, but only `gaian train` and `gaian bench` use more than 1; run this "
                            "verb by itself")


@contextmanager
def open_world(program: str = "gaian") -> Iterator[World]:
    """Yield the world of this process; whatever goes wrong inside ends all ranks, with one message.

    An error that all ranks raise together (see :meth:`World.agreed`) leaves through the root alone, the others end
    silently with its exit code. Any other error on one rank is printed there, and MPI ends the other ranks.

    Raises
    ------
    ExchangeError
        If MPI does not see the ranks that the launcher started, or lacks the thread level.
    """
    if expected_ranks() == 1:
        yield World()
        return
    from .mpi import MpiWorld
    from .watch import Watch

    world = MpiWorld(expected_ranks())
    watch = Watch(world, program)
    try:
        yield world
        world.barrier()  # nobody ends while another still watches
        watch.leave()
        watch.close()
    except AgreedError as error:
        world.barrier()
        watch.leave()
        watch.close()
        if not world.is_root:
            raise SystemExit(error.exit_code) from None
        raise
    except SystemExit:
        watch.leave()
        raise
    except BaseException as error:
        watch.leave()
        known = isinstance(error, GaianError)
        if not known:
            traceback.print_exc()
        cause = str(error) if known else f"{type(error).__name__}: {error}"
        print(f"{program}: error: {world.describe()}: {cause}", file=sys.stderr, flush=True)
        world.abort(error.exit_code if known else 1)


def host_name() -> str:
    """Return the name of this host."""
    return socket.gethostname()
