"""What the rings of :mod:`.channels` ask of MPI, compiled: between Python's statements, or in a thread beside them.

Over TCP nothing that others put into a rank's window arrives, and nothing that it put leaves, unless it enters MPI.
One pass of :meth:`Engine.drive` takes every ring one step on and lets MPI work for others. As a thread of its own it
never holds Python's interpreter lock: neither Python code nor kernels stop it. That needs an MPI that allows calls
from several threads at once.

Bytes pass in frames: number, length and checksum, checksum of these three, then up to ``CHUNK`` bytes, rounded up to
the length of such a header.
"""

from __future__ import annotations

import ctypes
import threading
from typing import NamedTuple

import llvmlite.binding as llvm
import numba
import numpy as np
from mpi4py import MPI
from numba import types

from ..errors import ExchangeError

PAUSE_US = 300
"""Between two passes of the thread."""
CHUNK = 1 << 16
"""Bytes of a frame at most."""
SLOTS = 4
"""Frames on their way to a rank at once."""
CREDIT = 4  # a reader tells its head when a ring is this fraction consumed
JOBS = 256
HEADER = 32  # bytes before the bytes of a frame
_HEADER_WORDS = HEADER // 8
_TAG = 9
_STATUS_WORDS = 16  # more than any MPI's status


class Rings(NamedTuple):
    """What the rings of one rank share with its Python code; R ranks, int64 unless said otherwise.

    Attributes
    ----------
    jobs : (R, J, 2)
        Address and bytes of messages to send, a ring of J for each target.
    posted : (R,)
        Messages queued; written by Python only.
    taken, placed : (R,)
        Messages framed as a whole, and bytes framed of the next.
    written, told : (R,)
        Bytes of frames put so far, and those that the tail at the target tells of (separate memory model only).
    frames, seen : (R,)
        Frames put for each target, and frames of each source found whole.
    heads : (R,)
        Bytes that each target is known to have taken out.
    whole, consumed, credited : (R,)
        Bytes in the ring of each source that are found whole; taken out, by Python only; told to be taken out.
    busy : (R,)
        Whether MPI still needs what was begun.
    fault : (1,)
        Code of an MPI error.
    """

    jobs: np.ndarray
    posted: np.ndarray
    taken: np.ndarray
    placed: np.ndarray
    written: np.ndarray
    told: np.ndarray
    frames: np.ndarray
    seen: np.ndarray
    heads: np.ndarray
    whole: np.ndarray
    consumed: np.ndarray
    credited: np.ndarray
    busy: np.ndarray
    fault: np.ndarray

    @classmethod
    def of(cls, n: int) -> Rings:
        """Return empty rings between ``n`` ranks."""
        zeros = [np.zeros(n, np.int64) for _ in range(12)]
        return cls(np.zeros((n, JOBS, 2), np.int64), *zeros, np.zeros(1, np.int64))


class Scratch(NamedTuple):
    """What MPI reads and writes on behalf of an engine."""

    tails: np.ndarray
    words: np.ndarray
    requests: np.ndarray
    head_request: np.ndarray
    status: np.ndarray
    flag: np.ndarray
    stage: np.ndarray


class Place(NamedTuple):
    """Where an engine works: ranks, its own, bytes of a ring, where rings begin, memory model, and MPI's handles."""

    size: int
    rank: int
    ring: int
    rings_at: int
    unified: bool
    any_source: int
    comm: int
    win: int
    byte: int
    int64: int
    replace: int
    no_op: int


class Engine:
    """Drives the rings of a window.

    Parameters
    ----------
    comm : MPI.Intracomm
        Its own, for the thread to probe.
    win : MPI.Win
        Bytes; in one epoch with all ranks. Layout as :class:`.window.RingWindow` says.
    memory : (n,) uint8
        The window's.
    ring : int
        Bytes of a ring.
    rings : Rings
    unified : bool
        Whether this rank may look at its window while others put into it.
    """

    def __init__(self, comm: MPI.Intracomm, win: MPI.Win, memory: np.ndarray, ring: int, rings: Rings, unified: bool):
        self._rings, self._stop = rings, np.ones(1, np.int64)
        self._thread: threading.Thread | None = None
        _bind_symbols()
        n, null = comm.Get_size(), _handle(MPI.REQUEST_NULL)
        chunk = min(CHUNK, ring - HEADER)
        place = Place(n, comm.Get_rank(), ring, framed(24 * n), unified, int(MPI.ANY_SOURCE), _handle(comm),
                      _handle(win), _handle(MPI.BYTE), _handle(MPI.INT64_T), _handle(MPI.REPLACE), _handle(MPI.NO_OP))
        scratch = Scratch(np.zeros(n, np.int64), np.zeros((n, 3), np.int64), np.full((n, SLOTS, 2), null, np.int64),
                          np.full(n, null, np.int64), np.zeros(_STATUS_WORDS, np.int64), np.zeros(2, np.int32),
                          np.zeros((n, SLOTS, (HEADER + chunk) // 8), np.uint64))
        self._parts = (place, rings, scratch, memory.view(np.uint64))
        _loop(self._stop, *self._parts)  # compile before anything waits for it
        _drive(*self._parts)

    def drive(self) -> None:
        """Take every ring one step on, unless a thread does."""
        if self._thread is None:
            _drive(*self._parts)
        if self._rings.fault[0]:
            raise ExchangeError(f"MPI: {MPI.Get_error_string(int(self._rings.fault[0]))}")

    def start(self) -> None:
        """Drive in a thread from now on.

        Raises
        ------
        ExchangeError
            If MPI does not allow calls from several threads at once.
        """
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise ExchangeError("setting pipeline.progress needs an MPI with thread level MPI_THREAD_MULTIPLE; set it "
                                "to false, or unset MPI4PY_RC_THREAD_LEVEL")
        self._stop[0] = 0
        self._thread = threading.Thread(target=_loop, args=(self._stop, *self._parts), name="mpi", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, if there is one, and wait until MPI needs nothing of what was begun."""
        if self._thread is not None:
            self._stop[0] = 1
            self._thread.join()
            self._thread = None
        while self._rings.busy.any():
            self.drive()


SEED = np.uint64(0x9E3779B97F4A7C15)
_FACTOR = np.uint64(0xD6E8FEB86659FD93)
_SHIFT = np.uint64(29)


@numba.njit(nogil=True, cache=True)
def mix(h, word):
    """Return checksum ``h`` continued by a word."""
    h = (h ^ word) * _FACTOR
    return h ^ (h >> _SHIFT)


@numba.njit(nogil=True, cache=True)
def framed(n):
    """Return ``n`` bytes rounded up to whole headers: no header passes over the end of a ring."""
    return -(-n // HEADER) * HEADER


_N, _I = types.int64, types.int32


def _external(name: str, n_arguments: int):
    """Return a C function of addresses, handles and ints: all fit a register, MPICH's handles as the lower half."""
    return types.ExternalFunction(name, _I(*(_N,) * n_arguments))


_iprobe = _external("MPI_Iprobe", 5)
_rput = _external("MPI_Rput", 9)
_test = _external("MPI_Test", 3)
_win_sync = _external("MPI_Win_sync", 1)
_win_flush = _external("MPI_Win_flush", 2)
_accumulate = _external("MPI_Accumulate", 9)
_get_accumulate = _external("MPI_Get_accumulate", 12)
_usleep = _external("usleep", 1)
_memcpy = types.ExternalFunction("memcpy", _N(_N, _N, _N))
_MPI_FUNCTIONS = ("MPI_Iprobe", "MPI_Rput", "MPI_Test", "MPI_Win_sync", "MPI_Win_flush", "MPI_Accumulate",
                  "MPI_Get_accumulate")


@numba.njit(nogil=True, cache=True)
def _done(requests, scratch):
    """Tell whether MPI is done with all of some requests."""
    rc, all_done = 0, True
    for i in range(len(requests)):
        rc |= _test(requests[i:].ctypes.data, scratch.flag.ctypes.data, scratch.status.ctypes.data)
        all_done &= scratch.flag[0] != 0
    return all_done, rc


@numba.njit(nogil=True, cache=True)
def _receive(place, rings, src, words, bound):
    """Move on over frames of ``src`` that are whole, up to ``bound`` bytes of its stream."""
    base, n = (place.rings_at + src * place.ring) // 8, place.ring // 8
    while rings.whole[src] < bound:
        at = (rings.whole[src] // 8) % n
        number, length = np.int64(words[base + at]), np.int64(words[base + at + 1])
        if number != rings.seen[src] + 1 or length < 0 or length > place.ring - HEADER:
            return
        if words[base + at + 3] != mix(mix(mix(SEED, words[base + at]), words[base + at + 1]), words[base + at + 2]):
            return
        h = mix(SEED, np.uint64(number))
        m = length // 8
        first = min(m, n - at - _HEADER_WORDS)
        for i in range(first):
            h = mix(h, words[base + at + _HEADER_WORDS + i])
        for i in range(m - first):
            h = mix(h, words[base + i])
        if h != words[base + at + 2]:
            return
        rings.seen[src] = number
        rings.whole[src] += framed(HEADER + length)


@numba.njit(nogil=True, cache=True)
def _frame(rings, scratch, d, room):
    """Make the next frame for ``d``, of at most ``room`` bytes; return its slot and bytes, 0 if there is none."""
    slot = rings.frames[d] % SLOTS
    stage = scratch.stage[d, slot]
    stage_at = stage.ctypes.data
    n, most = 0, min(room, 8 * len(stage)) - HEADER
    while n < most and rings.taken[d] < rings.posted[d]:
        job = rings.taken[d] % JOBS
        m = min(most - n, rings.jobs[d, job, 1] - rings.placed[d])
        _memcpy(stage_at + HEADER + n, rings.jobs[d, job, 0] + rings.placed[d], m)
        n += m
        rings.busy[d] = 1
        rings.placed[d] += m
        if rings.placed[d] == rings.jobs[d, job, 1]:
            rings.placed[d] = 0
            rings.taken[d] += 1
    if n <= 0:
        return slot, 0
    number = rings.frames[d] + 1
    h = mix(SEED, np.uint64(number))
    for i in range(n // 8):
        h = mix(h, stage[_HEADER_WORDS + i])
    stage[0], stage[1], stage[2] = np.uint64(number), np.uint64(n), h
    stage[3] = mix(mix(mix(SEED, stage[0]), stage[1]), stage[2])
    rings.frames[d] = number
    return slot, n + HEADER


@numba.njit(nogil=True, cache=True)
def _send(place, rings, scratch, d):
    """Put the next frames for ``d`` as far as there are free slots and there is room."""
    rc = 0
    base = place.rings_at + place.rank * place.ring
    for _ in range(SLOTS):
        free, code = _done(scratch.requests[d, rings.frames[d] % SLOTS], scratch)
        rc |= code
        at = rings.written[d] % place.ring
        room = place.ring - (rings.written[d] - rings.heads[d])
        if not free or room < place.ring // 8:
            break
        slot, n = _frame(rings, scratch, d, room)
        if n == 0:
            break
        stage_at, requests = scratch.stage[d, slot].ctypes.data, scratch.requests[d, slot]
        first = min(n, place.ring - at)
        rc |= _rput(stage_at, first, place.byte, d, base + at, first, place.byte, place.win, requests.ctypes.data)
        if first < n:
            rc |= _rput(stage_at + first, n - first, place.byte, d, base, n - first, place.byte, place.win,
                        requests[1:].ctypes.data)
        rings.written[d] += framed(n)
    return rc


@numba.njit(nogil=True, cache=True)
def _credit(place, rings, scratch, d):
    """Tell ``d`` what has been taken out of its ring here, when that is much."""
    rc = 0
    free, code = _done(scratch.head_request[d:d + 1], scratch)
    rc |= code
    consumed = rings.consumed[d]
    if free and consumed - rings.credited[d] >= place.ring // CREDIT:
        rings.busy[d] = 1
        scratch.words[d, 0] = consumed
        scratch.words[d, 1] = np.int64(mix(SEED, np.uint64(consumed)))
        rc |= _rput(scratch.words[d].ctypes.data, 16, place.byte, d, 8 * place.size + 16 * place.rank, 16, place.byte,
                    place.win, scratch.head_request[d:].ctypes.data)
        rings.credited[d] = consumed
    return rc


@numba.njit(nogil=True, cache=True)
def _announce(place, rings, scratch, d):
    """Separate memory model: wait for what was put, then raise the tail."""
    if rings.written[d] == rings.told[d]:
        return 0
    rc = _win_flush(d, place.win)
    scratch.words[d, 2] = rings.written[d]
    rc |= _accumulate(scratch.words[d, 2:].ctypes.data, 1, place.int64, d, 8 * place.rank, 1, place.int64,
                      place.replace, place.win)
    rc |= _win_flush(d, place.win)
    rings.told[d] = rings.written[d]
    return rc


@numba.njit(nogil=True, cache=True)
def _drive(place, rings, scratch, words):
    rc = _iprobe(place.any_source, _TAG, place.comm, scratch.flag.ctypes.data, scratch.status.ctypes.data)
    if not place.unified:
        tails = scratch.tails.ctypes.data
        rc |= _get_accumulate(tails, 0, place.int64, tails, place.size, place.int64, place.rank, 0, place.size,
                              place.int64, place.no_op, place.win)
        rc |= _win_flush(place.rank, place.win)
    rc |= _win_sync(place.win)
    for d in range(place.size):
        if d == place.rank:
            continue
        head = words[(8 * place.size + 16 * d) // 8]
        if words[(8 * place.size + 16 * d) // 8 + 1] == mix(SEED, head) and np.int64(head) > rings.heads[d]:
            rings.heads[d] = np.int64(head)
        _receive(place, rings, d, words, rings.consumed[d] + place.ring if place.unified else scratch.tails[d])
        rc |= _credit(place, rings, scratch, d)
        rc |= _send(place, rings, scratch, d)
        if not place.unified:
            rc |= _announce(place, rings, scratch, d)
        free, code = _done(scratch.requests[d].reshape(-1), scratch)
        rc |= code
        head_free, code = _done(scratch.head_request[d:d + 1], scratch)
        rc |= code
        rings.busy[d] = 0 if free and head_free else 1
    if rc:
        rings.fault[0] = rc


@numba.njit(nogil=True, cache=True)
def _loop(stop, place, rings, scratch, words):
    while stop[0] == 0:
        _drive(place, rings, scratch, words)
        _usleep(PAUSE_US)


def _bind_symbols() -> None:
    """Make the functions of the MPI library that mpi4py uses known to compiled code."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        library = ctypes.CDLL(next(line.split()[-1] for line in maps if "libmpi.so" in line))
    for name in _MPI_FUNCTIONS:
        llvm.add_symbol(name, ctypes.cast(getattr(library, name), ctypes.c_void_p).value)


def _handle(of) -> int:
    """Return the C handle of an MPI object: an int of MPICH, a pointer of Open MPI."""
    kind = ctypes.c_int if MPI._sizeof(MPI.Comm) == ctypes.sizeof(ctypes.c_int) else ctypes.c_int64
    return kind.from_address(MPI._addressof(of)).value
