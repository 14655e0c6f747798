"""Kernels of a step besides rendering, run on the CPU, against the cpu backend's."""

import copy

import numpy as np
import pytest

from gaian_hpc.arrays import ArrayTable, Attribute, LearningRate, Patch, View
from gaian_hpc.backends.messages import pack, unpack
from gaian_hpc.distributed.codecs import decode, encode
from gaian_hpc.points import cells
from gaian_hpc.points.cuda import morton_codes
from gaian_hpc.points.store import PointStore
from gaian_hpc.settings import OptimizerSettings
from gaian_hpc.training import cuda, loss
from gaian_hpc.training.optimizer import Adam
from tests.cuda.emulation.device import emulated_device


@pytest.fixture(scope="module", params=[32, 64], ids=lambda warp: f"warp{warp}")
def device(request):
    return emulated_device(request.param)


def picture_view(width: int, height: int) -> View:
    return View(np.eye(4, dtype=np.float32), np.eye(3, dtype=np.float32), width, height)


@pytest.mark.parametrize("corners", [(0, 0, 53, 37), (16, 16, 48, 32), (32, 0, 53, 16)])
def test_the_loss_and_its_gradient_are_those_of_the_cpu(device, corners):
    rng = np.random.default_rng(1)
    image, target = rng.random((2, 3, 37, 53), np.float32)
    patch = Patch(picture_view(53, 37), *corners)
    region = loss.Region.of(patch)
    x, y = (np.ascontiguousarray(p[:, region.rows, region.columns]) for p in (image, target))
    want = loss.region_loss(x, y, patch, 0.2)
    got = cuda.region_loss(device, device.array(x), device.array(y), patch, 0.2)
    assert got.l1 == pytest.approx(want.l1, rel=1e-6)
    assert got.ssim == pytest.approx(want.ssim, rel=2e-5)
    np.testing.assert_allclose(got.v_image.get(), want.v_image, atol=2e-5 * np.abs(want.v_image).max())


@pytest.mark.parametrize("kind", ["selective", "dense"])
def test_adam_moves_points_as_on_the_cpu(device, kind):
    rng = np.random.default_rng(2)
    n, attributes = 300, (Attribute("x", (3,), None, LearningRate(0.01)),
                          Attribute("s", (3,), None, LearningRate(0.02), "exp"),
                          Attribute("o", (), None, LearningRate(0.03), "sigmoid"),
                          Attribute("sh", (4, 3), None, LearningRate(0.04), lr_scale=(1.0,) * 3 + (0.05,) * 9))
    raw = {a.name: rng.standard_normal((n, *a.shape)).astype(np.float32) for a in attributes}
    settings = OptimizerSettings(kind=kind)
    cpu, gpu = (PointStore(attributes, copy.deepcopy(raw), np.arange(n), n) for _ in range(2))
    for group in (gpu.raw, gpu.first_moments, gpu.second_moments, gpu._active):
        for name in group:
            group[name] = device.array(group[name])
    host, on_device = Adam(attributes, settings, 1.0, 50), cuda.DeviceAdam(device, attributes, settings, 1.0, 50)
    for step in range(1, 6):
        rows = np.flatnonzero(rng.random(n) < 0.4)
        v = {"x": (3,), "s": (3,), "o": (), "sh": (1, 3)}  # the leading SH coefficient only
        v = {name: rng.standard_normal((len(rows), *shape)).astype(np.float32) for name, shape in v.items()}
        host.update(cpu, rows, ArrayTable(v), step)
        on_device.update(gpu, rows, ArrayTable({name: device.array(x) for name, x in v.items()}), step)
    for name in raw:
        np.testing.assert_allclose(gpu.raw[name].get(), cpu.raw[name], rtol=2e-6, atol=2e-6)
        np.testing.assert_allclose(gpu.second_moments[name].get(), cpu.second_moments[name], rtol=2e-6, atol=1e-12)
        np.testing.assert_allclose(gpu.values[name].get(), cpu.values[name], rtol=4e-6, atol=1e-6)


def test_density_statistics_are_norms_in_device_coordinates(device):
    rows, gradient = np.array([1, 4]), np.array([[3, 0], [0.3, 0.4]], np.float32)
    grad_sum, count = device.zeros(5), device.zeros(5)
    for _ in range(2):
        cuda.observe(device, picture_view(20, 20), device.array(rows), device.array(gradient), 1, grad_sum, count)
    np.testing.assert_allclose(grad_sum.get(), [0, 60, 0, 0, 10])
    np.testing.assert_array_equal(count.get(), [0, 2, 0, 0, 2])


def test_morton_codes_are_those_of_the_cpu_to_the_bit(device):
    rng = np.random.default_rng(3)
    positions = (rng.standard_normal((1000, 3)) * 2).astype(np.float32)
    positions[:3] = np.nan, np.inf, -np.inf
    low, high = np.array([-1.0, -2.0, -1.5]), np.array([1.0, 2.0, 3.0])
    codes = morton_codes(device, device.array(positions), low, high)
    np.testing.assert_array_equal(codes.get(), cells.morton_codes(positions, low, high))


@pytest.mark.parametrize("codec", ["fp32", "fp16", "bf16", "int8"])
@pytest.mark.parametrize("scale", [1e-9, 1.0, 3e4])
def test_messages_have_the_bytes_of_the_cpu(device, codec, scale):
    rng = np.random.default_rng(4)
    values = (rng.standard_normal((200, 3)) * np.exp(4 * rng.standard_normal((200, 3))) * scale).astype(np.float32)
    values[7] = 0
    rows = np.flatnonzero(rng.random(200) < 0.7)
    data = pack(device, device.array(values), device.array(rows), codec)
    want = encode(values[rows], codec)
    np.testing.assert_array_equal(data.get(), want)
    back = unpack(device, data, len(rows), (3,), codec)
    np.testing.assert_array_equal(back.get(), decode(want, len(rows), (3,), codec))


def test_an_empty_message_has_no_bytes(device):
    values = device.zeros((5, 3))
    for codec in ("fp32", "fp16", "bf16", "int8"):
        data = pack(device, values, device.empty(0, np.int64), codec)
        assert len(data) == 0
        assert unpack(device, data, 0, (3,), codec).shape == (0, 3)


def test_a_value_without_a_scale_is_an_error(device):
    values = device.array(np.array([1, np.inf], np.float32))
    with pytest.raises(ValueError, match="not finite"):
        pack(device, values, device.array(np.arange(2)), "fp16")
