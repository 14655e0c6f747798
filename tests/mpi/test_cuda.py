"""Runs of several ranks with the cuda backend, its kernels on the CPU, each rank with a device of its own."""

import pytest

from gaian_hpc.backends import cuda
from gaian_hpc.data.cache import PictureCache
from gaian_hpc.data.scene import load_scene
from gaian_hpc.distributed import device
from gaian_hpc.distributed.exchange import Exchange
from gaian_hpc.distributed.world import AgreedError
from gaian_hpc.evaluation.views import evaluate_views
from gaian_hpc.renderers.gaussian3d import Gaussian3D
from tests.cuda.emulation.device import DeviceArray, emulated_device
from tests.cuda.emulation.module import COMPILER, has_compiler
from tests.mpi.test_training import result_of, train

pytestmark = [pytest.mark.mpi, pytest.mark.skipif(not has_compiler(), reason=f"no C++ compiler {COMPILER!r}")]


VARIANTS = {"default": {}, "two views in many patches": {"views_per_step": 2, "patch_size": 32},
            "random background": {"data.background": "random"}, "convexes": {"method": "convex3d", "patch_size": 32},
            "direct": {"exchange.gpu": "direct"}}


@pytest.fixture(autouse=True)
def emulated_gpus(world, monkeypatch):
    """Give each rank an emulated GPU, and an MPI library that says it takes its pointers."""
    monkeypatch.setattr(cuda, "visible_devices", lambda: tuple(f"emulated {k}" for k in range(world.size)))
    monkeypatch.setattr(cuda, "open_device", lambda number=0, **settings: emulated_device(**settings))
    monkeypatch.setattr(device, "takes_device_pointers", lambda: True)


@pytest.mark.parametrize("name", VARIANTS)
def test_ranks_do_not_change_the_bits_of_deterministic_sums(world, city, shared_tmp, tmp_path_factory, name):
    changes, alone = {"backend": "cuda", "deterministic": True, **VARIANTS[name]}, None
    train(city, shared_tmp, world, changes)
    world.barrier()
    if world.is_root:
        from gaian_hpc.distributed.world import World

        run = tmp_path_factory.mktemp("alone")
        train(city, run, World(), changes)
        alone = result_of(run)
    assert result_of(shared_tmp) == world.broadcast(alone)


def test_direct_messages_leave_only_counts_and_sums_to_the_host(world, city, shared_tmp, monkeypatch):
    fetched, get = [], DeviceArray.get
    monkeypatch.setattr(DeviceArray, "get", lambda x, **to: (fetched.append(x.nbytes), get(x, **to))[1])
    store = train(city, shared_tmp, world, {"backend": "cuda", "exchange.gpu": "direct", "steps": 4, "patch_size": 32,
                                            "views_per_step": 2, "densify.strategy": "none",
                                            "placement.check_every": 1000},
                  before=lambda trainer: fetched.clear()).store
    n_arrays = 1 + sum(len(group) for group in store.columns())
    assert fetched and max(fetched[:-n_arrays]) <= 4 * 3 * 2 * 32  # of loss and maps, a view, channel and tile


def test_test_views_are_rendered_where_the_points_are(world, city, shared_tmp):
    scores, scene = [], load_scene(city)
    views = [scene.views[i] for i in scene.test_idx]
    trainer = train(city, shared_tmp, world, {"backend": "cuda", "steps": 5})
    values, ids = trainer.store.values, trainer.store.ids
    on_cpu = Gaussian3D(Gaussian3D.Options(sh_every=8)).at_step(5)
    with PictureCache(scene, 1 << 24, 0) as pictures:
        for renderer, exchange in ((trainer.renderer.at_step(5), trainer.exchange), (on_cpu, Exchange(
                world, on_cpu.splat_fields, on_cpu.gradient_fields))):
            scores.append(evaluate_views(renderer, values, views, pictures, patch_size=32, ids=ids, exchange=exchange))
    for mine, theirs in zip(*scores, strict=True):
        assert mine.psnr == pytest.approx(theirs.psnr, abs=1e-3) and mine.ssim == pytest.approx(theirs.ssim, abs=1e-4)


@pytest.mark.parametrize("strategy", ["default", "mcmc"])
def test_edits_on_devices_do_not_depend_on_ranks(world, city, shared_tmp, tmp_path_factory, strategy):
    changes, alone = {"backend": "cuda", "deterministic": True, "densify.strategy": strategy}, None
    train(city, shared_tmp, world, changes)
    world.barrier()
    if world.is_root:
        from gaian_hpc.distributed.world import World

        run = tmp_path_factory.mktemp("alone")
        train(city, run, World(), changes)
        alone = result_of(run)
    assert result_of(shared_tmp) == world.broadcast(alone)


@pytest.mark.parametrize("codec", ["fp32", "int8"])
def test_direct_and_staged_messages_carry_the_same(world, city, shared_tmp, codec):
    results = []
    for path in ("direct", "staged"):
        run = shared_tmp / path
        trainer = train(city, run, world, {"backend": "cuda", "deterministic": True, "exchange.codec": codec,
                                           "exchange.gpu": path, "steps": 20})
        world.barrier()
        results.append((result_of(run), trainer.exchange.ledger.sent.tolist()))
    assert results[0] == results[1]


def test_direct_asks_for_a_library_that_takes_pointers(world, city, shared_tmp, monkeypatch):
    if world.size == 1:
        pytest.skip("one rank sends nothing")
    monkeypatch.setattr(device, "takes_device_pointers", lambda: world.rank == 0)
    with pytest.raises(AgreedError, match="the MPI library does not say that it takes pointers"):
        train(city, shared_tmp, world, {"backend": "cuda", "exchange.gpu": "direct"})


def test_more_ranks_than_devices_are_told_on_all(world, city, shared_tmp, monkeypatch):
    if world.size == 1:
        pytest.skip("one rank has the one device")
    monkeypatch.setattr(cuda, "visible_devices", lambda: ("emulated",))
    with pytest.raises(AgreedError, match="ranks of this node see 1 GPUs; start at most one rank a GPU"):
        train(city, shared_tmp, world, {"backend": "cuda"})
