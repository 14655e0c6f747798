"""``gaian plan --schedule`` tells what arranging gains, or what is wrong, in one line."""

import json

import pytest

from gaian_hpc.cli import main


def test_scheduled_units_share_less_than_greedy_ones_and_these_less_than_random_ones(shared_dir, capsys):
    assert main(["plan", str(shared_dir / "data" / "caliterra"), "--schedule", "--views_per_step", "2", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert list(table) == ["window 2", "window 4"]
    for row in table.values():
        assert row["conflict_scheduled"] < row["conflict_greedy"] < row["conflict_random"]
        assert row["acceptance_scheduled"] == 1 - row["conflict_scheduled"]


def test_a_window_of_ones_own_is_told_as_text(shared_dir, capsys):
    assert main(["plan", str(shared_dir / "data" / "sceaux_castle"), "--schedule", "--window", "3"]) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[2:]] == [["window", "3"]]


@pytest.mark.parametrize("window", [-1, 65])
def test_a_window_that_training_would_refuse_is_refused(window, capsys):
    assert main(["plan", "nowhere", "--schedule", "--window", str(window)]) == 2
    error = capsys.readouterr().err
    assert error == f"gaian plan: error: argument --window is {window}; it must be from 0 (2 and 4) to 64\n"
