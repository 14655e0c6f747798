"""Kernels of a step besides rendering, run on the CPU, against the cpu backend's."""

import copy
import types

import numpy as np
import pytest

from gaian_hpc.arrays import ArrayTable, Attribute, Cloud, LearningRate, Patch, View
from gaian_hpc.backends.cuda import DeviceTimer
from gaian_hpc.backends.host import HOST
from gaian_hpc.backends.messages import pack, unpack
from gaian_hpc.data.patches import make_patches
from gaian_hpc.distributed.codecs import decode, encode
from gaian_hpc.points import cells
from gaian_hpc.points.cuda import morton_codes
from gaian_hpc.points.store import PointStore
from gaian_hpc.renderers.base import Outputs
from gaian_hpc.renderers.convex3d import Convex3D
from gaian_hpc.renderers.gaussian2d import Gaussian2D
from gaian_hpc.renderers.gaussian2d.cuda import CudaGaussian2D
from gaian_hpc.renderers.gaussian3d import Gaussian3D
from gaian_hpc.settings import DensifySettings, OptimizerSettings
from gaian_hpc.training import cuda, loss, unit
from gaian_hpc.training.densify import make_density
from gaian_hpc.training.densify.mcmc import MarkovDensity
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
    gpu.move(device)
    host, on_device = Adam(attributes, settings, 1.0, 50), cuda.DeviceAdam(device, attributes, settings, 1.0, 50)
    for step in range(1, 6):
        rows = np.flatnonzero(rng.random(n) < 0.4)
        v = {"x": (3,), "s": (3,), "o": (), "sh": (1, 3)}  # the leading SH coefficient only
        v = {name: rng.standard_normal((len(rows), *shape)).astype(np.float32) for name, shape in v.items()}
        host.update(cpu, rows, ArrayTable(v), step)
        on_device.update(gpu, device.array(rows), ArrayTable({name: device.array(x) for name, x in v.items()}), step)
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


GRIDS = {"one patch": (200, 150, 256), "few": (200, 150, 64), "ragged": (201, 83, 32),
         "more than a block keeps": (700, 700, 16)}


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("n", [0, 1, 700])
def test_the_splats_of_patches_are_those_of_the_cpu(device, grid, n):
    rng, (width, height, side) = np.random.default_rng(5), GRIDS[grid]
    patches = make_patches(picture_view(width, height), side)
    low = rng.uniform(-40, (width, height), (n, 2))
    boxes = np.concatenate([low, low + np.exp(rng.uniform(-2, 5, (n, 2)))], axis=1).astype(np.float32)
    boxes[:n // 4] = np.rint(boxes[:n // 4] / side) * side  # on the edges of patches
    table = ArrayTable({"boxes": boxes})
    renderer = types.SimpleNamespace(name="boxes", footprints=lambda view, splats: splats["boxes"])
    want, want_tiles = unit.reach(renderer, patches[0].view, table, patches, 7)
    there = ArrayTable({"boxes": device.array(boxes)})
    got, got_tiles = cuda.reach(device, renderer, patches[0].view, there, patches, 7)
    np.testing.assert_array_equal(got_tiles, want_tiles)
    rows = np.arange(n + 7)
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_array_equal(rows[mine if isinstance(mine, slice) else mine.get()], rows[theirs])


@pytest.mark.parametrize("method", [Gaussian3D, Gaussian2D, Convex3D])
def test_footprints_are_those_of_the_cpu(device, method):
    rng, n = np.random.default_rng(6), 300
    on_cpu, there = method(method.Options()), method.on_device(method.Options(), device)
    columns = {f.name: rng.standard_normal((n, *f.shape)).astype(np.float32) * 30 for f in on_cpu.splat_fields}
    columns["opacities"] = rng.random(n, np.float32)
    if "regions" in columns:
        columns["regions"][:, [2, 4]] = np.square(columns["regions"][:, [2, 4]])
        columns["regions"][0, [2, 4]] = np.inf
    if "radii" in columns:
        columns["radii"] = np.abs(columns["radii"])
    view = picture_view(100, 100)
    got = there.footprints(view, ArrayTable({name: device.array(x) for name, x in columns.items()}))
    want = on_cpu.footprints(view, ArrayTable(columns))
    np.testing.assert_allclose(got.get(), want, rtol=2e-6, atol=1e-4)
    np.testing.assert_array_equal(there.footprints(view, ArrayTable(columns)), want)  # of splats on the host


def points_of(n: int, seed: int) -> PointStore:
    cloud = Cloud(np.zeros((n, 3), np.float32), np.zeros((n, 3), np.float32), np.ones(n, np.float32), np.arange(n))
    attributes, rng = Gaussian3D(Gaussian3D.Options(sh_degree=1)).attributes, np.random.default_rng(seed)
    raw = {a.name: rng.standard_normal(a.init(cloud).shape).astype(np.float32) for a in attributes}
    raw["scales"] -= 4
    return PointStore(attributes, raw, np.sort(rng.choice(10 * n, n, replace=False)) + (1 << 33), (1 << 33) + 10 * n)


def equal_points(store: PointStore, device, there: PointStore) -> None:
    """Compare the points of a store on the device with those of one on the host."""
    there.move(HOST)
    np.testing.assert_array_equal(there.ids, store.ids)
    for group, other in zip(store.columns(), there.columns(), strict=True):
        assert group.keys() == other.keys()
        for name, x in group.items():
            np.testing.assert_allclose(other[name], x, rtol=1e-6, atol=1e-7, err_msg=name)


def test_noise_of_faint_points_is_that_of_the_cpu(device):
    host, there = points_of(500, 7), points_of(500, 7)
    density = MarkovDensity(DensifySettings(strategy="mcmc", prune_opacity=0.3), 100, seed=3 << 40)
    before = host.raw["means"].copy()
    density.after_update(host, 17, 1e-2)
    there.move(device)
    cuda.shake(device, density, there, 17, 1e-2)
    there.move(HOST)
    moved = host.raw["means"] - before
    assert 50 < np.count_nonzero(moved.any(axis=1)) < 450
    np.testing.assert_allclose(there.raw["means"] - before, moved, atol=1e-6 * np.abs(moved).max() + 3e-7)


@pytest.mark.parametrize("strategy", ["default", "mcmc"])
def test_edits_of_points_on_the_device_are_those_on_the_host(device, strategy):
    settings = DensifySettings(strategy=strategy, start=1, every=2, reset_every=4, prune_opacity=0.2, cap=430,
                               grad_threshold=0.5, prune_scale=0.1, split_scale=0.02)
    host, there = points_of(400, 8), points_of(400, 8)
    there.move(device)
    reports = []
    for store in (host, there):
        density, rng = make_density(settings, 100, 1.0, 5), np.random.default_rng(9)
        density.prepare(store)
        for name in store.statistics:
            sums = rng.random(store.n).astype(np.float32) + 0.1
            store.statistics[name] = store.place.array(sums if name == "grad_sum" else np.ones_like(sums))
        reports.append([density.edit(store, step) for step in (4, 6)])
    assert reports[0] == reports[1]
    total = [sum(getattr(r, kind) for r in reports[0]) for kind in ("split", "cloned", "pruned", "reset")]
    assert all(total) if strategy == "default" else reports[0][0].relocated and reports[0][0].added
    assert host.next_id == there.next_id
    equal_points(host, device, there)


@pytest.mark.parametrize("masked", [False, True])
def test_the_loss_of_normals_is_that_of_the_cpu(device, masked):
    rng, view = np.random.default_rng(10), View(np.eye(4, dtype=np.float32),
                                               np.float32([[50, 0, 32], [0, 60, 21], [0, 0, 1]]), 61, 43)
    options, weights = Gaussian2D.Options(depth="intersection"), (0.3, 2.0)
    patch, origin = Patch(view, 16, 0, 61, 32), (6, 0)
    planes = rng.random((5, 42, 55), np.float32)
    planes[0, 5:9, 20:30] = 0
    planes[1] *= 4
    mask = rng.random((42, 55)) < 0.8 if masked else None
    shape = (patch.height, patch.width)
    outputs = Outputs(None, rng.random(shape, np.float32), {"distortion": rng.random(shape, np.float32)})
    on_cpu = Gaussian2D(options, weights=weights, maps=True)
    there = CudaGaussian2D(options, device, weights=weights, maps=True)
    want, v_want = on_cpu.map_loss(patch, outputs, planes, origin, mask)
    on_device = Outputs(None, device.array(outputs.alpha), {"distortion": device.array(outputs.maps["distortion"])})
    got, v_got = there.map_loss(patch, on_device, device.array(planes), origin,
                                device.array(mask) if masked else None)
    assert got == pytest.approx(want, rel=1e-6)
    for x, y in [(v_got.alpha, v_want.alpha), *((v_got.maps[name], v_want.maps[name]) for name in v_want.maps)]:
        np.testing.assert_allclose(x.get(), y, atol=1e-5 * np.abs(y).max())


def test_times_of_phases_are_those_between_marks_of_the_device(device, monkeypatch):
    marks = iter([1.0, 3.0, 3.5, 4.0, 10.0, 10.25])
    monkeypatch.setattr(device, "mark", lambda: next(marks), raising=False)
    timer = DeviceTimer(device)
    for name in ("render", "loss", "render"):
        with timer.region(name):
            pass
    assert timer.seconds() == {"render": 2.25, "loss": 0.5}
    assert timer.phases["render"].calls == 2
    assert "render" in timer.table()
    timer.reset()
    assert timer.seconds() == {"render": 0.0, "loss": 0.0}
