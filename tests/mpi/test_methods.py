"""Every built-in method keeps the determinism contract: ranks, synchronisation and restarts do not change the bits."""

import pytest

from gaian_hpc.data.scene import load_scene
from gaian_hpc.distributed.world import World
from gaian_hpc.renderers.base import renderer_class
from gaian_hpc.training.trainer import Trainer
from tests.mpi.test_training import result_of
from tests.unit.runs import STEPS, edits_of, make_settings

pytestmark = pytest.mark.mpi

METHODS = ("gaussian3d", "gaussian2d", "gaussian4d", "convex3d")


@pytest.fixture(scope="module")
def moving(world, tmp_path_factory):
    """Return the folder of a scene of twelve 64 × 48 pictures at four times; not to be written to."""
    from gaian_hpc.data.synthetic import write_moving

    folder = None
    if world.is_root:
        folder = write_moving(tmp_path_factory.mktemp("moving") / "scene", n_times=4, n_cameras=3, width=64, height=48,
                              n_points=600, spacing=5.0)
    return world.broadcast(folder)


def train(scene, run, world, method, changes=None, *, resume=False):
    """Collective over ``world``. Train."""
    settings = make_settings({"method": method, "patch_size": 32, **(changes or {})})
    loaded = load_scene(scene, test_every=settings.data.test_every)
    own = {"gaussian2d": {"normal_from": 4, "distortion_weight": 1.0, "distortion_from": 6}}.get(method, {})
    Trainer(loaded, run, settings, renderer_class(method).Options(sh_every=8, **own), resume=resume, world=world).run()


@pytest.fixture(scope="module")
def alone(world, moving, tmp_path_factory):
    """Return a function: the result of one rank by method, computed once."""
    known = {}

    def result(method):
        if method not in known and world.is_root:
            run = tmp_path_factory.mktemp("alone")
            train(moving, run, World(), method)
            assert edits_of(run) >= {"split", "reset"}
            known[method] = result_of(run)
        return world.broadcast(known.get(method))
    return result


@pytest.mark.parametrize(("mode", "sync"), [("sharded", "barrier"), ("sharded", "quality"), ("replicated", "quality")])
@pytest.mark.parametrize("method", METHODS)
def test_neither_ranks_nor_modes_nor_synchronisation_change_the_bits(world, moving, shared_tmp, alone, method, mode,
                                                                     sync):
    train(moving, shared_tmp, world, method, {"mode": mode, "sync": sync})
    world.barrier()
    assert result_of(shared_tmp)[0] == alone(method)[0]


@pytest.mark.parametrize("method", METHODS)
def test_a_run_goes_on_with_the_same_bits_on_another_number_of_ranks(world, sub_world, moving, shared_tmp, alone,
                                                                     method):
    for steps, size in ((11, 1), (STEPS, world.size)):
        part = sub_world(size)
        if part is not None:
            train(moving, shared_tmp, part, method, {"steps": steps}, resume=steps == STEPS)
        world.barrier()
    assert result_of(shared_tmp)[0] == alone(method)[0]
