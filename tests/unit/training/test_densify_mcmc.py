"""Relocation, growth, noise and regularisers of the Markov chain strategy."""

import math

import numpy as np
import pytest

from gaian_hpc.arrays import ArrayTable
from gaian_hpc.rng import normal
from gaian_hpc.settings import DensifySettings
from gaian_hpc.training.densify import make_density
from gaian_hpc.training.densify.geometry import rotate
from gaian_hpc.training.densify.mcmc import sample, share
from tests.unit.training.density import TwoRanks, new_store, part, random_store, same_bits, state


def new_density(gather=None, **settings):
    more = {} if gather is None else {"gather": gather}
    return make_density(DensifySettings(strategy="mcmc", **settings), 30_000, 1.0, 3, **more)


def test_shared_opacity_and_scale_follow_the_double_sum_of_the_paper():
    opacities, copies = np.array([0.006, 0.3, 0.7, 0.999, 0.5]), np.array([2, 3, 7, 51, 51])
    found_opacity, found_factor = share(opacities, copies)
    for o, n, new, factor in zip(opacities, copies, found_opacity, found_factor, strict=True):
        part = 1 - (1 - o) ** (1 / n)
        total = math.fsum(math.comb(i - 1, k) * (-1) ** k * part ** (k + 1) / math.sqrt(k + 1)
                          for i in range(1, n + 1) for k in range(i))
        assert new == pytest.approx(part, rel=1e-9)
        assert factor == pytest.approx(o / total, rel=1e-9)


@pytest.mark.parametrize("n", [2, 3, 10, 51])
def test_copies_together_cover_what_the_one_point_covered(n):
    o = np.linspace(0.005, 0.999, 50)
    new, factor = share(o, np.full(50, n))
    assert np.allclose(1 - (1 - new) ** n, o, rtol=1e-9)
    assert (factor > 0).all() and (np.diff(new) > 0).all()


def test_draws_fall_on_ids_in_proportion_to_their_integer_weights():
    ids, weights = np.array([4, 6, 7, 9]), np.array([2, 0, 3, 1])
    assert sample(ids, weights, np.arange(12, dtype=np.uint64)).tolist() == [4, 4, 7, 7, 7, 9] * 2
    assert len(sample(ids, weights * 0, np.arange(3, dtype=np.uint64))) == 0
    assert len(sample(ids[:0], weights[:0], np.arange(3, dtype=np.uint64))) == 0


def test_a_fresh_run_starts_from_half_opacity_and_a_tenth_of_the_scale():
    store = new_store([0.2, 0.4], [0.1, 0.1])
    assert new_density().initial(store) is None
    assert store.values["opacities"].tolist() == [0.5, 0.5]
    assert np.allclose(store.values["scales"], [[0.02] * 3, [0.04] * 3])


def test_dead_points_move_onto_living_ones_and_share_with_them():
    store = new_store([0.1, 0.2, 0.3, 0.4], [0.005, 0.9, 0.001, 0.0], ids=[2, 4, 5, 9])
    before = state(store)
    report = new_density(cap=4).edit(store, 600)
    assert (report.relocated, report.added, report.n_points) == (3, 0, 4)
    assert store.ids.tolist() == [2, 4, 5, 9]
    opacity, factor = share(np.array([0.9]), np.array([4]))
    assert np.allclose(store.values["opacities"], opacity[0])
    assert np.allclose(store.values["scales"], 0.2 * factor[0])
    for name in ("means", "quats", "sh"):
        assert np.array_equal(store.raw[name], np.repeat(before[f"0/{name}"][1:2], 4, axis=0))
    assert not any(x.any() for x in (*store.first_moments.values(), *store.second_moments.values()))


def test_points_that_take_no_part_in_relocation_keep_values_and_moments():
    store = new_store([0.1] * 40, [0.001] + [0.5] * 39)
    before = state(store)
    assert new_density(cap=40).edit(store, 600).relocated == 1
    changed = np.flatnonzero(store.values["opacities"] != before["4/opacities"])
    assert len(changed) == 2 and changed[0] == 0
    others = np.setdiff1d(np.arange(40), changed)
    for name, x in state(store).items():
        assert np.array_equal(x[others], before[name][others])


def test_growth_is_by_the_factor_until_the_cap_with_new_ids_in_the_order_of_parents():
    store = new_store([0.1] * 100, np.linspace(0.1, 0.9, 100))
    density = new_density(cap=107)
    assert [density.edit(store, step).n_points for step in (600, 700, 800)] == [105, 107, 107]
    assert store.ids.tolist() == list(range(107)) and store.next_id == 107
    parents = [int(np.flatnonzero((store.raw["means"][:100] == x).all(axis=1))[0]) for x in store.raw["means"][100:105]]
    assert parents == sorted(parents)
    for child, parent in enumerate(parents, 100):
        if parents.count(parent) == 1 and child < 105:
            assert store.values["opacities"][child] <= 1 - np.sqrt(1 - np.linspace(0.1, 0.9, 100)[parent]) + 1e-6
    assert not store.first_moments["means"][100:].any()


def test_points_are_added_in_proportion_to_opacity():
    opacities = np.repeat([0.1, 0.3, 0.6], 1000)
    store = new_store([0.1] * 3000, opacities)
    assert new_density(grow_factor=2.0).edit(store, 600).added == 3000
    parents = np.searchsorted(np.sort(store.raw["means"][:3000, 0]), store.raw["means"][3000:, 0])
    classes = np.argsort(store.raw["means"][:3000, 0])[parents] // 1000
    assert np.allclose(np.bincount(classes) / 3000, [0.1, 0.3, 0.6], atol=0.03)


def test_a_scene_of_dead_points_only_is_left_to_the_optimizer():
    store = new_store([0.1] * 3, [0.001] * 3)
    assert new_density(cap=3).edit(store, 600).relocated == 0


@pytest.mark.parametrize("step", [500, 650, 25_000])
def test_nothing_is_edited_off_the_cadence(step):
    store = random_store(30)
    before = state(store)
    assert new_density().edit(store, step) is None
    assert same_bits(before, state(store))


def test_the_noise_follows_the_covariance_and_fades_with_opacity():
    store = random_store(400)
    store.raw["opacities"][:200] = np.float32(-5.3)
    store.refresh()
    before, values = store.raw["means"].astype(np.float64), {k: x.astype(np.float64) for k, x in store.values.items()}
    new_density().after_update(store, 17, 1e-4)
    draws = normal(3, "mcmc.noise", 17, store.ids, (3,)).astype(np.float64)
    draws *= (1e-4 * 5e5 / (1 + np.exp(100 * (values["opacities"] - 0.005))))[:, None]
    expected = rotate(values["quats"], rotate(values["quats"], draws, inverse=True) * values["scales"] ** 2)
    assert np.allclose(store.raw["means"] - before, expected, rtol=1e-4, atol=1e-6)
    assert (store.raw["means"] != before).any(axis=1)[:200].all()
    bright = values["opacities"] > 0.205
    assert np.array_equal(store.raw["means"][bright], before[bright])


def test_regularisers_add_the_gradients_of_mean_opacity_and_mean_scale():
    store, rows = random_store(50), np.arange(4)
    v = ArrayTable({name: np.ones((4, *x.shape[1:]), np.float32) for name, x in store.raw.items()})
    new_density(opacity_reg=0.5, scale_reg=0.3).regularize(store, rows, v, 50)
    assert np.allclose(v["opacities"], 1 + 0.5 / 50)
    assert np.allclose(v["scales"], 1 + 0.3 / 150)
    assert all((v[name] == 1).all() for name in ("means", "quats", "sh"))


def test_two_shards_are_edited_to_the_bits_of_one():
    def run(store, density):
        reports = []
        for step in (600, 700):
            density.after_update(store, step, 1e-4)
            reports.append(density.edit(store, step))
        return store, reports

    def start():
        store = random_store(500)
        store.raw["opacities"][::4] = -6.0
        store.refresh()
        return store

    def work(rank, gather):
        return run(part(start(), (np.arange(500) % 3 == 0) == bool(rank)), new_density(gather, cap=540))
    one, reports = run(start(), new_density(cap=540))
    (first, first_reports), (second, second_reports) = TwoRanks().run(work)
    assert reports == first_reports == second_reports
    assert same_bits(state(one), state(first, second))
    assert (np.diff(first.ids) > 0).all() and one.next_id == first.next_id == second.next_id == 540
    assert reports[0].relocated > 100 and reports[0].added == 25
