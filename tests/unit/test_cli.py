"""The command line as a user meets it: help, exit codes and one-line errors."""

import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from gaian_hpc import __version__, cli
from gaian_hpc.errors import DataError


@pytest.fixture
def job(monkeypatch):
    """Replace a job module by one whose function records its call, returns ``result`` or raises it."""
    def replace(module, function, result=None):
        calls = []

        def record(*positional, **named):
            calls.append((positional, named))
            if isinstance(result, BaseException):
                raise result
            return result
        monkeypatch.setitem(sys.modules, f"gaian_hpc.jobs.{module}", types.SimpleNamespace(**{function: record}))
        return calls
    return replace


def test_help_names_every_verb(capsys):
    assert cli.main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n  {verb} " in printed for verb in cli.VERBS)


def test_help_takes_less_than_half_a_second():
    def seconds():
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "gaian_hpc.cli", "--help"], check=True, capture_output=True)
        return time.perf_counter() - start
    assert min(seconds() for _ in range(5)) < 0.5


def test_version_is_the_package_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"gaian {__version__}\n"


@pytest.mark.parametrize("verb", [v for v in cli.VERBS])
def test_help_of_every_verb_exits_with_zero(verb, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([verb, "--help"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: gaian {verb}")


def test_help_of_train_lists_settings_with_their_text_and_default(capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "--optimizer.kind {selective,dense}" in printed
    assert "Optimizer steps of the run. (type: int, default: 30000)" in printed
    assert "--renderer.sh_degree" in printed


@pytest.mark.parametrize(("words", "message"), [
    (["trian"], "gaian: error: unknown verb 'trian'; did you mean 'train'? verbs: train, evaluate, "),
    (["evaluate"], "gaian evaluate: error: the following arguments are required: run"),
    (["evaluate", "RUN", "--jsn"], "gaian evaluate: error: unknown argument --jsn; did you mean --json?"),
    (["evaluate", "RUN", "--step", "x"], "gaian evaluate: error: setting step is 'x'; it must be "),
    (["evaluate", "RUN", "--threads", "100000"], "gaian evaluate: error: setting threads is 100000; "),
    (["train", "SCENE"], "gaian train: error: the following arguments are required: output"),
    (["train", "SCENE", "-o", "RUN", "--steps", "0"], "gaian train: error: setting steps is 0; it must be at least 1"),
    (["train", "SCENE", "-o", "RUN", "--config", "absent.toml"], "gaian train: error: absent.toml: cannot read "),
    (["train", "SCENE", "-o", "RUN", "--method", "gausian3d"],
     "gaian train: error: method 'gausian3d' is unknown; did you mean 'gaussian3d'?"),
    (["bench", "step", "SCENE", "--points=-1"], "gaian bench: error: argument --points is -1; it must be at least 0"),
])
def test_usage_errors_are_one_line_with_exit_code_two(words, message, capsys):
    assert cli.main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(message)
    assert err.count("\n") == 1


def test_no_verb_prints_the_overview_with_exit_code_two(capsys):
    assert cli.main([]) == 2
    assert capsys.readouterr().out.startswith("usage: gaian VERB")


def test_train_passes_settings_options_and_paths_to_its_job(job):
    calls = job("train", "run_train", 0)
    assert cli.main(["train", "S", "-o", "R", "--steps", "5", "--resume", "--renderer.sh_degree", "1"]) == 0
    (scene, output, settings, options), named = calls[0]
    assert (scene, output, named["resume"], named["world"].size) == (Path("S"), Path("R"), True, 1)
    assert (settings.steps, options.sh_degree) == (5, 1)


def test_the_exit_code_of_a_job_is_that_of_the_command(job):
    job("evaluate", "run_evaluate", 3)
    assert cli.main(["evaluate", "RUN"]) == 3


def test_a_job_that_returns_nothing_succeeded(job):
    calls = job("evaluate", "run_evaluate")
    assert cli.main(["evaluate", "RUN", "--json", "--step", "7"]) == 0
    assert calls == [((Path("RUN"),), {"as_json": True, "step": 7})]


def test_bad_input_is_one_line_with_exit_code_one(job, capsys):
    job("render", "run_render", DataError("a.png: truncated;\n copy it again"))
    assert cli.main(["render", "RUN"]) == 1
    assert capsys.readouterr().err == "gaian render: error: a.png: truncated; copy it again\n"


def test_debug_shows_the_traceback_of_bad_input(job):
    job("render", "run_render", DataError("a.png: truncated"))
    with pytest.raises(DataError):
        cli.main(["--debug", "render", "RUN"])


def test_a_file_the_system_refuses_is_one_line_naming_it(job, capsys):
    job("render", "run_render", PermissionError(13, "Permission denied", "/locked"))
    assert cli.main(["render", "RUN"]) == 1
    assert capsys.readouterr().err == "gaian render: error: /locked: Permission denied\n"


def test_a_bug_keeps_its_traceback(job):
    job("render", "run_render", ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        cli.main(["render", "RUN"])


def test_an_interrupt_is_one_line_with_exit_code_130(job, capsys):
    job("train", "run_train", KeyboardInterrupt())
    assert cli.main(["train", "S", "-o", "R"]) == 130
    assert capsys.readouterr().err == "gaian train: interrupted\n"
