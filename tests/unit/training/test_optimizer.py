"""Adam: golden trajectories, activations, scopes and batches."""

import numba
import numpy as np
import pytest

from gaian_hpc.arrays import ArrayTable, Attribute, LearningRate
from gaian_hpc.points.store import PointStore
from gaian_hpc.settings import OptimizerSettings
from gaian_hpc.training.optimizer import Adam
from tests.golden_adam import TOLERANCE, check_adam

SH_SCALE = (1.0,) * 3 + (0.05,) * 9


def attributes():
    def make(name, shape, activation="identity", rate=0.01, **more):
        return Attribute(name, shape, None, LearningRate(rate, **more.pop("lr", {})), activation, **more)
    return (make("means", (3,), lr={"final": 1e-4, "per_extent": True}), make("scales", (3,), "exp"),
            make("opacities", (), "sigmoid", 0.05), make("sh", (4, 3), lr_scale=SH_SCALE))


def new_store(n=50, seed=0):
    rng = np.random.default_rng(seed)
    raw = {a.name: rng.normal(size=(n, *a.shape)).astype(np.float32) for a in attributes()}
    return PointStore(attributes(), raw, np.arange(n), n)


def gradients(store, rows, seed=1, columns=4):
    rng = np.random.default_rng(seed)
    table = {a.name: rng.normal(size=(len(rows), *a.shape)).astype(np.float32) for a in attributes()}
    table["sh"] = table["sh"][:, :columns]
    return ArrayTable(table, len(rows))


def new_adam(kind="selective", views_per_step=1, **settings):
    return Adam(attributes(), OptimizerSettings(kind=kind, **settings), 2.0, 100, views_per_step)


def state(store):
    return {(i, name): x.copy() for i, group in enumerate(store.columns()) for name, x in group.items()}


def test_dense_and_selective_steps_follow_the_golden_trajectories(shared_dir):
    errors = check_adam(np.load(shared_dir / "golden" / "adam_40x3.npz"))
    assert len(errors) == 13
    assert max(errors.values()) < TOLERANCE, errors


def test_a_first_selective_step_is_the_rate_times_the_moment_ratio():
    store, rows = new_store(), np.array([2, 5, 40])
    before, v = state(store), gradients(store, rows)
    new_adam().update(store, rows, v, 10)
    for a in attributes():
        value = before[4, a.name][rows] if a.activation != "identity" else before[0, a.name][rows]
        value = value.astype(np.float64)
        slope = {"identity": 1.0, "exp": value, "sigmoid": value * (1 - value)}[a.activation]
        g = v[a.name] * slope
        ratio = 0.1 * g / (np.sqrt(0.001 * g * g) + 1e-15)
        rate = {"means": 2.0 * np.exp(0.9 * np.log(0.01) + 0.1 * np.log(1e-4)), "scales": 0.01, "opacities": 0.05,
                "sh": 0.01 * np.array(SH_SCALE).reshape(4, 3)}[a.name]
        assert np.allclose(store.raw[a.name][rows], before[0, a.name][rows] - rate * ratio, rtol=1e-5, atol=1e-6)
        assert np.allclose(store.first_moments[a.name][rows], 0.1 * g, rtol=1e-5)
        assert np.allclose(store.second_moments[a.name][rows], 0.001 * g * g, rtol=1e-5)


def test_selective_steps_leave_rows_out_of_scope_as_they_are():
    store, rows = new_store(), np.array([2, 5, 40])
    adam = new_adam()
    adam.update(store, np.arange(50), gradients(store, np.arange(50)), 1)
    before = state(store)
    adam.update(store, rows, gradients(store, rows), 2)
    others = np.setdiff1d(np.arange(50), rows)
    for (i, name), x in before.items():
        assert np.array_equal(store.columns()[i][name][others], x[others])
        assert (store.columns()[i][name][rows] != x[rows]).any()


def test_dense_steps_move_rows_out_of_scope_by_their_decaying_moments():
    store, rows = new_store(), np.array([2, 5, 40])
    adam = new_adam("dense")
    adam.update(store, np.arange(50), gradients(store, np.arange(50)), 1)
    before = state(store)
    adam.update(store, rows, gradients(store, rows), 2)
    for name in store.raw:
        m, v = 0.9 * before[1, name][7].astype(np.float64), 0.999 * before[2, name][7].astype(np.float64)
        assert np.allclose(store.first_moments[name][7], m, rtol=1e-6)
        assert np.allclose(store.second_moments[name][7], v, rtol=1e-6)
    step = 0.01 * (0.9 * before[1, "scales"][7] / (1 - 0.9**2))
    step /= np.sqrt(0.999 * before[2, "scales"][7] / (1 - 0.999**2))
    assert np.allclose(store.raw["scales"][7], before[0, "scales"][7] - step, rtol=1e-5)


def test_a_dense_step_with_nothing_in_scope_equals_one_with_zero_gradients():
    stores = [new_store(), new_store()]
    for store, rows in zip(stores, (np.arange(0), np.arange(50)), strict=True):
        adam = new_adam("dense")
        adam.update(store, np.arange(50), gradients(store, np.arange(50)), 1)
        n = len(rows)
        zero = ArrayTable({name: np.zeros((n, *x.shape[1:]), np.float32) for name, x in store.raw.items()}, n)
        adam.update(store, rows, zero, 2)
    for key, x in state(stores[0]).items():
        assert np.array_equal(x, state(stores[1])[key])


@pytest.mark.parametrize("kind", ["selective", "dense"])
def test_columns_without_a_gradient_are_not_touched(kind):
    store, rows = new_store(), np.arange(0, 50, 2)
    adam = new_adam(kind)
    adam.update(store, np.arange(50), gradients(store, np.arange(50)), 1)
    before = state(store)
    v = gradients(store, rows, columns=1)
    adam.update(store, rows, ArrayTable({"sh": v["sh"]}, len(rows)), 2)
    for i in range(3):
        found = store.columns()[i]
        assert np.array_equal(found["sh"][:, 1:], before[i, "sh"][:, 1:])
        assert (found["sh"][rows, 0] != before[i, "sh"][rows, 0]).all()
        assert np.array_equal(found["means"], before[i, "means"])


def test_the_leading_columns_learn_at_their_own_rates_when_the_others_have_no_gradient():
    stores = [new_store(), new_store()]
    rows = np.arange(50)
    for store, columns in zip(stores, (4, 2), strict=True):
        v = ArrayTable({"sh": np.ones((50, columns, 3), np.float32)})
        new_adam().update(store, rows, v, 1)
    assert np.array_equal(stores[0].raw["sh"][:, :2], stores[1].raw["sh"][:, :2])


@pytest.mark.parametrize("kind", ["selective", "dense"])
def test_recomputing_activated_values_after_updates_changes_no_bit(kind):
    store, adam = new_store(3000), new_adam(kind, lr_scale=30.0)
    for step in range(1, 6):
        rows = np.arange(step, 3000, 2)
        adam.update(store, rows, gradients(store, rows, step), step)
    before = {name: x.copy() for name, x in store.values.items()}
    resumed = PointStore(store.attributes, store.raw, store.ids, store.next_id)
    store.refresh(np.arange(7, 1800, 3))
    for name, x in before.items():
        assert x.tobytes() == store.values[name].tobytes() == resumed.values[name].tobytes()


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="needs two threads")
@pytest.mark.parametrize("kind", ["selective", "dense"])
def test_one_and_two_threads_give_the_same_bits(kind):
    results = []
    threads = numba.get_num_threads()
    try:
        for n_threads in (1, 2):
            numba.set_num_threads(n_threads)
            store, rows = new_store(5001), np.arange(0, 5001, 3)
            adam = new_adam(kind)
            for step in (1, 2, 3):
                adam.update(store, rows, gradients(store, rows, step), step)
            results.append(state(store))
    finally:
        numba.set_num_threads(threads)
    for key, x in results[0].items():
        assert x.tobytes() == results[1][key].tobytes()


def test_batches_follow_the_square_root_rule():
    adam = new_adam(views_per_step=4)
    assert adam.beta1 == pytest.approx(0.6)
    assert adam.beta2 == pytest.approx(0.996)
    assert adam.eps == pytest.approx(5e-16, abs=0)
    assert adam.learning_rate("scales", 3) == pytest.approx(0.02)
    assert adam.learning_rate("means", 100) == pytest.approx(4e-4)
    assert new_adam(views_per_step=64).beta1 == 0.0


@pytest.mark.parametrize("kind", ["selective", "dense"])
def test_a_batch_so_large_that_nothing_is_remembered_still_steps_by_the_sign(kind):
    store = new_store()
    before, rows = state(store), np.arange(50)
    v = gradients(store, rows)
    new_adam(kind, views_per_step=2000).update(store, rows, v, 1)
    moved = (before[0, "scales"] - store.raw["scales"]) / (0.01 * np.sqrt(2000))
    assert np.allclose(moved, np.sign(v["scales"]), rtol=1e-4)


def test_gradients_of_the_wrong_shape_and_step_zero_are_refused():
    store, adam = new_store(), new_adam()
    rows = np.arange(3)
    with pytest.raises(ValueError, match="count from 1"):
        adam.update(store, rows, gradients(store, rows), 0)
    with pytest.raises(ValueError, match=r"gradient of 'scales' has shape \(3, 4\)"):
        adam.update(store, rows, ArrayTable({"scales": np.zeros((3, 4), np.float32)}), 1)
    with pytest.raises(ValueError, match="gradient of 'scales'"):
        adam.update(store, rows, ArrayTable({"scales": np.zeros((2, 3), np.float32)}), 1)
