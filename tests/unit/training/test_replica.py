"""Replicas: what is sent, what is not, and errors that do not add up."""

import numpy as np
import pytest

from gaian_hpc.arrays import Attribute
from gaian_hpc.distributed.world import aligned
from gaian_hpc.points.store import PointStore
from gaian_hpc.renderers.base import build_renderer
from gaian_hpc.renderers.gaussian3d import Options
from gaian_hpc.training.replica import Publisher, Replica

ATTRIBUTES: tuple[Attribute, ...] = build_renderer("gaussian3d", Options(), "cpu").attributes


def make_store(n=40, seed=0):
    """Return a store of random points with ids 3, 6, …"""
    rng = np.random.default_rng(seed)
    raw = {a.name: rng.normal(size=(n, *a.shape)).astype(np.float32) for a in ATTRIBUTES}
    return PointStore(ATTRIBUTES, raw, 3 + 3 * np.arange(n), 3 * n + 3)


def message_of(publisher, rows, dst=1):
    """Return a message as it arrives."""
    pieces = publisher.pack(dst, np.asarray(rows))
    return np.concatenate([np.concatenate([p, np.zeros(aligned(len(p)) - len(p), np.uint8)]) for p in pieces])


def move(store, publisher, rows, seed):
    """Change stored values of ``rows`` a little."""
    rng = np.random.default_rng(seed)
    for a in ATTRIBUTES:
        store.write_rows(a.name, rows, store.raw[a.name][rows] + np.float32(0.01) * rng.normal(
            size=(len(rows), *a.shape)).astype(np.float32))
    publisher.change(rows)


def check(store, rows, taken):
    ids, table, _ = taken
    assert ids.tolist() == store.ids[rows].tolist()
    for name, x in store.values.items():
        assert np.array_equal(table[name], x[rows])


def test_a_replica_holds_the_bits_of_what_was_read():
    store = make_store()
    publisher, replica = Publisher(store, 2), Replica(ATTRIBUTES)
    for seed, rows in enumerate(([], [0, 5, 39], [5, 6, 7], np.arange(40))):
        rows = np.asarray(rows, np.int64)
        data = message_of(publisher, rows)
        taken = replica.take(data)
        check(store, rows, taken)
        assert taken[2] == len(data)
        move(store, publisher, np.arange(0, 40, 3), seed)


def test_what_is_held_or_not_read_is_not_sent():
    store = make_store()
    publisher = Publisher(store, 3)
    rows, changed = np.arange(30), np.array([2, 3, 35])
    first, again = len(message_of(publisher, rows)), len(message_of(publisher, rows))
    move(store, publisher, changed, 1)
    third, fourth = len(message_of(publisher, rows)), len(message_of(publisher, rows))
    n_values = sum(a.width for a in ATTRIBUTES)
    assert first - again >= 30 * 4 * n_values
    assert 2 * 4 * n_values <= third - again < 3 * 4 * n_values
    assert fourth == again
    assert len(message_of(publisher, rows, dst=2)) == first


def test_rows_that_come_or_go_are_sent_anew_and_values_alone_are_sent_again():
    store = make_store()
    publisher, replica = Publisher(store, 2), Replica(ATTRIBUTES)
    replica.take(message_of(publisher, np.arange(40)))
    store.keep(np.arange(40) % 2 == 1)
    assert not publisher.is_current
    publisher.refresh()
    check(store, np.arange(20), replica.take(message_of(publisher, np.arange(20))))
    store.write_rows("opacities", np.arange(20), np.full(20, -2, np.float32))
    assert publisher.is_current
    publisher.refresh()
    check(store, np.arange(20), replica.take(message_of(publisher, np.arange(20))))


@pytest.mark.parametrize("codec, bound", [("fp16", 2e-5), ("bf16", 2e-4), ("int8", 5e-4)])
def test_errors_of_lossy_publication_do_not_add_up(codec, bound):
    """Each change is rounded to a share of its own size, however many came before."""
    store, rows = make_store(), np.arange(40)
    publisher, replica = Publisher(store, 2, codec), Replica(ATTRIBUTES, codec)
    check(store, rows, replica.take(message_of(publisher, rows)))
    worst = []
    for seed in range(60):
        move(store, publisher, rows, seed)
        _, table, _ = replica.take(message_of(publisher, rows))
        for name, x in table.items():
            assert np.array_equal(x, publisher._held[1][name])
        worst.append(np.abs(table["means"] - store.values["means"]).max())
    assert 0 < max(worst) < bound
    assert max(worst[40:]) < 2 * max(worst[:20])
