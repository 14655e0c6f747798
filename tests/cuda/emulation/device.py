"""A device of numpy arrays and emulated kernels, which keeps CuPy's rules: host and device do not mix."""

from __future__ import annotations

import numpy as np

from gaian_hpc.backends.cuda import Device, compile_failure

from .module import FORWARD, EmulatedModule, EmulationError


class DeviceArray(np.ndarray):
    """An array that stands for one in GPU memory: operations with host arrays are errors, as for CuPy's."""

    def get(self) -> np.ndarray:
        """Return a copy on the host."""
        return np.array(self, subok=False)

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
    def take(x, indices) -> DeviceArray:
        _need_device(x, indices)
        return x.view(np.ndarray)[indices.view(np.ndarray)].view(DeviceArray)


class EmulatedDevice(Device):
    """A device whose memory is the host's."""

    def synchronize(self) -> None:
        """Do nothing: a kernel has run when its launch returns."""


CUPY_NAMES = tuple(name for name in vars(StrictCupy) if not name.startswith("_"))


def _need_device(*arrays) -> None:
    for x in arrays:
        if not isinstance(x, DeviceArray):
            raise TypeError(f"a host array of shape {np.shape(x)} where one of the device is needed")


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
