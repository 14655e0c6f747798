"""The GPU of a rank: arrays and kernels by CuPy, whose sources lie in the top-level folder ``kernels``.

Code above takes a :class:`Device` and names neither CuPy nor a GPU, so that tests run it, and the exact kernel text,
on the CPU with another one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BackendError
from ..timing import PhaseTime, PhaseTimer

MOST_PENDING = 4096  # phases whose times are not yet asked for
MIN_CAPABILITY = (7, 5)  # Turing, the oldest that CUDA 13 compiles for
_INCLUDE = re.compile(r'^#include "(.+)"$', re.MULTILINE)


class Device:
    """A GPU, or what stands in for one.

    Parameters
    ----------
    xp : module
        CuPy.
    compile : callable
        ``compile(code, options, names)`` returns a module with ``get_function(name)``, as ``cupy.RawModule``.
    warp : int
        Lanes of a warp.
    deterministic : bool
        Add up gradients in a fixed order: the same bits in every run, at the cost of memory and time.
    """

    def __init__(self, xp: Any, compile: Callable[[str, tuple[str, ...], tuple[str, ...]], Any], warp: int = 32,
                 deterministic: bool = False):
        self.xp = xp
        self.warp = warp
        self.deterministic = deterministic
        self._compile = compile
        self._modules: dict[str, KernelFile] = {}

    def kernels(self, source: str) -> KernelFile:
        """Return the kernels of a file such as ``gaussian3d/gaussian3d.cu``, compiled at first use."""
        if source not in self._modules:
            self._modules[source] = KernelFile(self, source)
        return self._modules[source]

    def array(self, x: Any, dtype: type | None = None) -> Any:
        """Return ``x`` on the device, contiguous; what is there already is not copied. Raises as :meth:`empty`."""
        with self._room(getattr(x, "nbytes", 0)):
            return self.xp.ascontiguousarray(self.xp.asarray(x, dtype))

    def empty(self, shape: int | tuple[int, ...], dtype: type = np.float32) -> Any:
        """Return uninitialised memory.

        Raises
        ------
        DeviceMemoryError
            If the device has too little.
        """
        with self._room(_n_bytes(shape, dtype)):
            return self.xp.empty(shape, dtype)

    def zeros(self, shape: int | tuple[int, ...], dtype: type = np.float32) -> Any:
        """Return zeroed memory; raises as :meth:`empty`."""
        with self._room(_n_bytes(shape, dtype)):
            return self.xp.zeros(shape, dtype)

    @contextmanager
    def _room(self, n_bytes: int) -> Iterator[None]:
        try:
            yield
        except self.memory_error as error:
            raise DeviceMemoryError(n_bytes) from error

    @property
    def memory_error(self) -> type[Exception]:
        """What an array operation raises where the device has too little memory."""
        return self.xp.cuda.memory.OutOfMemoryError

    def memory(self) -> tuple[int, int]:
        """Return the bytes of memory that arrays could have, and those that there are."""
        free, total = self.xp.cuda.runtime.memGetInfo()
        return free + self.xp.get_default_memory_pool().free_bytes(), total

    def staging(self, n_bytes: int) -> np.ndarray:
        """Return (n_bytes,) uint8 memory of the host, pinned: copies to and from the device run at full speed."""
        if n_bytes == 0:
            return np.empty(0, np.uint8)
        return np.frombuffer(self.xp.cuda.alloc_pinned_memory(n_bytes), np.uint8, n_bytes)

    def fetch(self, x: Any, out: np.ndarray) -> None:
        """Begin to copy device array ``x`` to ``out`` in memory of :meth:`staging`; done after :meth:`synchronize`."""
        x.get(out=out, blocking=False)

    def upload(self, x: np.ndarray) -> Any:
        """Return a copy, on the device, of memory of :meth:`staging`."""
        out = self.empty(x.shape, x.dtype)
        if x.size:
            out.set(x)
            self.synchronize()  # what x lies in may be given to others
        return out

    def cumsum(self, x: Any) -> Any:
        """Return the inclusive sums of (n,) ``x``, of which there may be none, int64."""
        return self.xp.cumsum(x) if len(x) else self.empty(0, np.int64)

    def mark(self) -> Any:
        """Return a mark of this moment in the device's work, for :meth:`seconds`."""
        event = self.xp.cuda.Event()
        event.record()
        return event

    def seconds(self, start: Any, end: Any) -> float:
        """Return the seconds between two marks, after the device has come to the second."""
        end.synchronize()
        return 1e-3 * self.xp.cuda.get_elapsed_time(start, end)

    def synchronize(self) -> None:
        """Wait until all work on the device is done."""
        self.xp.cuda.get_current_stream().synchronize()

    def host(self, x: Any) -> np.ndarray:
        """Return ``x`` as a numpy array, after all work on it is done."""
        return x.get() if hasattr(x, "get") else np.asarray(x)


class DeviceMemoryError(BackendError, MemoryError):
    """The GPU has no room for ``wanted`` bytes more."""

    def __init__(self, wanted: int):
        self.wanted = wanted
        super().__init__(f"the GPU has no room for {wanted / 2**20:.0f} MiB more; use smaller patches (--patch_size), "
                         "fewer points (--densify.cap), or more ranks with a GPU each")


def _n_bytes(shape: int | tuple[int, ...], dtype: type) -> int:
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize


class DeviceTimer(PhaseTimer):
    """Times of phases on a device, whose work is not waited for before times are asked for."""

    def __init__(self, device: Device):
        super().__init__()
        self._device = device
        self._pending: list[tuple[str, Any, Any]] = []

    @contextmanager
    def region(self, name: str) -> Iterator[None]:
        """Add the time between entry and exit, in the device's order of work, to phase ``name``."""
        self.phases.setdefault(name, PhaseTime())
        start = self._device.mark()
        try:
            yield
        finally:
            self._pending.append((name, start, self._device.mark()))
            if len(self._pending) >= MOST_PENDING:
                self._settle()

    def reset(self) -> None:
        """Zero all phases, keeping their order."""
        self._pending.clear()
        super().reset()

    def seconds(self) -> dict[str, float]:
        """Return seconds per phase, after waiting for the device."""
        self._settle()
        return super().seconds()

    def table(self, per: int = 0) -> str:
        """Return the phases as text; see :meth:`PhaseTimer.table`."""
        self._settle()
        return super().table(per)

    def _settle(self) -> None:
        for name, start, end in self._pending:
            phase = self.phases[name]
            phase.seconds += self._device.seconds(start, end)
            phase.calls += 1
        self._pending.clear()


class KernelFile:
    """Kernels of one source file; template instances are compiled as they are asked for."""

    def __init__(self, device: Device, source: str):
        self._device = device
        self._source = source
        self._plain: Any = None
        self._functions: dict[str, Any] = {}

    @cached_property
    def _code(self) -> str:
        return kernel_source(self._source)

    def prepare(self, *instances: str) -> None:
        """Compile template instances together with all kernels that are no templates, unless that is done.

        Raises
        ------
        BackendError
            With the compiler's message, if the file does not compile.
        """
        if self._plain is not None and all(name in self._functions for name in instances):
            return
        module = self._device._compile(self._code, (f"-DWARP_SIZE={self._device.warp}",), instances)
        self._plain = self._plain or module
        self._functions |= {name: module.get_function(name) for name in instances}

    def _function(self, name: str) -> Any:
        if name not in self._functions:
            if "<" in name:
                self.prepare(name)
            else:
                self.prepare()
                self._functions[name] = self._plain.get_function(name)
        return self._functions[name]

    def launch(self, name: str, n_blocks: int, *arguments: Any, threads: int = 256) -> None:
        """Launch a kernel over ``n_blocks`` blocks; nothing for none.

        Parameters
        ----------
        name : str
            Of an ``extern "C"`` kernel, or a template instance such as ``project<3>``.
        arguments
            Device arrays and numpy scalars of the kernel's types.
        """
        if n_blocks == 0:
            return
        self._function(name)((int(n_blocks),), (threads,), arguments)

    def over(self, name: str, n: int, *arguments: Any) -> None:
        """Launch a kernel with one thread for each of ``n`` rows, whose number is its first argument."""
        self.launch(name, -(-n // 256), np.int64(n), *arguments)


@lru_cache
def kernels_folder() -> Path:
    """Return the folder of the kernel sources, in a wheel or a checkout."""
    from .. import kernels

    return Path(kernels.__file__).parent


def kernel_source(name: str) -> str:
    """Return the text of a kernel file with its includes in place, each once.

    CuPy's cache of compiled kernels does not see changes of included files, so there are none for it.
    """
    included: set[str] = set()

    def text(file: str) -> str:
        if file in included:
            return ""
        included.add(file)
        body = (kernels_folder() / file).read_text(encoding="ascii").replace("#pragma once\n", "")
        return _INCLUDE.sub(lambda match: text(match[1]), body)

    return text(name)


def visible_devices() -> tuple[str, ...]:
    """Return what identifies the GPUs, or parts of GPUs, that this process sees, in the order of their numbers.

    Raises
    ------
    BackendError
        If CuPy is missing, or there is no GPU.
    """
    cupy = _import_cupy()
    with _usable(cupy):
        n = cupy.cuda.runtime.getDeviceCount()
        if n == 0:
            raise BackendError("backend cuda: no GPU is visible here (see CUDA_VISIBLE_DEVICES); use --backend cpu")
        # Parts of one GPU (MIG) have its PCI address, but a UUID each.
        return tuple(bytes(cupy.cuda.runtime.getDeviceProperties(k)["uuid"]).hex() for k in range(n))


@contextmanager
def _usable(cupy: Any) -> Iterator[None]:
    """Turn what CUDA refuses in the block into a BackendError."""
    try:
        yield
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise BackendError(f"backend cuda: no GPU can be used here ({error}); use --backend cpu") from error


def choose_device(seen: Sequence[tuple[str, ...]], local_rank: int) -> int:
    """Return the number of the device of a rank, each rank's the first that it sees and no earlier one has.

    So ranks that all see the same devices take them in turn, and a rank to which the launcher gave one takes that.

    Parameters
    ----------
    seen : sequence of tuple of str
        :func:`visible_devices` of the ranks of one host, in their order.
    local_rank : int
        Which of them is asked for.

    Raises
    ------
    BackendError
        If there are fewer devices than ranks.
    """
    taken: set[str] = set()
    numbers = []
    for devices in seen:
        free = [device for device in devices if device not in taken]
        if not free:
            raise BackendError(f"backend cuda: {len(seen)} ranks of this node see {len(set().union(*seen))} GPUs; "
                               "start at most one rank a GPU (srun --ntasks-per-node, mpiexec -ppn)")
        taken.add(free[0])
        numbers.append(devices.index(free[0]))
    return numbers[local_rank]


def open_device(number: int = 0, *, deterministic: bool = False) -> Device:
    """Return a GPU by its number among those that this process sees.

    Raises
    ------
    BackendError
        If CuPy or a GPU is missing, or the GPU is older than ``MIN_CAPABILITY``.
    """
    visible_devices()
    cupy = _import_cupy()
    with _usable(cupy):
        cupy.cuda.Device(number).use()
        cupy.cuda.runtime.memGetInfo()  # a GPU that another process has for itself refuses here
        properties = cupy.cuda.runtime.getDeviceProperties(number)
    check_capability(properties["name"].decode(), (properties["major"], properties["minor"]))

    def compile(code: str, options: tuple[str, ...], names: tuple[str, ...]) -> Any:
        try:
            module = cupy.RawModule(code=code, options=options, name_expressions=names or None)
            module.compile()
        except cupy.cuda.compiler.CompileException as error:
            raise compile_failure(names, str(error)) from error
        except (RuntimeError, ImportError, OSError) as error:  # no NVRTC, or a driver that does not know the GPU's code
            raise BackendError(f"backend cuda: kernels cannot be compiled or loaded here ({error}); install NVRTC with "
                               "pip install 'gaian_hpc[cuda13]' or [cuda12], as the driver is") from error
        return module

    return Device(cupy, compile, properties["warpSize"], deterministic)


def _import_cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise BackendError("backend cuda needs CuPy: pip install 'gaian_hpc[cuda13]', or [cuda12] for a driver before "
                           f"CUDA 13 ({error}); or use --backend cpu") from error
    return cupy


def check_capability(name: str, capability: tuple[int, int]) -> None:
    """Raise BackendError if a GPU is too old."""
    if capability < MIN_CAPABILITY:
        raise BackendError(f"backend cuda: {name} has compute capability {'.'.join(map(str, capability))}; at least "
                           f"{'.'.join(map(str, MIN_CAPABILITY))} (Turing) is needed; use --backend cpu")


def compile_failure(names: Sequence[str], log: str) -> BackendError:
    """Return the error of kernels that do not compile, with the first lines of the compiler's log."""
    lines = [line for line in log.splitlines() if line.strip()][:12]
    what = f"kernels {', '.join(names)} do" if names else "a kernel file does"
    return BackendError("\n".join([f"backend cuda: {what} not compile:", *lines]))
