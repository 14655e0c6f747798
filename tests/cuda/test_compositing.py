"""Sort, tile lists and the compositor, run on the CPU, against numpy and the cpu backend."""

import numpy as np
import pytest

from gaian_hpc.arrays import ArrayTable, Patch, View
from gaian_hpc.backends.sorting import sort_pairs
from gaian_hpc.errors import BackendError
from gaian_hpc.renderers.base import OutputGradients
from gaian_hpc.renderers.compositing import cuda as compositing
from gaian_hpc.renderers.gaussian3d import Gaussian3D
from tests.cuda.emulation.device import emulated_device
from tests.cuda.emulation.module import RANDOM, REVERSE

OPTIONS = Gaussian3D.Options(sh_degree=1, depth=True)
WIDTH, HEIGHT = 61, 45
SUMS = ("means2d", "conics", "opacities", "colors", "depths")


@pytest.fixture(scope="module", params=[(32, False), (64, True)], ids=["warp32", "warp64-deterministic"])
def renderer(request):
    warp, deterministic = request.param
    return Gaussian3D.on_device(OPTIONS, emulated_device(warp, deterministic=deterministic, order=RANDOM))


def scene(n: int, seed: int = 0) -> tuple[View, ArrayTable]:
    rng = np.random.default_rng(seed)
    points = {"means": rng.uniform([-2, -2, 1], [2, 2, 5], (n, 3)), "quats": rng.standard_normal((n, 4)),
              "scales": np.exp(rng.uniform(-4, -1, (n, 3))), "opacities": rng.uniform(0.02, 1, n),
              "sh": rng.standard_normal((n, 4, 3)) * 0.5}
    K = np.array([[50, 0, WIDTH / 2], [0, 50, HEIGHT / 2], [0, 0, 1]], np.float32)
    view = View(np.eye(4, dtype=np.float32), K, WIDTH, HEIGHT)
    return view, ArrayTable({name: x.astype(np.float32) for name, x in points.items()})


def gradients(renderer: Gaussian3D, view: View, patch: Patch, points: ArrayTable):
    """Return outputs and gradients of a patch for random weights."""
    rng = np.random.default_rng(5)
    ids = renderer.cull(view, points)
    splats = renderer.splat(view, points, ids)
    outputs = renderer.render(patch, splats)
    v = OutputGradients(*(rng.standard_normal(x.shape).astype(np.float32) for x in (outputs.color, outputs.alpha)))
    return outputs, renderer.render_vjp(patch, splats, outputs, v)


@pytest.mark.parametrize(("n", "bits"), [(0, 32), (1, 8), (2, 8), (2048, 8), (5000, 20), (4097, 32)])
def test_the_sort_is_stable_and_ascending(renderer, n, bits):
    device, rng = renderer.device, np.random.default_rng(n)
    keys = rng.integers(0, 1 << min(bits, 11), n, np.uint32) << np.uint32(max(bits - 11, 0))
    got_keys, got_rows = sort_pairs(device, device.kernels("ellipses/ellipses.cu"), device.array(keys),
                                    device.array(np.arange(n, dtype=np.uint32)), bits)
    order = np.argsort(keys, kind="stable")
    np.testing.assert_array_equal(got_keys.get(), keys[order])
    np.testing.assert_array_equal(got_rows.get(), order)


def test_tile_lists_are_those_of_the_cpu(renderer):
    view, points = scene(300)
    points["means"][100:200, 2] = points["means"][100, 2]  # equal depths: the order of ids decides
    patch = Patch(view, 16, 16, WIDTH, HEIGHT)
    on_cpu = Gaussian3D(OPTIONS)
    splats = on_cpu.splat(view, points, on_cpu.cull(view, points))
    lists = on_cpu.render(patch, splats).saved.lists
    saved = renderer.render(patch, splats).saved
    np.testing.assert_array_equal(saved.lists.offsets.get(), lists.offsets)
    np.testing.assert_array_equal(saved.lists.items.get(), lists.items)


@pytest.mark.parametrize("corners", [(0, 0, WIDTH, HEIGHT), (32, 16, 48, 32)])
def test_a_patch_and_its_gradient_are_those_of_the_cpu(renderer, corners):
    view, points = scene(400)
    patch = Patch(view, *corners)
    want, v_want = gradients(Gaussian3D(OPTIONS), view, patch, points)
    got, v_got = gradients(renderer, view, patch, points)
    np.testing.assert_allclose(got.color, want.color, atol=2e-5)
    np.testing.assert_allclose(got.alpha, want.alpha, atol=2e-5)
    np.testing.assert_allclose(got.maps["depth"], want.maps["depth"], atol=1e-4)
    for name in SUMS:
        np.testing.assert_allclose(v_got[name], v_want[name], atol=1e-4 * np.abs(v_want[name]).max())


def test_no_splats_are_a_black_patch(renderer):
    view, points = scene(4)
    points["means"][:, 2] = -1
    outputs, v = gradients(renderer, view, Patch(view, 0, 0, WIDTH, HEIGHT), points)
    assert not outputs.color.any()
    assert not outputs.alpha.any()
    assert v["means2d"].shape == (0, 2)


def test_deterministic_sums_do_not_depend_on_the_order_of_threads_and_blocks():
    view, points = scene(300)
    patch = Patch(view, 0, 0, WIDTH, HEIGHT)
    results = [gradients(Gaussian3D.on_device(OPTIONS, emulated_device(deterministic=True, order=order)), view, patch,
                         points)[1] for order in (0, REVERSE, RANDOM)]
    for name in SUMS:
        np.testing.assert_array_equal(results[1][name], results[0][name])
        np.testing.assert_array_equal(results[2][name], results[0][name])


def test_results_lie_where_the_points_do(renderer):
    view, points = scene(50)
    device = renderer.device
    on_device = ArrayTable({name: device.array(x) for name, x in points.items()})
    ids = renderer.cull(view, on_device)
    splats = renderer.splat(view, on_device, ids)
    outputs = renderer.render(Patch(view, 0, 0, WIDTH, HEIGHT), splats)
    for x in (ids, splats["means2d"], outputs.color, outputs.alpha):
        assert type(x) is type(device.empty(1))
    assert type(renderer.cull(view, points)) is np.ndarray
    np.testing.assert_array_equal(ids.get(), renderer.cull(view, points))


def test_more_pairs_than_a_patch_takes_are_an_error(renderer, monkeypatch):
    monkeypatch.setattr(compositing, "_MAX_PAIRS", 10)
    view, points = scene(300)
    with pytest.raises(BackendError, match=r"meets \d+ tiles of splats; one takes at most 10: use smaller patches"):
        gradients(renderer, view, Patch(view, 0, 0, WIDTH, HEIGHT), points)
