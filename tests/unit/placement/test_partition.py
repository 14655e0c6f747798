"""Placement: balanced, local, the same every time, and moved as little as can be."""

import dataclasses

import numpy as np
import pytest

from gaian_hpc.errors import PlacementError
from gaian_hpc.placement.partition import partition, point_and_work_loads, relabel
from tests.unit.placement.surveys import survey

HOSTS = np.repeat(np.arange(4), 2)
METHODS = ("random", "morton", "metis")


def spread(profile, owners, names=None):
    """Return the mean number of ranks, or of hosts, whose points a patch reads."""
    parts = owners if names is None else names[owners]
    key = np.unique(profile.patch_of_entry() * 1000 + parts[profile.cells])
    return len(key) / len(np.unique(profile.patch_of_entry()))


def imbalance(weights, owners, size):
    loads = np.bincount(owners, weights=weights, minlength=size)
    return loads.max() / loads.mean()


@pytest.fixture(scope="module")
def profile():
    return survey()


@pytest.mark.parametrize("method", METHODS)
def test_every_cell_has_one_owner_and_every_rank_its_share(profile, method):
    owners = partition(profile, HOSTS, method=method)
    assert owners.shape == (profile.n_cells,) and owners.min() == 0 and owners.max() == 7
    assert imbalance(profile.cell_sizes, owners, 8) <= 1.5


@pytest.mark.parametrize("method", METHODS)
def test_the_same_profile_is_placed_alike(profile, method):
    first = partition(profile, HOSTS, method=method, seed=3)
    assert np.array_equal(first, partition(profile, HOSTS, method=method, seed=3))


def test_patches_read_fewer_ranks_and_hosts_than_by_chance(profile):
    chance, morton, metis = (partition(profile, HOSTS, method=m) for m in METHODS)
    for names in (None, HOSTS):
        assert spread(profile, metis, names) <= spread(profile, morton, names)
        assert spread(profile, morton, names) < 0.7 * spread(profile, chance, names)


@pytest.mark.parametrize("method", ["morton", "metis"])
@pytest.mark.parametrize("slack", [1.05, 1.2, 1.6])
def test_points_stay_within_their_slack_however_much_work_counts(profile, method, slack):
    assert imbalance(profile.cell_sizes, partition(profile, HOSTS, method=method, work_share=1.0, points_slack=slack),
                     8) <= slack + 1e-9


def test_work_is_more_even_the_more_it_counts(profile):
    even = [imbalance(profile.read_work(), partition(profile, HOSTS, work_share=share, points_slack=10), 8)
            for share in (0.0, 1.0)]
    assert even[1] < 1.15 < even[0]


def test_loads_are_shares_of_points_and_of_reads(profile):
    points, work = point_and_work_loads(profile)
    assert np.allclose(points, profile.cell_sizes / profile.cell_sizes.sum())
    assert np.allclose(work, profile.read_work() / profile.read_work().sum())


@pytest.mark.parametrize("method", METHODS)
def test_ranks_hold_the_shares_they_are_to_hold(profile, method):
    targets = np.array([1, 1, 1, 1, 1, 1, 1, 3.0])
    owners = partition(profile, HOSTS, method=method, work_share=0.0, points_slack=1.1, targets=targets)
    shares = np.bincount(owners, weights=profile.cell_sizes, minlength=8) / profile.cell_sizes.sum()
    assert np.allclose(shares, targets / 10, rtol=0.12)


@pytest.mark.parametrize("method", METHODS)
def test_hosts_may_differ_in_ranks_and_be_named_in_any_order(profile, method):
    owners = partition(profile, np.array([7, 7, 7, 2, 5]), method=method, work_share=0.0, points_slack=1.15)
    assert imbalance(profile.cell_sizes, owners, 5) <= 1.15


@pytest.mark.parametrize("method", METHODS)
def test_more_ranks_than_cells_leave_some_without_points(method):
    few = survey(side=3, n_views=5, reach=1.0)
    owners = partition(few, np.arange(20) // 4, method=method, points_slack=3)
    assert owners.shape == (9,) and ((owners >= 0) & (owners < 20)).all()


@pytest.mark.parametrize("method", METHODS)
def test_one_rank_owns_everything(profile, method):
    assert (partition(profile, np.zeros(1), method=method) == 0).all()


@pytest.mark.parametrize("method", METHODS)
def test_a_profile_that_nobody_reads_and_one_with_empty_cells_are_placed(profile, method):
    nothing = np.zeros(profile.n_patches + 1, np.int64)
    unread = dataclasses.replace(profile, indptr=nothing, cells=profile.cells[:0], counts=profile.counts[:0])
    assert imbalance(unread.cell_sizes, partition(unread, HOSTS, method=method, points_slack=1.3), 8) <= 1.3
    half = np.where(np.arange(profile.n_cells) % 2, profile.cell_sizes, 0)
    holes = dataclasses.replace(profile, cell_sizes=half)
    assert imbalance(half, partition(holes, HOSTS, method=method, points_slack=1.3), 8) <= 1.3


def test_an_unknown_method_and_a_share_of_nothing_are_refused(profile):
    with pytest.raises(PlacementError, match="placement method is 'kahip'; it must be metis, morton or random"):
        partition(profile, HOSTS, method="kahip")
    with pytest.raises(PlacementError, match=r"wanted share of rank 2 is 0.0; it must be positive"):
        partition(profile, np.zeros(3), targets=np.array([1.0, 2.0, 0.0]))


def test_relabelling_undoes_a_renaming_of_hosts_and_of_ranks_within_them(profile):
    before = partition(profile, HOSTS)
    renamed = np.array([5, 4, 6, 7, 1, 0, 3, 2])[before]
    assert np.array_equal(relabel(renamed, before, profile.cell_sizes, HOSTS), before)


def test_relabelling_keeps_parts_of_a_host_together(profile):
    before, new = (partition(profile, HOSTS, seed=s) for s in (0, 5))
    named = relabel(new, before, profile.cell_sizes, HOSTS)
    pairs = {(HOSTS[a], HOSTS[b]) for a, b in zip(new, named, strict=True)}
    assert len(pairs) == 4
    assert (named == before).sum() >= (new == before).sum()


def test_relabelling_does_not_give_a_large_part_to_a_rank_that_wants_a_small_one():
    targets, sizes = np.array([1.0, 3.0]), np.array([10, 10, 10, 10])
    new, before = np.array([0, 1, 1, 1]), np.array([1, 0, 0, 0])
    assert np.array_equal(relabel(new, before, sizes, np.zeros(2), targets), new)
