"""Replicated mode: the bits of sharded mode, fewer bytes than its baseline, and lossy publication that stays close."""

import json

import numpy as np
import pytest

from gaian_hpc.checkpoint.reader import latest_checkpoint, read_checkpoint
from gaian_hpc.checkpoint.summary import digest_of_store
from tests.mpi.test_training import result_of, train
from tests.unit.runs import STEPS, VARIANTS, edits_of, metrics_of

pytestmark = pytest.mark.mpi

TWO_VIEWS = {"views_per_step": 2, "patch_size": 32}


def sent(trainer):
    """Collective. Return bytes that crossed ranks, by phase, of all ranks together."""
    return trainer.world.sum(trainer.exchange.ledger.sent[:, 1:].sum(axis=1))


@pytest.mark.parametrize("sync", ["barrier", "quality"])
@pytest.mark.parametrize("name", VARIANTS)
def test_replicas_do_not_change_the_bits(world, city, shared_tmp, alone, name, sync):
    changes, options, edits = VARIANTS[name]
    train(city, shared_tmp, world, {**changes, "mode": "replicated", "sync": sync}, options)
    world.barrier()
    assert result_of(shared_tmp)[:2] == alone(changes, options)[:2]
    assert edits <= edits_of(shared_tmp)


@pytest.mark.parametrize("sync", ["barrier", "quality"])
@pytest.mark.parametrize("changes", [
    {"views_per_step": 5, "exchange.views_in_flight": 1}, {"placement.check_every": 3}, {"checkpoint.every": 5},
], ids=["uneven views", "drains", "checkpoints"])
def test_views_and_drains_do_not_change_the_bits(world, city, shared_tmp, alone, changes, sync):
    changes = {**TWO_VIEWS, **changes}
    train(city, shared_tmp, world, {**changes, "mode": "replicated", "sync": sync})
    world.barrier()
    free = ("exchange.", "placement.", "checkpoint.")
    assert result_of(shared_tmp)[:2] == alone({k: v for k, v in changes.items() if not k.startswith(free)})[:2]


@pytest.mark.parametrize("sync", ["barrier", "quality"])
def test_points_that_move_in_mid_run_do_not_change_the_bits(world, city, shared_tmp, alone, sync):
    from gaian_hpc.distributed.migrate import migrate

    def shuffle_often(trainer):
        trainer.placer.check = lambda step, own, render: migrate(trainer.exchange, trainer.store,
                                                                 (trainer.store.ids * 7 + step) % world.size)

    train(city, shared_tmp, world, {**TWO_VIEWS, "placement.check_every": 3, "mode": "replicated", "sync": sync},
          before=shuffle_often)
    world.barrier()
    assert result_of(shared_tmp)[:2] == alone(TWO_VIEWS)[:2]


def test_a_run_goes_on_in_another_mode_on_another_number_of_ranks(world, sub_world, city, shared_tmp, alone):
    plans = [(6, world.size, "replicated", "quality"), (11, 1, "sharded", "barrier"),
             (16, world.size, "replicated", "barrier"), (STEPS, min(2, world.size), "sharded", "quality")]
    for steps, size, mode, sync in plans:
        part = sub_world(size)
        if part is not None:
            train(city, shared_tmp, part, {**TWO_VIEWS, "steps": steps, "mode": mode, "sync": sync}, resume=steps > 6)
        world.barrier()
    assert result_of(shared_tmp)[:2] == alone(TWO_VIEWS)[:2]


def test_what_is_read_and_changed_is_less_than_everything(world, city, shared_tmp):
    if world.size == 1:
        pytest.skip("one rank sends nothing")
    n_bytes = {}
    for sync in ("barrier", "quality"):
        trainer = train(city, shared_tmp / sync, world, {**TWO_VIEWS, "mode": "replicated", "sync": sync})
        n_bytes[sync] = int(sent(trainer).sum())
    assert n_bytes["quality"] < n_bytes["barrier"]


@pytest.mark.parametrize("codec", ["fp16", "bf16", "int8"])
def test_lossy_publication_stays_close_and_is_shorter(world, city, shared_tmp, alone, codec):
    if world.size == 1:
        pytest.skip("one rank sends nothing")
    changes = {**TWO_VIEWS, "densify.strategy": "none"}
    exact = train(city, shared_tmp / "exact", world, {**changes, "mode": "replicated", "sync": "quality"})
    lossy = train(city, shared_tmp / codec, world, {**changes, "mode": "replicated", "sync": "quality",
                                                    "exchange.publish": codec})
    world.barrier()
    assert sent(lossy)[4] < sent(exact)[4]
    losses = [np.array([m["loss"] for m in metrics_of(shared_tmp / name) if "loss" in m]) for name in ("exact", codec)]
    assert np.abs(losses[0] - losses[1]).max() < 0.01
    stores = [read_checkpoint(latest_checkpoint(shared_tmp / name)).store for name in ("exact", codec)]
    assert len({digest_of_store(store) for store in stores}) == 2


@pytest.mark.parametrize("changes", [{"sync": "throughput"}, {"sync": "quality", "pipeline.validation": "none"},
                                     {"sync": "quality", "pipeline.validation": "hogwild"}],
                         ids=["throughput", "no validation", "hogwild"])
def test_what_reads_late_values_trains_on_replicas_too(world, city, shared_tmp, alone, changes):
    train(city, shared_tmp, world, {**TWO_VIEWS, "mode": "replicated", **changes})
    world.barrier()
    losses, exact = (np.array([m["loss"] for m in lines if "loss" in m])
                     for lines in (metrics_of(shared_tmp), map(json.loads, alone(TWO_VIEWS)[1])))
    assert len(losses) == len(exact) == STEPS and np.abs(losses - exact).max() < 0.12  # of up to 0.5: a few steps late
