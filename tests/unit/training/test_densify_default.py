"""Clone, split, prune and reset."""

import numpy as np
import pytest

from gaian_hpc.arrays import ArrayTable
from gaian_hpc.errors import GaianError
from gaian_hpc.rng import normal
from gaian_hpc.settings import DensifySettings
from gaian_hpc.training.densify import make_density
from gaian_hpc.training.densify.geometry import rotate
from tests.unit.training.density import VIEW, TwoRanks, new_store, part, random_store, same_bits, state

SMALL, LARGE, HUGE = 0.005, 0.05, 0.5  # of an extent of 1: cloned, split, pruned once past the first reset


def new_density(views_per_step=1, gather=None, **settings):
    """The strategy with the reference's bound on sizes, which is off by default."""
    more = {} if gather is None else {"gather": gather}
    return make_density(DensifySettings(**{"prune_scale": 0.1, **settings}), 30_000, 1.0, 3, views_per_step, **more)


def with_averages(density, store, averages):
    density.prepare(store)
    store.statistics["grad_sum"][:] = averages
    store.statistics["count"][:] = 1.0
    return store


def test_the_statistic_is_the_gradient_in_normalised_coordinates_of_one_view_averaged_over_views():
    density, store = new_density(views_per_step=2), random_store(6)
    density.prepare(store)
    for rows in ([1, 4], [4, 5]):
        v = ArrayTable({"means2d": np.array([[0.3, 0.0], [0.3, 0.5]], np.float32),
                        "absgrad": np.full((2, 2), 9, np.float32)})
        density.observe(store, VIEW, np.array(rows), v)
    # 0.3 · 50 px · 2 views, and the hypotenuse with 0.5 · 40 px · 2 views
    assert store.statistics["grad_sum"] == pytest.approx([0, 30, 0, 0, 30 + 50, 50])
    assert store.statistics["count"].tolist() == [0, 1, 0, 0, 2, 1]


def test_absgrad_replaces_the_gradient_and_the_threshold():
    density = new_density(absgrad=True)
    store = with_averages(density, new_store([SMALL] * 3, [0.5] * 3), [0.0007, 0.0009, 0.0])
    v = ArrayTable({"means2d": np.zeros((1, 2), np.float32), "absgrad": np.array([[3.0, 4.0]], np.float32)})
    density.observe(store, VIEW, np.array([2]), v)
    assert store.statistics["grad_sum"][2] == pytest.approx(np.hypot(150, 160))
    assert density.edit(store, 600).cloned == 2


def test_small_points_are_cloned_large_ones_split_and_faint_ones_pruned():
    density = new_density()
    scales, opacities = [SMALL, LARGE, SMALL, LARGE, SMALL, LARGE], [0.5, 0.5, 0.004, 0.004, 0.5, 0.5]
    store = with_averages(density, new_store(scales, opacities, ids=[3, 5, 6, 8, 10, 11]),
                          [2e-4, 2e-4, 1, 1, 1.9e-4, 1.9e-4])
    before = state(store)
    report = density.edit(store, 600)
    assert (report.cloned, report.split, report.pruned, report.n_points) == (1, 1, 2, 6)
    assert store.ids.tolist() == [3, 10, 11, 12, 13, 14] and store.next_id == 15
    for name, x in store.raw.items():
        assert np.array_equal(x[:3], before[f"0/{name}"][[0, 4, 5]])
        assert np.array_equal(x[3], before[f"0/{name}"][0])
    for name in ("quats", "sh", "opacities"):
        assert np.array_equal(store.raw[name][4:], before[f"0/{name}"][[1, 1]])
    assert np.allclose(store.values["scales"][4:], LARGE / 1.6)
    offsets = rotate(before["0/quats"][[1, 1]], normal(3, "densify.split", 600, np.array([5]), (2, 3))[0] * LARGE)
    assert np.allclose(store.raw["means"][4:], before["0/means"][1] + offsets, atol=1e-6)
    assert all((x[:3] == 1).all() and (x[3:] == 0).all() for x in store.first_moments.values())
    assert all((x[:3] == 1).all() and (x[3:] == 0).all() for x in store.second_moments.values())
    assert not any(x.any() for x in store.statistics.values())


def test_children_of_a_split_are_spread_like_their_parent():
    n = 4000
    density = new_density()
    store = with_averages(density, new_store([LARGE] * n, [0.5] * n), 1.0)
    store.raw["scales"][:] = np.log(np.array([0.1, 0.02, 0.005], np.float32))
    store.raw["quats"][:] = [0.5, 0.5, 0.5, 0.5]  # x -> y -> z -> x
    store.refresh()
    store.raw["means"][:] = 0.0
    assert density.edit(store, 600).split == n
    spread = np.cov(store.raw["means"].T)
    assert np.allclose(np.sqrt(np.diag(spread)), [0.005, 0.1, 0.02], rtol=0.05)


@pytest.mark.parametrize("step", [500, 550, 15_000, 20_000, 0])
def test_nothing_is_edited_off_the_cadence(step):
    density = new_density()
    store = with_averages(density, random_store(40), 1.0)
    before = state(store)
    assert density.edit(store, step) is None
    assert same_bits(before, state(store))


def test_oversized_points_are_pruned_only_past_the_first_reset():
    def edited(step):
        density = new_density()
        store = with_averages(density, new_store([SMALL, HUGE, HUGE, 0.12], [0.5] * 4), [0, 0, 1, 1])
        report = density.edit(store, step)
        return report.split, report.pruned, report.n_points
    assert edited(2900) == edited(3000) == (2, 0, 6)
    # Past it the children of point 2 would still be too large, those of point 3 are not.
    assert edited(3100) == (1, 2, 3)


def test_by_default_no_point_is_too_large():
    density = new_density(prune_scale=DensifySettings().prune_scale)
    store = with_averages(density, new_store([SMALL, HUGE], [0.5] * 2), [0, 0])
    report = density.edit(store, 3100)
    assert (report.pruned, report.n_points) == (0, 2)


def test_an_oversized_point_that_finds_no_place_under_the_cap_is_pruned():
    density = new_density(cap=4)
    store = with_averages(density, new_store([0.12, 0.12, SMALL], [0.5] * 3), [1, 2, 0])
    report = density.edit(store, 3100)
    assert (report.split, report.pruned, report.n_points) == (1, 1, 3)
    assert store.ids.tolist() == [2, 3, 4]


def test_opacities_are_reset_at_their_cadence_and_their_moments_forgotten():
    density = new_density()
    store = with_averages(density, new_store([SMALL] * 3, [0.5, 0.008, 0.02]), 0.0)
    raw = store.raw["opacities"].copy()
    report = density.edit(store, 6000)
    assert report.reset == 2 and report.n_points == 3
    assert np.allclose(store.values["opacities"], [0.01, 0.008, 0.01])
    assert store.raw["opacities"][1] == raw[1]
    assert not store.first_moments["opacities"].any() and not store.second_moments["opacities"].any()
    assert store.first_moments["means"].all()
    assert new_density(reset_every=0).edit(store, 500) is None


def test_the_cap_is_met_exactly_by_the_largest_statistics_after_pruning_frees_places():
    density = new_density(cap=8)
    opacities = [0.5, 0.5, 0.5, 0.5, 0.001, 0.5]
    store = with_averages(density, new_store([SMALL, LARGE] * 3, opacities), [1.0, 5.0, 3.0, 3.0, 9.0, 3.0])
    report = density.edit(store, 600)
    # 5 points stay, 3 places: ids 1, then 2 and 3 among the ties 2, 3 and 5
    assert (report.cloned, report.split, report.pruned, report.n_points) == (1, 2, 1, 8)
    assert store.ids.tolist() == [0, 2, 5, 6, 7, 8, 9, 10]
    store = with_averages(density, store, 1.0)
    assert density.edit(store, 700).n_points == 8


def test_a_scene_above_its_cap_does_not_grow():
    density = new_density(cap=4)
    store = with_averages(density, new_store([SMALL] * 6, [0.5] * 6), 1.0)
    report = density.edit(store, 600)
    assert (report.cloned, report.n_points) == (0, 6)


def test_pruning_every_point_is_an_error_that_names_the_step_and_the_mend():
    density = new_density()
    store = with_averages(density, new_store([SMALL] * 3, [0.001] * 3), 1.0)
    before = state(store)
    with pytest.raises(GaianError, match=r"all points were pruned at step 600; lower densify\.prune_opacity"):
        density.edit(store, 600)
    assert same_bits(before, state(store))


@pytest.mark.parametrize("cap", [0, 520])
@pytest.mark.parametrize("step", [600, 3000, 3300])
def test_two_shards_are_edited_to_the_bits_of_one(cap, step):
    averages = np.random.default_rng(5).choice([0, 1e-4, 2e-4, 3e-4, 8e-4], 500)

    def start(gather=None):
        density = new_density(cap=cap, gather=gather)
        return density, with_averages(density, random_store(500), averages)

    def work(rank, gather):
        density, store = start(gather)
        shard = part(store, (np.arange(500) % 3 == 0) == bool(rank))
        return shard, [density.edit(shard, step), density.edit(shard, step + 3000)]
    density, one = start()
    reports = [density.edit(one, step), density.edit(one, step + 3000)]
    (first, first_reports), (second, second_reports) = TwoRanks().run(work)
    assert reports == first_reports == second_reports
    assert same_bits(state(one), state(first, second))
    assert one.next_id == first.next_id == second.next_id
    assert (np.diff(first.ids) > 0).all() and first.n and second.n
    assert reports[0].split and reports[0].cloned and reports[0].pruned


def test_a_run_resumed_from_its_arrays_edits_as_the_run_that_went_on():
    density, store = new_density(), random_store(200)
    density.prepare(store)
    v = np.random.default_rng(1).normal(size=(2, 200, 2)).astype(np.float32) * 1e-5
    density.observe(store, VIEW, np.arange(200), ArrayTable({"means2d": v[0]}))
    resumed, fresh = part(store, np.ones(200, bool)), new_density()
    fresh.prepare(resumed)
    for d, s in ((density, store), (fresh, resumed)):
        d.observe(s, VIEW, np.arange(200), ArrayTable({"means2d": v[1]}))
        d.edit(s, 600)
    assert store.n > 200
    assert same_bits(state(store), state(resumed))


def test_points_flat_in_one_direction_split_within_their_plane():
    density = new_density()
    store = with_averages(density, new_store([LARGE] * 50, [0.5] * 50, scale_axes=2), 1.0)
    store.raw["quats"][:] = [1.0, 0.0, 0.0, 0.0]
    heights = store.raw["means"][:, 2].copy()
    density.edit(store, 600)
    assert np.array_equal(store.raw["means"][:, 2], np.repeat(heights, 2))
