"""The jobs from the command line, on a run small enough for a test: train, evaluate, render, export, inspect, bench."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from gaian_hpc.checkpoint.ply import read_gaussian_ply
from gaian_hpc.checkpoint.reader import read_checkpoint
from gaian_hpc.cli import main
from gaian_hpc.config import settings_from_toml

TRAIN = ["--threads", "1", "--data.background", "white", "--densify.start", "4", "--densify.every", "5",
         "--densify.grad_threshold", "3e-3", "--densify.cap", "140", "--log_every", "5", "--renderer.sh_every", "6"]


@pytest.fixture(scope="module")
def run(city, tmp_path_factory):
    """Return a run of 20 steps, trained from the command line; not to be written to."""
    folder = tmp_path_factory.mktemp("jobs") / "run"
    assert main(["train", str(city), "-o", str(folder), "--steps", "20", *TRAIN]) == 0
    return folder


def call(capsys, *words):
    """Run a command that must succeed and return what it printed."""
    capsys.readouterr()
    assert main([str(word) for word in words]) == 0
    return capsys.readouterr().out


def test_train_ends_with_one_line_of_results_that_are_also_written(city, tmp_path, capsys):
    folder = tmp_path / "run"
    printed = call(capsys, "train", city, "-o", folder, "--steps", 5, *TRAIN)
    results = json.loads((folder / "results.json").read_text())
    assert printed.count("\n") == 1
    assert printed.startswith(f"step 5: 128 points, test PSNR {results['psnr']:.2f} dB, SSIM {results['ssim']:.4f} "
                              "(2 views), ")
    assert results["step"] == 5 and results["n_points"] == 128 and results["n_test_views"] == 2


def test_a_run_holds_settings_metrics_timings_results_and_a_checkpoint(run):
    assert {p.name for p in run.iterdir()} == {"checkpoints", "metrics.jsonl", "results.json", "settings.toml",
                                               "timings.jsonl"}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [1, 5, 10, 15, 20]
    assert all(np.isfinite(line["loss"]) and line["n_scope"] > 0 for line in lines if "loss" in line)
    phases = json.loads((run / "timings.jsonl").read_text().splitlines()[-1])["phases"]
    assert {"cull", "splat", "render", "loss", "render_vjp", "splat_vjp", "update"} <= phases.keys()


def test_evaluate_prints_one_json_object_that_agrees_with_the_results_of_training(run, capsys):
    printed = json.loads(call(capsys, "evaluate", run, "--json"))
    results = json.loads((run / "results.json").read_text())
    assert {"psnr", "ssim", "n_points", "views"} <= printed.keys()
    assert (printed["psnr"], printed["ssim"], printed["n_points"]) == (results["psnr"], results["ssim"],
                                                                       results["n_points"])
    assert [v.keys() for v in printed["views"]] == [{"name", "psnr", "ssim"}] * 2
    assert [v["name"] for v in printed["views"]] == ["view_000.png", "view_008.png"]
    assert printed["psnr"] == pytest.approx(np.mean([v["psnr"] for v in printed["views"]]))


def test_evaluate_prints_a_line_a_view_and_their_mean(run, capsys):
    lines = call(capsys, "evaluate", run).splitlines()
    assert [line.split()[0] for line in lines] == ["view_000.png", "view_008.png", "step"]
    assert "(2 views)" in lines[-1]


def test_without_test_views_scores_are_null(city, tmp_path, capsys):
    folder = tmp_path / "run"
    printed = call(capsys, "train", city, "-o", folder, "--steps", 2, "--data.test_every", 0, *TRAIN)
    assert "no test views" in printed
    evaluated = json.loads(call(capsys, "evaluate", folder, "--json"))
    assert (evaluated["psnr"], evaluated["ssim"], evaluated["views"]) == (None, None, [])
    assert json.loads((folder / "results.json").read_text())["psnr"] is None
    assert main(["render", str(folder)]) == 1
    assert "has no test views; choose another --split or give --path" in capsys.readouterr().err


def test_resume_from_the_command_line_keeps_the_settings_of_the_run(run, city, tmp_path, capsys):
    folder, straight = tmp_path / "run", tmp_path / "straight"
    call(capsys, "train", city, "-o", folder, "--steps", 10, *TRAIN)
    call(capsys, "train", city, "-o", folder, "--steps", 20, "--resume")
    assert call(capsys, "inspect", folder, "--digest") == call(capsys, "inspect", run, "--digest")
    assert (folder / "metrics.jsonl").read_bytes() == (run / "metrics.jsonl").read_bytes()
    call(capsys, "train", city, "-o", straight, "--steps", 20, "--config", run / "settings.toml")
    assert call(capsys, "inspect", straight, "--digest") == call(capsys, "inspect", run, "--digest")


def test_results_of_an_earlier_end_do_not_outlive_a_resumed_run_that_fails(run, city, tmp_path, capsys):
    scene, folder = shutil.copytree(city, tmp_path / "scene"), tmp_path / "run"
    call(capsys, "train", scene, "-o", folder, "--steps", 2, *TRAIN)
    assert (folder / "results.json").exists()
    for picture in (scene / "images").iterdir():
        picture.write_bytes(picture.read_bytes()[:-500])
    assert main(["train", str(scene), "-o", str(folder), "--steps", "9", "--resume"]) == 1
    assert not (folder / "results.json").exists()


def test_render_writes_the_test_views_as_png(run, city, tmp_path, capsys):
    printed = call(capsys, "render", run, "-o", tmp_path / "out")
    assert printed == f"2 views of step 20 -> {tmp_path / 'out'}\n"
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["view_000.png", "view_008.png"]
    evaluated = json.loads(call(capsys, "evaluate", run, "--json"))["views"][1]
    image, truth = (np.asarray(Image.open(folder / "view_008.png")).astype(float) / 255
                    for folder in (tmp_path / "out", city / "images"))
    assert -10 * np.log10(np.mean((image - truth) ** 2)) == pytest.approx(evaluated["psnr"], abs=0.02)


def test_render_writes_the_training_views_beside_the_run_by_default(run, tmp_path, capsys):
    copy = shutil.copytree(run, tmp_path / "run")
    call(capsys, "render", copy, "--split", "train")
    assert len(list((copy / "renders").iterdir())) == 8


def path_file(folder, run, names):
    """Write the first test camera of a run as a camera path, once a name."""
    view = next(c.view for c in read_checkpoint(run).cameras if c.is_test)
    pose = np.linalg.inv(view.viewmat.astype(float)) @ np.diag([1, -1, -1, 1])
    frames = [{"transform_matrix": pose.tolist(), **({"file_path": name} if name else {})} for name in names]
    path = folder / "path.json"
    path.write_text(json.dumps({"w": view.width, "h": view.height, "fl_x": float(view.K[0, 0]),
                                "fl_y": float(view.K[1, 1]), "cx": float(view.K[0, 2]), "cy": float(view.K[1, 2]),
                                "frames": frames}))
    return path


def test_a_camera_path_through_a_test_camera_renders_what_the_test_view_renders(run, tmp_path, capsys):
    path = path_file(tmp_path, run, [None, "zoom/last.jpg", "at 0.25", "at 0.75"])
    call(capsys, "render", run, "-o", tmp_path / "views")
    call(capsys, "render", run, "-o", tmp_path / "path", "--path", path)
    written = sorted(str(p.relative_to(tmp_path / "path")) for p in (tmp_path / "path").rglob("*.png"))
    assert written == ["00000.png", "at 0.25.png", "at 0.75.png", "zoom/last.png"]
    view = np.asarray(Image.open(tmp_path / "views" / "view_000.png")).astype(int)
    for name in written:
        assert np.abs(np.asarray(Image.open(tmp_path / "path" / name)).astype(int) - view).max() <= 1


def test_two_cameras_of_a_path_with_one_name_are_refused(run, tmp_path, capsys):
    path = path_file(tmp_path, run, ["a.jpg", "a.png"])
    assert main(["render", str(run), "-o", str(tmp_path / "out"), "--path", str(path)]) == 1
    assert "several cameras would be rendered to a.png" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_training_from_an_exported_ply_starts_where_the_run_ended(run, city, tmp_path, capsys):
    ply = tmp_path / "scene.ply"
    call(capsys, "export", run, "-o", ply)
    again = tmp_path / "again"
    # One step at a rate that moves nothing, with all bands from the start.
    call(capsys, "train", city, "-o", again, "--steps", 1, "--data.init", ply, "--threads", 1,
         "--data.background", "white", "--optimizer.lr_scale", "1e-12", "--renderer.sh_every", 0)
    for folder, source in (("a", run), ("b", again)):
        call(capsys, "render", source, "-o", tmp_path / folder)
    for name in ("view_000.png", "view_008.png"):
        a, b = (np.asarray(Image.open(tmp_path / folder / name)).astype(int) for folder in "ab")
        assert np.abs(a - b).max() <= 1 and a.std() > 5
    call(capsys, "export", again, "-o", tmp_path / "again.ply")
    first, second = read_gaussian_ply(ply), read_gaussian_ply(tmp_path / "again.ply")
    for name, x in first.items():
        np.testing.assert_allclose(second[name], x, atol=1e-5, err_msg=name)


def test_inspect_tells_step_points_and_digest(run, capsys):
    summary = json.loads(call(capsys, "inspect", run, "--json"))
    assert (summary["step"], summary["n_views"], summary["n_test_views"]) == (20, 10, 2)
    assert summary["n_points"] == json.loads((run / "results.json").read_text())["n_points"]
    value = call(capsys, "inspect", run, "--digest")
    assert len(value) == 65 and set(value.strip()) <= set("0123456789abcdef")
    assert call(capsys, "inspect", run / "checkpoints" / "step_0000020" / "scene.h5", "--digest") == value


@pytest.mark.parametrize("words, expected", [
    ([], {"width": 64, "height": 48, "n_points": 128, "views_per_step": 1}),
    (["--points", 300, "--width", 80, "--height", 70], {"width": 80, "height": 70, "n_points": 300}),
    (["--points", 40, "--width", 32, "--views_per_step", 2, "--densify.absgrad", "true"],
     {"width": 32, "height": 24, "n_points": 40, "views_per_step": 2}),
])
def test_bench_step_prints_the_time_of_a_step_and_of_its_phases(city, capsys, words, expected):
    found = json.loads(call(capsys, "bench", "step", city, "--threads", 1, "--repeats", 3, "--json", *words))
    assert {key: found[key] for key in expected} == expected
    assert found["threads"] == 1 and found["repeats"] == 3
    assert 0 < found["n_scope"] <= found["n_points"]
    phases = found["phases_ms"]
    assert {"cull", "splat", "render", "pixels", "loss", "render_vjp", "splat_vjp", "update"} <= phases.keys()
    assert 0 < max(phases.values()) and all(ms >= 0 for ms in phases.values())
    assert 59 * 4 * 3 < found["bytes_per_point"] <= 1024


def test_bench_step_prints_a_table_by_default(city, capsys):
    printed = call(capsys, "bench", "step", city, "--threads", 1, "--repeats", 2)
    assert "ms a step" in printed and "render_vjp" in printed


@pytest.mark.parametrize("variable", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_several_ranks_are_refused_in_one_line(tmp_path, capsys, monkeypatch, variable):
    monkeypatch.setenv(variable, "2")
    assert main(["evaluate", str(tmp_path / "run")]) == 2
    assert "started on 2 ranks, but only `gaian train` and `gaian bench` use more than 1" in capsys.readouterr().err


@pytest.mark.parametrize("variable", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_ranks_that_mpi_does_not_see_are_refused(city, tmp_path, capsys, monkeypatch, variable):
    monkeypatch.setenv(variable, "2")
    assert main(["train", str(city), "-o", str(tmp_path / "run"), "--steps", "1", "--threads", "1"]) == 1
    assert "the launcher started 2 ranks, but MPI" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_one_rank_under_a_launcher_trains(city, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "1")
    call(capsys, "train", city, "-o", tmp_path / "run", "--steps", 1, *TRAIN)


def test_saved_settings_are_those_of_the_command_line(run):
    settings, options = settings_from_toml((run / "settings.toml").read_text())
    assert (settings.steps, settings.densify.cap, settings.data.background, options.sh_every) == (20, 140, "white", 6)
