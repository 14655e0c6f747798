"""The world of several ranks over mpi4py. Only the main thread of a rank calls MPI."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from mpi4py import MPI

from ..errors import ExchangeError, GaianError
from .buffers import Buffers
from .world import LINE, AgreedError, PendingSum, World, aligned, host_name


class MpiWorld(World):
    """All ranks of a communicator, on a copy of their own.

    Parameters
    ----------
    expected : int
        Ranks that there must be: as many as the launcher says it started.
    comm : MPI.Intracomm

    Raises
    ------
    ExchangeError
        If MPI sees another number of ranks (a launcher of another MPI starts single processes), or does not allow
        threads beside the one that calls it.
    """

    def __init__(self, expected: int, comm: MPI.Intracomm = MPI.COMM_WORLD):
        if comm.Get_size() != expected:
            raise ExchangeError(f"the launcher started {expected} ranks, but MPI ({_library()}) sees "
                                f"{comm.Get_size()}; use the mpirun or srun --mpi=… that belongs to this MPI")
        if MPI.Query_thread() < MPI.THREAD_FUNNELED:
            raise ExchangeError(f"rank {comm.Get_rank()} of {expected}: MPI ({_library()}) gives no thread level of at "
                                "least MPI_THREAD_FUNNELED; unset MPI4PY_RC_THREAD_LEVEL, or use an MPI built with "
                                "threads")
        self.comm = comm.Dup()
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
        node = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        first = np.empty(self.size, np.int64)
        self.comm.Allgather(np.array([node.bcast(self.rank)], np.int64), first)
        node.Free()
        self.hosts = np.unique(first, return_inverse=True)[1].astype(np.int64)
        self.buffers = Buffers()
        self._line = MPI.BYTE.Create_contiguous(LINE).Commit()

    def describe(self) -> str:
        """Return ``rank 1 of 4 (host)``."""
        return f"rank {self.rank} of {self.size} ({host_name()})"

    def abort(self, code: int) -> None:
        """End all ranks at once."""
        self.comm.Abort(code)

    def broadcast(self, value: Any) -> Any:
        return self.comm.bcast(value)

    def collect(self, value: Any) -> list[Any]:
        return self.comm.allgather(value)

    def barrier(self) -> None:
        self.comm.Barrier()

    def stack(self, row: np.ndarray) -> np.ndarray:
        row = np.ascontiguousarray(row)
        out = np.empty((self.size, *row.shape), row.dtype)
        self.comm.Allgather(_bytes(row), _bytes(out))
        return out

    def sum(self, values: np.ndarray) -> np.ndarray:
        out = np.empty_like(values)
        self.comm.Allreduce(values, out)
        return out

    def begin_sum(self, values: np.ndarray) -> PendingSum:
        return _Sum(self.comm, np.ascontiguousarray(values))

    def gather(self, rows: np.ndarray) -> np.ndarray:
        rows = np.ascontiguousarray(rows)
        sizes = self.stack(np.array([len(rows)], np.int64))[:, 0]
        width = rows.dtype.itemsize * int(np.prod(rows.shape[1:], dtype=np.int64))
        lines, starts = _lines(sizes * width)
        out = np.empty(int(lines.sum()) * LINE, np.uint8)
        mine = np.empty(int(lines[self.rank]) * LINE, np.uint8)
        mine[:rows.nbytes] = _bytes(rows)
        self.comm.Allgatherv([mine, int(lines[self.rank]), self._line], [out, lines, starts, self._line])
        parts = [out[s * LINE:s * LINE + n * width] for s, n in zip(starts.tolist(), sizes.tolist(), strict=True)]
        return np.concatenate(parts).view(rows.dtype).reshape(-1, *rows.shape[1:])

    def alltoall(self, messages: Sequence[Sequence[np.ndarray]], sizes: np.ndarray,
                 buffers: Buffers | None = None) -> list[np.ndarray]:
        buffers = buffers or self.buffers
        outgoing = np.array([0 if dst == self.rank else sum(aligned(len(piece)) for piece in pieces)
                             for dst, pieces in enumerate(messages)], np.int64)
        incoming = np.array(sizes, np.int64)
        incoming[self.rank] = 0
        send_lines, send_starts = _lines(outgoing)
        receive_lines, receive_starts = _lines(incoming)
        pieces = [() if dst == self.rank else message for dst, message in enumerate(messages)]
        send = buffers.joined(pieces, send_starts, int(send_lines.sum()))
        receive = buffers.empty(int(receive_lines.sum()))  # after joined: nothing runs on the device any more
        self.comm.Alltoallv([send, send_lines, send_starts, self._line],
                            [receive, receive_lines, receive_starts, self._line])
        return [buffers.part(receive, start, n)
                for start, n in zip(receive_starts.tolist(), incoming.tolist(), strict=True)]

    @contextmanager
    def agreed(self) -> Iterator[None]:
        fault = None
        try:
            yield
        except AgreedError:
            raise
        except GaianError as error:
            fault = (f"{self.describe()}: {error}", error.exit_code)
        except OSError as error:
            if error.filename is None:
                raise
            fault = (f"{self.describe()}: {error.filename}: {error.strerror}", 1)
        faults = [f for f in self.collect(fault) if f is not None]
        if faults:
            raise AgreedError(*faults[0])


class _Sum(PendingSum):
    """A nonblocking all-reduce."""

    def __init__(self, comm: MPI.Intracomm, values: np.ndarray):
        super().__init__(np.empty_like(values))
        self._sent = values  # MPI reads it until the sum is done
        self._request = comm.Iallreduce(values, self.value)

    def is_done(self) -> bool:
        return self._request.Test()


def _library() -> str:
    return " ".join(MPI.Get_library_version().split()[:3]).rstrip(",")


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)


def _lines(sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers of lines and their starts, int64, for messages of ``sizes`` bytes."""
    lines = -(-np.asarray(sizes, np.int64) // LINE)
    return lines, np.cumsum(lines) - lines
