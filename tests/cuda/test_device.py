"""Opening a GPU, compiling for it and running out of it: what is told, and what the stand-in for CuPy promises."""

import sys
import types

import numpy as np
import pytest

from gaian_hpc.backends import cuda as gpu
from gaian_hpc.backends.cuda import check_capability, choose_device, kernel_source, kernels_folder, open_device
from gaian_hpc.distributed.device import passes_test
from gaian_hpc.distributed.world import World, aligned
from gaian_hpc.errors import BackendError
from gaian_hpc.renderers import base
from gaian_hpc.renderers.gaussian3d import Gaussian3D
from gaian_hpc.renderers.gaussian4d import Gaussian4D
from gaian_hpc.settings import Settings
from gaian_hpc.training.start import resolve_backend
from tests.cuda.emulation.device import CUPY_NAMES, EmulatedMemoryError, StrictCupy, emulated_device
from tests.cuda.emulation.module import EmulationError
from tests.gpu import timing

KERNEL_FILES = sorted(p.relative_to(kernels_folder()).as_posix() for p in kernels_folder().rglob("*.cu"))


def fake_cupy(n_devices: int, capability: tuple[int, int] = (9, 0), in_use: bool = False) -> types.SimpleNamespace:
    class CUDARuntimeError(RuntimeError):
        pass

    def count() -> int:
        if n_devices < 0:
            raise CUDARuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient")
        return n_devices

    device = types.SimpleNamespace(use=lambda: None)
    properties = {"name": b"GPU X", "major": capability[0], "minor": capability[1], "warpSize": 32, "uuid": b"12"}

    def memory() -> tuple[int, int]:
        if in_use:
            raise CUDARuntimeError("cudaErrorDevicesUnavailable: CUDA-capable device(s) is/are busy or unavailable")
        return 1, 2
    runtime = types.SimpleNamespace(CUDARuntimeError=CUDARuntimeError, getDeviceCount=count,
                                    getDeviceProperties=lambda number: properties,
                                    memGetInfo=memory)
    return types.SimpleNamespace(cuda=types.SimpleNamespace(runtime=runtime, Device=lambda number: device))


@pytest.mark.parametrize(("cupy", "message"), [
    (None, r"needs CuPy: pip install 'gaian_hpc\[cuda13\]'"),
    (fake_cupy(-1), "no GPU can be used here .*insufficient.*--backend cpu"),
    (fake_cupy(0), "no GPU is visible here"),
    (fake_cupy(1, in_use=True), "no GPU can be used here .*busy or unavailable"),
    (fake_cupy(1, (7, 0)), "GPU X has compute capability 7.0; at least 7.5")])
def test_a_gpu_that_cannot_be_used_is_named(monkeypatch, cupy, message):
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    with pytest.raises(BackendError, match=message) as error:
        open_device()
    assert "\n" not in str(error.value)


def test_the_table_of_times_can_be_made(monkeypatch, capsys):
    device = emulated_device()
    runtime = types.SimpleNamespace(getDeviceProperties=lambda number: {"name": b"GPU X"})
    cuda = types.SimpleNamespace(runtime=runtime, Device=lambda: types.SimpleNamespace(id=0))
    monkeypatch.setattr(device.xp, "cuda", cuda, raising=False)
    monkeypatch.setattr(timing, "open_device", lambda: device)
    for name, value in (("WIDTH", 48), ("HEIGHT", 32), ("REPEATS", 1), ("FOCAL", 35.0)):
        monkeypatch.setattr(timing, name, value)
    timing.main(200)
    table = capsys.readouterr().out
    assert "GPU X" in table and all(phase in table for phase in ("cull", "patches", "render_vjp", "update", "sum"))


@pytest.mark.parametrize(("seen", "numbers"), [
    ([("a", "b", "c")] * 3, [0, 1, 2]),  # all see all
    ([("a",), ("b",), ("c",)], [0, 0, 0]),  # a launcher gave one to each
    ([("a", "b"), ("a", "b"), ("c", "d"), ("c", "d")], [0, 1, 0, 1])])
def test_a_rank_takes_a_device_that_no_other_of_its_node_has(seen, numbers):
    assert [choose_device(seen, rank) for rank in range(len(seen))] == numbers


def test_more_ranks_than_devices_are_an_error_on_every_rank():
    for rank in range(3):
        with pytest.raises(BackendError, match="3 ranks of this node see 2 GPUs; start at most one rank a GPU"):
            choose_device([("a", "b")] * 3, rank)


def test_the_oldest_architecture_is_taken():
    check_capability("GPU X", (7, 5))


@pytest.mark.parametrize(("installed", "seen", "backend"), [
    (False, ("a",), "cpu"), (True, (), "cpu"), (True, ("a",), "cuda")])
def test_backend_auto_takes_a_gpu_where_there_is_one(monkeypatch, installed, seen, backend):
    def visible() -> tuple[str, ...]:
        if not seen:
            raise BackendError("backend cuda: no GPU is visible here")
        return seen

    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if installed else None)
    monkeypatch.setattr(gpu, "visible_devices", visible)
    monkeypatch.setattr(gpu, "open_device", lambda number, **settings: emulated_device(**settings))
    assert resolve_backend(World(), Settings()).backend == backend
    assert resolve_backend(World(), Settings(backend="cpu")).backend == "cpu"
    if backend == "cuda":  # a method of another package, in numpy
        monkeypatch.setattr("gaian_hpc.training.start.renderer_class", lambda name: object)
        assert resolve_backend(World(), Settings()).backend == "cpu"


def test_test_messages_are_right_on_any_number_of_ranks():
    class Loopback(World):
        rank, size = 250, 300

        def alltoall(self, messages, sizes, buffers=None):
            device = emulated_device()
            return [device.array(np.full(112, (16 * src + self.rank) % 251, np.uint8)) for src in range(self.size)]

    world = Loopback()
    assert passes_test(emulated_device(), None, world)
    world.rank = 16
    assert passes_test(emulated_device(), None, world)


def test_pieces_of_messages_lie_where_kernels_can_read_them():
    device = emulated_device()
    bytes_of_message = device.empty(64, np.uint8)
    boxes = bytes_of_message[8:56].view(np.float32)
    kernels = device.kernels("training/patches.cu")
    edges = device.array(np.float32([0, 16]))
    arguments = (edges, np.int32(1), edges, np.int32(1), device.empty(3, np.int64), device.empty(1, np.uint64))
    with pytest.raises(EmulationError, match="count_reach: the address of argument 1 is no multiple of 16 bytes"):
        kernels.over("count_reach", 3, boxes, *arguments)
    assert aligned(1) % 16 == 0


def test_a_kernel_that_does_not_compile_shows_the_log(monkeypatch, tmp_path):
    (tmp_path / "bad.cu").write_text('extern "C" __global__ void k() { undeclared = 1; }\n')
    monkeypatch.setattr("gaian_hpc.backends.cuda.kernels_folder", lambda: tmp_path)
    with pytest.raises(BackendError, match=r"(?s)a kernel file does not compile:.*undeclared"):
        emulated_device().kernels("bad.cu").launch("k", 1)


def test_too_little_memory_says_how_much_and_what_to_change(monkeypatch):
    def full(shape, dtype):
        raise EmulatedMemoryError("out of memory")

    monkeypatch.setattr(StrictCupy, "empty", staticmethod(full))
    with pytest.raises(BackendError, match=r"no room for 400 MiB more; use smaller patches \(--patch_size\)"):
        emulated_device().empty((100, 1 << 20))


def test_a_method_without_kernels_is_named(monkeypatch):
    monkeypatch.setattr(base, "renderer_class", lambda method: object)
    with pytest.raises(BackendError, match="method other has no kernels for backend cuda; use --backend cpu"):
        base.build_renderer("other", None, "cuda")


@pytest.mark.parametrize("method", [Gaussian3D, Gaussian4D], ids=lambda method: method.name)
def test_the_backend_of_a_run_is_the_gpu_it_opens(monkeypatch, method):
    device = emulated_device()
    monkeypatch.setattr("gaian_hpc.backends.cuda.open_device", lambda: device)
    renderer = base.build_renderer(method.name, method.Options(), "cuda", absgrad=True)
    assert renderer.device is device
    assert renderer.absgrad
    at_step = renderer.at_step(0)
    assert (at_step.degree, at_step.device, at_step.absgrad) == (0, device, True)


@pytest.mark.parametrize("name", KERNEL_FILES)
def test_a_kernel_file_is_self_contained(name):
    code = kernel_source(name)
    assert "#include" not in code
    assert "__global__" in code


def test_host_and_device_arrays_do_not_mix():
    device = emulated_device()
    with pytest.raises(TypeError, match="host and device arrays"):
        device.zeros(3) + np.zeros(3)
    with pytest.raises(AttributeError):
        device.xp.no_such_function  # noqa: B018
    source = np.zeros(3, np.float32)
    assert not np.shares_memory(device.array(source).view(np.ndarray), source)


def test_cupy_has_every_name_of_its_stand_in():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed; its names were not checked")
    assert [name for name in CUPY_NAMES if not hasattr(cupy, name)] == []
