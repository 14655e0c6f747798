"""The metrics file, through resumes and kills, and the ranks in log lines."""

import json
import logging

import pytest

from gaian_hpc.errors import DataError
from gaian_hpc.log import MetricsLog, get_logger


def write(path, steps, resume_step=None):
    with MetricsLog(path, resume_step) as metrics:
        for step in steps:
            metrics.write(step, loss=1 / step, points=3)


def test_a_line_is_readable_as_soon_as_it_is_written(tmp_path):
    metrics = MetricsLog(tmp_path / "metrics.jsonl")
    metrics.write(10, loss=0.1 + 0.2, points=7)
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 10, "loss": 0.1 + 0.2, "points": 7}
    metrics.close()


def test_a_resumed_file_equals_an_uninterrupted_one(tmp_path):
    write(tmp_path / "whole", [10, 20, 30, 40])
    write(tmp_path / "parts", [10, 20, 30])
    write(tmp_path / "parts", [30, 40], resume_step=20)
    assert (tmp_path / "parts").read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_last_line_cut_by_a_kill_is_dropped_on_resume(tmp_path):
    write(tmp_path / "whole", [10, 20, 30])
    write(tmp_path / "cut", [10, 20])
    with (tmp_path / "cut").open("a") as file:
        file.write('{"step": 3')
    write(tmp_path / "cut", [30], resume_step=20)
    assert (tmp_path / "cut").read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_new_run_empties_the_file(tmp_path):
    write(tmp_path / "metrics", [10, 20])
    write(tmp_path / "metrics", [10])
    assert len((tmp_path / "metrics").read_text().splitlines()) == 1


def test_a_foreign_file_is_named_with_its_line_and_left_alone(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n[1, 2]\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl:2: not a JSON line"):
        MetricsLog(path, resume_step=5)
    assert path.read_text() == '{"step": 1}\n[1, 2]\n'


@pytest.fixture
def restored_logger():
    logger = logging.getLogger("gaian_hpc")
    before = (logger.handlers[:], logger.level, logger.propagate)
    yield
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def test_lines_of_many_ranks_begin_with_the_rank_and_only_the_root_informs(capsys, restored_logger):
    get_logger(3, 16).info("quiet")
    get_logger(3, 16).warning("loud")
    get_logger(0, 16).info("root")
    assert capsys.readouterr().err == "[ 3/16] loud\n[ 0/16] root\n"


def test_lines_of_one_rank_have_no_prefix_and_are_printed_once(capsys, restored_logger):
    get_logger()
    get_logger().info("hello")
    assert capsys.readouterr().err == "hello\n"
