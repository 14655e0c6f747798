"""What a placement costs, splat by splat on small units."""

import numpy as np
import pytest

from gaian_hpc.placement.profile import Profile
from gaian_hpc.placement.report import crossings, homes, measure
from tests.unit.placement.surveys import survey

HOSTS = np.array([0, 0, 1, 1])


@pytest.fixture
def two_views():
    """Return a profile of four cells and two views of two patches each."""
    return Profile(np.array([10, 10, 10, 30]), np.zeros((4, 3), np.float32), np.array([0, 2, 3, 4, 6]),
                   np.array([0, 1, 2, 3, 0, 3], np.int32), np.array([5, 3, 2, 7, 1, 4]),
                   np.array([0, 0, 1, 1], np.int32), np.zeros(4, np.int64))


def test_bytes_receivers_and_balance_are_those_counted_by_hand(two_views):
    # Cell c belongs to rank c; both views in one unit, patch p on rank renders[p].
    renders, work = np.array([0, 3, 3, 3]), two_views.render_work()
    found = measure(two_views, np.arange(4), HOSTS, [np.array([0, 1])], lambda counts, work: renders, work, 10, 1)
    # Cross: patch 0 reads 3 of rank 1; patch 1 reads 2 of rank 2; patch 3 reads 1 of rank 0, over hosts.
    assert found.bytes_total == (3 + 2 + 1) * 11 and found.bytes_inter_host == 1 * 11
    assert found.bytes_max_receiver == 3 * 10 + 1  # rank 0: splats of patch 0 and a gradient back; rank 3 gets 30
    assert found.remote_share == pytest.approx(6 / 22) and found.inter_host_share == pytest.approx(1 / 22)
    assert found.balance_points == 30 / 15
    assert found.balance_work == pytest.approx((2 + 7 + 5) / (22 / 4))


def test_the_assigner_is_asked_with_the_counts_of_the_unit_in_its_order(two_views):
    asked = []

    def assigner(counts, work):
        asked.append((counts.tolist(), work.tolist()))
        return np.zeros(counts.shape[1], np.int64)

    measure(two_views, np.array([0, 0, 1, 1]), np.zeros(2), [np.array([1]), np.array([1, 0])], assigner,
            two_views.render_work(), 1, 1)
    assert asked[0] == ([[0, 1], [7, 4]], [7, 5])
    assert asked[1] == ([[0, 1, 8, 0], [7, 4, 0, 2]], [7, 5, 8, 2])


def test_costs_are_means_over_units(two_views):
    owners, work = np.arange(4), two_views.render_work()

    def cost(units):
        return measure(two_views, owners, HOSTS, units, lambda counts, _: np.zeros(counts.shape[1], int), work, 2, 1)

    first, second, both = (cost([np.array(u) for u in units]) for units in ([[0]], [[1]], [[0], [1]]))
    assert both.bytes_total == (first.bytes_total + second.bytes_total) / 2
    assert both.balance_work == (first.balance_work + second.balance_work) / 2


def test_crossings_of_all_pairs_add_up_to_all_splats():
    profile = survey()
    owners, renders = np.arange(profile.n_cells) % 5, np.arange(profile.n_patches) % 5
    pairs = crossings(profile, owners, renders, 5)
    assert pairs.sum() == profile.counts.sum()
    assert np.array_equal(pairs.sum(axis=1), np.bincount(owners, weights=profile.read_work(), minlength=5))
    assert np.array_equal(pairs.sum(axis=0), np.bincount(renders, weights=profile.render_work(), minlength=5))


def test_the_home_of_a_view_owns_most_of_what_it_reads(two_views):
    assert homes(two_views, np.array([0, 1, 1, 2]), 3).tolist() == [0, 2]
    assert homes(two_views, np.array([1, 0, 0, 0]), 2).tolist() == [0, 0]
