"""Which points a unit may read, as the states of earlier units change."""

import numpy as np
import pytest

from gaian_hpc.schedule.scopes import Scopes


@pytest.fixture
def two_units():
    """Unit 1 reads rows 0 to 2 of six; unit 2 is open."""
    scopes = Scopes(6)
    scopes.open(1)
    scopes.decide(1, scopes.free(1), np.array([0, 1, 2]))
    scopes.open(2)
    return scopes


def test_the_first_unit_is_free_to_read_everything():
    scopes = Scopes(4)
    scopes.open(7)
    assert scopes.free(7).tolist() == scopes.undecided(7).tolist() == [0, 1, 2, 3]


def test_points_that_an_earlier_unit_reads_are_not_free_until_it_updated_them(two_units):
    assert two_units.free(2).tolist() == [3, 4, 5]
    two_units.update(1, np.array([1]))
    assert two_units.free(2).tolist() == [1, 3, 4, 5]
    assert two_units.settled(2, np.array([0, 1, 5])).tolist() == [False, True, True]


def test_what_a_unit_has_not_decided_on_is_not_free_for_later_ones(two_units):
    two_units.decide(2, np.array([3, 4, 5]), np.array([4]))
    two_units.open(3)
    assert two_units.free(3).tolist() == [3, 5]  # 0 to 2 are undecided for unit 2
    assert two_units.undecided(2).tolist() == [0, 1, 2]


def test_a_unit_is_finished_when_all_it_reads_is_updated(two_units):
    assert len(two_units.undecided(1)) == 0 and not two_units.is_finished(1)
    two_units.update(1, np.array([0, 1, 2]))
    assert two_units.is_finished(1)
    two_units.close(1)
    assert two_units.free(2).tolist() == list(range(6))


def test_a_unit_that_reads_nothing_is_finished_once_decided():
    scopes = Scopes(3)
    scopes.open(1)
    scopes.decide(1, scopes.free(1), np.empty(0, np.int64))
    assert scopes.is_finished(1)
