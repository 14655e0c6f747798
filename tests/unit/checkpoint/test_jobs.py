"""The jobs behind ``gaian inspect`` and ``gaian export``."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from gaian_hpc.checkpoint.ply import read_gaussian_ply
from gaian_hpc.checkpoint.summary import digest_of_store
from gaian_hpc.checkpoint.writer import write_checkpoint
from gaian_hpc.errors import DataError, SettingsError
from gaian_hpc.jobs import export as export_job
from gaian_hpc.jobs import inspect_checkpoint as inspect_job

from .scenes import make_state, make_store, take, write_sharded


@pytest.fixture
def run(tmp_path):
    """Return a run with two checkpoints; the newer has 50 points in three shards and a value that is not finite."""
    write_checkpoint(tmp_path, make_state(make_store(5), step=100))
    state = make_state()
    state.store.raw["means"][0, 0] = np.nan
    write_sharded(tmp_path, state, np.arange(50) % 3, 3)
    return tmp_path


def test_inspect_prints_the_digest_alone(run, capsys):
    state = make_state()
    state.store.raw["means"][0, 0] = np.nan
    expected = digest_of_store(state.store)
    assert inspect_job.inspect(run, digest=True) == 0
    assert capsys.readouterr().out == expected + "\n"
    assert inspect_job.inspect(run / "checkpoints" / "step_0000300", digest=True, as_json=True) == 0
    assert json.loads(capsys.readouterr().out) == {"digest": expected}


def test_inspect_prints_a_summary_as_text_and_as_json(run, capsys):
    assert inspect_job.run(SimpleNamespace(checkpoint=run, digest=False, json=False)) == 0
    text = capsys.readouterr().out
    lines = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}
    assert lines["step"] == ["300"] and lines["points"][0] == "50" and lines["shards"][0] == "3"
    assert lines["points/means"][0] == "Nx3" and lines["points/means"][4] == "1"
    assert 'method = "gaussian3d"' in text and '"psnr": 21.5' in text
    assert inspect_job.run(SimpleNamespace(checkpoint=run, digest=False, json=True)) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["step"], summary["n_points"], summary["points_per_shard"]) == (300, 50, [17, 17, 16])
    assert summary["method_options"] == {"sh_degree": 3} and summary["metrics_tail"][-1]["psnr"] == 21.5
    assert summary["columns"][0]["name"] == "points/means" and summary["columns"][0]["n_nonfinite"] == 1


def test_export_writes_the_newest_points_in_id_order(run, tmp_path, capsys):
    assert export_job.export(run, tmp_path / "scene.ply") == 0
    assert "scene.ply: 50 points of step 300" in capsys.readouterr().out
    found = read_gaussian_ply(tmp_path / "scene.ply")
    wanted = take(make_state().store, slice(1, 50)).raw  # the point that is not finite was written; reading drops it
    for name in wanted:
        assert found[name].tobytes() == wanted[name].tobytes(), name


def test_export_names_what_it_cannot_do(run, tmp_path):
    with pytest.raises(SettingsError, match=r"only \.ply can be written"):
        export_job.export(run, tmp_path / "scene.splat")
    with pytest.raises(DataError, match="there is no such file or folder"):
        export_job.export(tmp_path / "absent", tmp_path / "scene.ply")
    assert not (tmp_path / "scene.ply").exists()


def test_inspect_of_a_scene_without_points_still_prints(tmp_path, capsys):
    state = make_state()
    write_checkpoint(tmp_path, replace(state, store=take(state.store, slice(0, 0)), metrics=()))
    assert inspect_job.inspect(tmp_path) == 0
    assert "points      0 (next id 507), 724 bytes each" in capsys.readouterr().out
