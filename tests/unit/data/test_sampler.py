"""Epochs are permutations, units never repeat a view, and any step can be asked for."""

import numpy as np
import pytest

from gaian_hpc.data.sampler import EpochSampler, StratifiedSampler
from gaian_hpc.errors import DataError

SHAPES = [(1, 1), (7, 1), (10, 3), (10, 10), (10, 7), (11, 4), (12, 4), (5, 4), (43, 8), (100, 3)]


@pytest.mark.parametrize("n, size", SHAPES)
def test_each_epoch_visits_each_view_once_also_where_units_cross_epochs(n, size):
    views = np.arange(n) * 3 + 5
    sampler = EpochSampler(views, size, seed=4)
    stream = [i for step in range(3 * n) for i in sampler.unit(step)]
    for epoch in range(len(stream) // n):
        assert sorted(stream[epoch * n:(epoch + 1) * n]) == views.tolist()


@pytest.mark.parametrize("n, size", SHAPES)
def test_no_unit_holds_a_view_twice(n, size):
    sampler = EpochSampler(np.arange(n), size, seed=9)
    for step in range(40 * n):
        assert len(set(sampler.unit(step))) == size


@pytest.mark.parametrize("n, size", SHAPES)
def test_any_step_can_be_asked_for_without_the_steps_before(n, size):
    straight = EpochSampler(np.arange(n), size, seed=1)
    units = [straight.unit(step) for step in range(60)]
    for step in (59, 0, 31, 30, 58):
        assert EpochSampler(np.arange(n), size, seed=1).unit(step) == units[step]
    jumping = EpochSampler(np.arange(n), size, seed=1)
    for step in (59, 3, 59, 20, 21):
        assert jumping.unit(step) == units[step]


def test_epochs_and_seeds_differ():
    def epoch(seed, e):
        sampler = EpochSampler(np.arange(30), 1, seed)
        return [sampler.unit(30 * e + i)[0] for i in range(30)]

    orders = [epoch(seed, e) for seed in (0, 1, -1, 2**63) for e in range(3)]
    assert len({tuple(o) for o in orders}) == 12 and list(range(30)) not in orders


def test_views_are_shuffled_evenly():
    sampler = EpochSampler(np.arange(10), 1, seed=0)
    first = np.bincount([sampler.unit(10 * epoch)[0] for epoch in range(3000)], minlength=10)
    assert (np.abs(first - 300) < 5 * np.sqrt(300)).all()


@pytest.mark.parametrize("size", [0, 6])
def test_more_views_per_step_than_there_are_is_refused(size):
    with pytest.raises(DataError, match=f"views_per_step is {size} but the scene has 5 training views"):
        EpochSampler(np.arange(5), size, seed=0)


HOMES = np.repeat(np.arange(5), [40, 40, 20, 30, 70])


@pytest.mark.parametrize("size", [10, 20, 25, 33])
def test_stratified_units_draw_from_each_home_nearly_its_share(size):
    sampler = StratifiedSampler(np.arange(200), size, seed=2, homes=HOMES)
    shares = size * np.bincount(HOMES) / 200
    for step in range(200 // size):
        drawn = np.bincount(HOMES[list(sampler.unit(step))], minlength=5)
        assert (np.abs(drawn - shares) < 2).all()
    shuffled = [np.bincount(HOMES[list(EpochSampler(np.arange(200), size, 2).unit(s))], minlength=5) for s in range(4)]
    assert max(np.abs(drawn - shares).max() for drawn in shuffled) > 2


@pytest.mark.parametrize(("n", "size"), SHAPES)
def test_stratified_epochs_are_permutations_and_their_units_without_repeats(n, size):
    homes = np.random.default_rng(n).integers(0, 4, n) * 7
    sampler = StratifiedSampler(np.arange(n) + 3, size, seed=4, homes=homes)
    units = [sampler.unit(step) for step in range(3 * n)]
    stream = [i for unit in units for i in unit]
    for epoch in range(len(stream) // n):
        assert sorted(stream[epoch * n:(epoch + 1) * n]) == list(range(3, n + 3))
    assert all(len(set(unit)) == size for unit in units)
    for step in (3 * n - 1, 0, n):
        assert StratifiedSampler(np.arange(n) + 3, size, seed=4, homes=homes).unit(step) == units[step]


def test_stratified_epochs_and_seeds_differ():
    units = {StratifiedSampler(np.arange(200), 40, seed, HOMES).unit(step) for seed in (0, 1) for step in (0, 5, 10)}
    assert len(units) == 6
