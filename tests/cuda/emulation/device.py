"""A device of numpy arrays and emulated kernels, which keeps CuPy's rules: host and device do not mix."""

from __future__ import annotations

import time

import numpy as np

from gaian_hpc.backends.cuda import Device, compile_failure

from .module import FORWARD, EmulatedModule, EmulationError


class DeviceArray(np.ndarray):
    """An array that stands for one in GPU memory: operations with host arrays are errors, as for CuPy's."""

    def get(self, out: np.ndarray | None = None, blocking: bool = True) -> np.ndarray:
        """Return a copy on the host, in ``out`` if it is given."""
        if out is None:
            return np.array(self, subok=False)
        if out.shape != self.shape or out.dtype != self.dtype or not out.flags.c_contiguous:
            raise ValueError(f"get of {self.dtype}{self.shape} to {out.dtype}{out.shape}")
        out[...] = self.view(np.ndarray)
        return out

    def set(self, x: np.ndarray) -> None:
        """Copy an array of the host here."""
        if x.shape != self.shape or x.dtype != self.dtype:
            raise ValueError(f"set of {self.dtype}{self.shape} from {x.dtype}{x.shape}")
        self.view(np.ndarray)[...] = x

    def __getitem__(self, index):
        _need_device_index(index)
        return super().__getitem__(index)

    def __setitem__(self, index, values):
        _need_device_index(index)
        if type(values) is np.ndarray and values.ndim:
            raise TypeError("a host array written to a device array")
        super().__setitem__(index, values)

    def __array_function__(self, function, types, arguments, named):
        raise TypeError(f"numpy.{function.__name__} of a device array; use the function of its array module")

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **kwargs):
        for x in inputs:
            if type(x) is np.ndarray and x.ndim:
                raise TypeError(f"{ufunc.__name__}: host and device arrays in one operation")
        if out:
            kwargs["out"] = tuple(x.view(np.ndarray) for x in out)
        result = getattr(ufunc, method)(*(x.view(np.ndarray) if isinstance(x, DeviceArray) else x for x in inputs),
                                        **kwargs)
        return out[0] if out else np.asarray(result).view(DeviceArray)


class StrictCupy:
    """The functions of CuPy that the package uses, by numpy; a name that is not here is an error.

    ``test_device.py`` checks that CuPy has each of them, where it is installed.
    """

    @staticmethod
    def asarray(x, dtype=None) -> DeviceArray:
        if isinstance(x, DeviceArray) and dtype in (None, x.dtype):
            return x
        return np.array(x, dtype).view(DeviceArray)  # a copy: device memory is not the host's

    @staticmethod
    def ascontiguousarray(x) -> DeviceArray:
        _need_device(x)
        return np.ascontiguousarray(x).view(DeviceArray)

    @staticmethod
    def empty(shape, dtype) -> DeviceArray:
        x = np.empty(shape, dtype)
        x.reshape(-1).view(np.uint8)[:] = 0xFF  # NaN or -1: reading it shows
        return x.view(DeviceArray)

    @staticmethod
    def zeros(shape, dtype) -> DeviceArray:
        return np.zeros(shape, dtype).view(DeviceArray)

    @staticmethod
    def arange(n, dtype) -> DeviceArray:
        return np.arange(n, dtype=dtype).view(DeviceArray)

    @staticmethod
    def cumsum(x) -> DeviceArray:
        _need_device(x)
        if len(x) == 0:
            raise ValueError("cumsum of nothing: not known of CuPy")
        return np.cumsum(x.view(np.ndarray)).view(DeviceArray)

    @staticmethod
    def concatenate(arrays) -> DeviceArray:
        _need_device(*arrays)
        return np.concatenate([x.view(np.ndarray) for x in arrays]).view(DeviceArray)

    @staticmethod
    def flatnonzero(x) -> DeviceArray:
        _need_device(x)
        return np.flatnonzero(x.view(np.ndarray)).view(DeviceArray)

    @staticmethod
    def where(condition, a, b) -> DeviceArray:
        _need_device(condition, a, b)
        return np.where(*(x.view(np.ndarray) for x in (condition, a, b))).view(DeviceArray)

    @staticmethod
    def maximum(a, b) -> DeviceArray:
        _need_device(a)
        return np.maximum(a, b)

    @staticmethod
    def minimum(a, b) -> DeviceArray:
        _need_device(a)
        return np.minimum(a, b)

    @staticmethod
    def searchsorted(a, v) -> DeviceArray:
        _need_device(a, v)
        return np.searchsorted(a.view(np.ndarray), v.view(np.ndarray)).view(DeviceArray)

    @staticmethod
    def argsort(x, kind) -> DeviceArray:
        _need_device(x)
        return np.argsort(x.view(np.ndarray), kind=kind).view(DeviceArray)

    @staticmethod
    def repeat(x, repeats: list, axis) -> DeviceArray:
        _need_device(x)
        if not isinstance(repeats, list):
            raise TypeError("cupy.repeat takes a list of counts")
        return np.repeat(x.view(np.ndarray), repeats, axis=axis).view(DeviceArray)

    @staticmethod
    def take(x, indices) -> DeviceArray:
        _need_device(x, indices)
        return x.view(np.ndarray)[indices.view(np.ndarray)].view(DeviceArray)


class EmulatedMemoryError(MemoryError):
    """What CuPy's OutOfMemoryError is."""


class EmulatedDevice(Device):
    """A device whose memory is the host's."""

    size = 1 << 40
    memory_error = EmulatedMemoryError

    def synchronize(self) -> None:
        """Do nothing: a kernel has run when its launch returns."""

    def memory(self) -> tuple[int, int]:
        """Return a memory that is half full."""
        return self.size // 2, self.size

    def staging(self, n_bytes: int) -> np.ndarray:
        """Return ordinary memory."""
        return np.empty(n_bytes, np.uint8)

    def mark(self) -> float:
        """Return the time."""
        return time.perf_counter()

    def seconds(self, start: float, end: float) -> float:
        """Return the time between marks."""
        return end - start


CUPY_NAMES = tuple(name for name in vars(StrictCupy) if not name.startswith("_"))


def _need_device(*arrays) -> None:
    for x in arrays:
        if not isinstance(x, DeviceArray):
            raise TypeError(f"a host array of shape {np.shape(x)} where one of the device is needed")


def _need_device_index(index) -> None:
    for x in index if isinstance(index, tuple) else (index,):
        if type(x) is np.ndarray and x.ndim:
            raise TypeError("a device array indexed by a host array")


def emulated_device(warp: int = 32, *, deterministic: bool = False, order: int = FORWARD,
                    sanitizer: str = "") -> Device:
    """Return a device whose kernels run on the CPU; its array functions and kernels refuse what a GPU would."""

    def compile(code: str, options: tuple[str, ...], names: tuple[str, ...]) -> EmulatedModule:
        try:
            module = EmulatedModule(code, options, names, warp=warp, sanitizer=sanitizer)
        except EmulationError as error:
            raise compile_failure(names, str(error)) from error
        module.set_order(order)
        return module

    return EmulatedDevice(StrictCupy(), compile, warp, deterministic)
