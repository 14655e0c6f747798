"""A thread that keeps MPI moving while this rank computes, without ever holding Python's interpreter lock.

Over TCP nothing that others put into a rank's window arrives until that rank enters MPI. The thread enters it every
half millisecond, by probing for messages that nobody sends, from compiled code: Python code, and kernels that hold
the lock, do not stop it. It needs an MPI that allows calls from several threads at once.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numba
import numpy as np
from mpi4py import MPI

from ..errors import ExchangeError
from .mpi import MpiWorld

PAUSE_US = 500
_TAG = 9
_STATUS_BYTES = 64  # more than any MPI's status


@contextmanager
def mpi_progress(world: MpiWorld) -> Iterator[None]:
    """Keep MPI moving in the block.

    Raises
    ------
    ExchangeError
        If MPI does not allow calls from several threads at once.
    """
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise ExchangeError("setting pipeline.progress needs an MPI with thread level MPI_THREAD_MULTIPLE; leave it "
                            "off, or unset MPI4PY_RC_THREAD_LEVEL")
    comm = world.comm.Dup()
    loop, handle, any_source = _compiled_loop(comm)
    stop = np.ones(1, np.int32)
    flag, status = np.zeros(4, np.int32), np.zeros(_STATUS_BYTES, np.uint8)
    loop(stop, handle, any_source, flag, status)  # compile before anything waits for it
    stop[0] = 0
    thread = threading.Thread(target=loop, args=(stop, handle, any_source, flag, status), name="mpi", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop[0] = 1
        thread.join()
        comm.Free()


def _compiled_loop(comm: MPI.Intracomm):
    """Return the loop, and communicator and source as its C arguments."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        library = next(line.split()[-1] for line in maps if "libmpi.so" in line)
    is_int = MPI._sizeof(MPI.Comm) == ctypes.sizeof(ctypes.c_int)  # MPICH's handles; Open MPI's are pointers
    probe = ctypes.CDLL(library).MPI_Iprobe
    probe.restype = ctypes.c_int
    probe.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int if is_int else ctypes.c_ssize_t, ctypes.c_void_p,
                      ctypes.c_void_p]
    sleep = ctypes.CDLL(None).usleep
    sleep.argtypes, sleep.restype = [ctypes.c_uint], ctypes.c_int
    kind = ctypes.c_int if is_int else ctypes.c_int64
    handle = kind.from_address(MPI._addressof(comm)).value

    @numba.njit(nogil=True)
    def loop(stop, handle, source, flag, status):
        while stop[0] == 0:
            probe(source, _TAG, handle, flag.ctypes, status.ctypes)
            sleep(PAUSE_US)

    return loop, handle, int(MPI.ANY_SOURCE)
