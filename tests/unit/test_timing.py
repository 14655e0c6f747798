"""Accumulated time per phase."""

import time

import pytest

from gaian_hpc.timing import PhaseTimer, format_phases


def test_a_phase_accumulates_time_and_entries():
    timer = PhaseTimer()
    for _ in range(3):
        with timer.region("wait"):
            time.sleep(0.01)
    assert timer.phases["wait"].calls == 3
    assert 0.03 <= timer.seconds()["wait"] < 0.3


def test_phases_nested_in_others_are_timed_apart():
    timer = PhaseTimer()
    with timer.region("outer"), timer.region("inner"):
        time.sleep(0.01)
    assert timer.seconds()["outer"] >= timer.seconds()["inner"] >= 0.01


def test_time_before_an_error_counts():
    timer = PhaseTimer()
    with pytest.raises(ValueError), timer.region("fail"):
        raise ValueError
    assert timer.phases["fail"].calls == 1


def test_reset_zeroes_times_and_keeps_regions_usable():
    timer = PhaseTimer()
    with timer.region("a"):
        pass
    timer.reset()
    assert timer.seconds() == {"a": 0.0}
    with timer.region("a"):
        pass
    assert timer.phases["a"].calls == 1


def test_the_table_shows_milliseconds_per_step_shares_and_total():
    timer = PhaseTimer()
    for name, seconds in (("splat", 0.03), ("render", 0.01)):
        with timer.region(name):
            pass
        timer.phases[name].seconds = seconds
    rows = [line.split() for line in timer.table(per=2).splitlines()]
    assert rows == [["splat", "15.000", "ms", "75.0", "%"], ["render", "5.000", "ms", "25.0", "%"],
                    ["total", "20.000", "ms"]]


def test_a_table_without_phases_has_a_total_of_zero():
    assert format_phases({}).split() == ["total", "0.000", "ms"]
