"""The parts of density control that strategies share."""

import numpy as np
import pytest

from gaian_hpc.arrays import ArrayTable
from gaian_hpc.errors import SettingsError
from gaian_hpc.points.store import PointStore
from gaian_hpc.settings import DensifySettings
from gaian_hpc.training.densify import make_density, resolve_stop
from gaian_hpc.training.densify.base import rows_of, select_largest
from gaian_hpc.training.densify.geometry import rotate
from tests.unit.training.density import VIEW, TwoRanks, attributes, part, random_store, same_bits, state


def test_the_largest_keys_win_whatever_their_order_and_ties_go_to_smaller_ids():
    ids = np.array([5, 9, 2, 7, 4])
    keys = np.array([1.0, 3.0, 2.0, 2.0, 2.0], np.float32)
    for order in (np.arange(5), np.arange(5)[::-1], np.array([3, 0, 4, 1, 2])):
        assert select_largest(ids[order], keys[order], 3).tolist() == [2, 4, 9]
        assert select_largest(ids[order], keys[order], 9).tolist() == [2, 4, 5, 7, 9]
        assert select_largest(ids[order], keys[order], 0).tolist() == []
        assert select_largest(ids[order], keys[order], -2).tolist() == []


def test_ids_of_other_shards_have_no_rows_here():
    store = random_store(6)
    store.ids = np.array([1, 3, 4, 8, 10, 12])
    rows, positions = rows_of(store, np.array([0, 3, 5, 10, 12, 99]))
    assert rows.tolist() == [1, 4, 5] and positions.tolist() == [1, 3, 4]
    store.keep(np.zeros(6, bool))
    assert [len(x) for x in rows_of(store, np.array([3]))] == [0, 0]


def test_quaternions_rotate_as_their_matrices_do_and_back():
    rng = np.random.default_rng(0)
    q, v = rng.normal(size=(20, 4)), rng.normal(size=(20, 3))
    w, x, y, z = (q / np.linalg.norm(q, axis=1, keepdims=True)).T
    matrix = np.array([[1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
                       [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
                       [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)]])
    turned = rotate(q, v)
    assert np.allclose(turned, np.einsum("ijn,nj->ni", matrix, v))
    assert np.allclose(rotate(q, turned, inverse=True), v)
    assert np.allclose(rotate(np.zeros((1, 4)), v[:1]), v[:1])


@pytest.mark.parametrize(("settings", "steps", "stop"), [
    (DensifySettings(), 30_000, 15_000), (DensifySettings(), 100_000, 15_000), (DensifySettings(), 2000, 1000),
    (DensifySettings(strategy="mcmc"), 30_000, 25_000), (DensifySettings(strategy="mcmc"), 6000, 5000),
    (DensifySettings(stop=700), 30_000, 700),
])
def test_edits_stop_at_the_set_step_or_at_the_share_of_the_run(settings, steps, stop):
    assert resolve_stop(settings, steps) == stop


def test_the_strategy_none_changes_nothing_but_keeps_to_the_cap():
    store = random_store(100)
    density = make_density(DensifySettings(strategy="none", cap=30), 1000, 1.0, 7)
    report = density.initial(store)
    assert (store.n, report.pruned, report.n_points) == (30, 70, 30)
    before = state(store)
    density.prepare(store)
    density.observe(store, VIEW, np.arange(3), ArrayTable({"means2d": np.ones((3, 2), np.float32)}))
    density.after_update(store, 600, 1.0)
    assert density.edit(store, 600) is None
    assert same_bits(before, state(store))
    assert density.initial(store) is None


def test_thinning_to_the_cap_keeps_the_same_points_whatever_the_shards_and_others_for_another_seed():
    def thinned(seed):
        store = random_store(400)
        make_density(DensifySettings(strategy="none", cap=100), 1000, 1.0, seed).initial(store)
        return store

    def work(rank, gather):
        shard = part(random_store(400), np.arange(400) % 3 == 0 if rank else np.arange(400) % 3 != 0)
        make_density(DensifySettings(strategy="none", cap=100), 1000, 1.0, 7, gather=gather).initial(shard)
        return shard
    assert same_bits(state(thinned(7)), state(*TwoRanks().run(work)))
    assert not np.array_equal(thinned(7).ids, thinned(8).ids)


@pytest.mark.parametrize("strategy", ["default", "mcmc"])
def test_a_method_without_the_needed_attributes_is_refused_by_name(strategy):
    table = tuple(a for a in attributes() if a.name != "scales")
    store = PointStore(table, {a.name: np.zeros((2, *a.shape), np.float32) for a in table}, np.arange(2), 2)
    density = make_density(DensifySettings(strategy=strategy), 1000, 1.0, 0)
    with pytest.raises(SettingsError, match=f"'{strategy}' needs the attribute 'scales'.*strategy to 'none'"):
        density.prepare(store)
