"""Bad input from the command line: one line that names the file, exit code 1 (2 for usage), no result."""

import json
import shutil

import h5py
import numpy as np
import pytest

from gaian_hpc.cli import main
from tests.unit.data.colmap_files import ring_model, write_scene, write_text

SHORT = ["--steps", "3", "--threads", "1"]
EPOCH = ["--steps", "8", "--threads", "1"]  # sees each of the eight training pictures


def complaint(capsys, code, *words):
    """Run a command that must fail with ``code`` and return its one line of complaint."""
    capsys.readouterr()
    assert main([str(word) for word in words]) == code
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if f"gaian {words[0]}: error: " in line]
    assert out == "" and len(lines) == 1 and "Traceback" not in err
    assert err.splitlines()[-1] == lines[0]
    return lines[0]


def assert_not_trained(run):
    """Fail if the folder holds anything that a later command could take for a trained run."""
    assert not (run / "checkpoints").exists() and not (run / "results.json").exists()


@pytest.fixture
def scene(city, tmp_path):
    return shutil.copytree(city, tmp_path / "scene")


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


def remove(path):
    path.unlink()


def halve(path):
    path.write_bytes(path.read_bytes()[:path.stat().st_size // 2])


def nan_focal(path):
    text = path.read_text()
    assert text.count("57.5999985") == 2
    path.write_text(text.replace("57.5999985", "nan", 1))


def nan_pose(path):
    lines = path.read_text().splitlines()
    row = next(i for i, line in enumerate(lines) if line.endswith(" view_004.png"))
    words = lines[row].split()
    words[5] = "nan"
    path.write_text("\n".join([*lines[:row], " ".join(words), *lines[row + 1:]]) + "\n")


def no_points(path):
    path.write_text("# no points\n")


@pytest.mark.parametrize("name, damage, message", [
    ("images/view_003.png", remove, "view_003.png does not exist (1 of 10 pictures are missing); restore"),
    ("images/view_003.png", halve, "view_003.png cannot be decoded"),
    ("images/view_003.png", lambda p: p.write_bytes(b"not a picture"), "view_003.png cannot be decoded (it is not a p"),
    ("sparse/0/cameras.txt", halve, "cameras.txt"),
    ("sparse/0/cameras.txt", remove, "scene"),
    ("sparse/0/cameras.txt", nan_focal, "cameras.txt"),
    ("sparse/0/images.txt", halve, "images.txt"),
    ("sparse/0/images.txt", nan_pose, "images.txt"),
    ("sparse/0/points3D.txt", halve, "points3D.txt"),
    ("sparse/0/points3D.txt", no_points, "has no start points; use --data.init random"),
], ids=str)
def test_a_damaged_scene_is_one_line_naming_the_file(scene, run, capsys, name, damage, message):
    damage(scene / name)
    line = complaint(capsys, 1, "train", scene, "-o", run, *EPOCH)
    assert message in line and str(scene) in line
    assert_not_trained(run)


@pytest.mark.parametrize("name", ["cameras.bin", "images.bin", "points3D.bin"])
def test_a_truncated_binary_model_is_one_line_naming_the_file(tmp_path, run, capsys, name):
    scene = write_scene(tmp_path / "binary")
    halve(scene / "sparse" / "0" / name)
    assert str(scene / "sparse" / "0" / name) in complaint(capsys, 1, "train", scene, "-o", run, *SHORT)
    assert_not_trained(run)


def test_a_scene_of_one_view_is_one_line(tmp_path, run, capsys):
    scene = write_scene(tmp_path / "lonely", ring_model(n_images=1))
    line = complaint(capsys, 1, "train", scene, "-o", run, *SHORT)
    assert f"{scene}/sparse/0 has 1 view; training needs at least 2" in line
    assert_not_trained(run)


def test_a_nan_pose_in_a_ring_is_one_line(tmp_path, run, capsys):
    model = ring_model()
    q, _, *rest = model.images[3]
    model.images[3] = (q, (0.0, float("nan"), 3.0), *rest)
    scene = write_scene(tmp_path / "ring", model, write_text)
    assert "picture_002.png" in complaint(capsys, 1, "train", scene, "-o", run, *SHORT)


def test_a_folder_that_is_no_scene_or_not_there_is_one_line(tmp_path, run, capsys):
    assert "is not a scene" in complaint(capsys, 1, "train", tmp_path, "-o", run, *SHORT)
    assert "is not a folder" in complaint(capsys, 1, "train", tmp_path / "absent", "-o", run, *SHORT)
    assert not run.exists()


def test_all_views_held_out_is_one_line(city, run, capsys):
    line = complaint(capsys, 1, "train", city, "-o", run, "--data.test_every", 1, *SHORT)
    assert "all 10 views are test views" in line


@pytest.mark.parametrize("words, message", [
    (["--stepz", 3], "unknown argument --stepz; did you mean --steps?"),
    (["--densify.cap", -1], "setting densify.cap is -1; it must be at least 0"),
    (["--data.init", "points.obj"], "setting data.init is 'points.obj'; it must be sfm, random or a .ply path"),
    (["--optimizer.kind", "sgd"], "setting optimizer.kind is 'sgd'; it must be "),
    (["--renderer.sh_degree", 4], "renderer.sh_degree is 4"),
    (["--data.near", "nan"], "setting data.near is 'nan'; it must be of type float"),
])
def test_a_wrong_setting_is_one_line_of_usage(city, run, capsys, words, message):
    assert message in complaint(capsys, 2, "train", city, "-o", run, *SHORT, *words)
    assert not run.exists()


@pytest.mark.parametrize("content, message", [
    (b"steps = ", "not valid TOML"), (b"\xff\xfe", "not a text file"), (b"stepz = 3", "unknown setting stepz"),
    (b"[densify]\ncap = 'many'", "setting densify.cap is 'many'"), (b"data = 3", "setting data is 3"),
])
def test_a_bad_settings_file_is_one_line_naming_it(city, run, tmp_path, capsys, content, message):
    path = tmp_path / "my.toml"
    path.write_bytes(content)
    line = complaint(capsys, 2, "train", city, "-o", run, *SHORT, "--config", path)
    assert str(path) in line and message in line
    assert not run.exists()


def test_more_views_a_step_than_there_are_is_one_line(city, run, capsys):
    line = complaint(capsys, 1, "train", city, "-o", run, "--views_per_step", 9, *SHORT)
    assert "views_per_step is 9 but the scene has 8 training views" in line
    assert not run.exists()


@pytest.mark.parametrize("content, message", [
    (None, "there is no such file"), (b"", "not a PLY file"), (b"ply\nformat ascii 1.0\nend_header\n", "vertices"),
    (b"ply\nformat binary_little_endian 1.0\nelement vertex 5\nproperty float x\nend_header\n1234", "truncated"),
])
def test_a_bad_start_file_is_one_line_naming_it(city, run, tmp_path, capsys, content, message):
    path = tmp_path / "start.ply"
    if content is not None:
        path.write_bytes(content)
    line = complaint(capsys, 1, "train", city, "-o", run, "--data.init", path, *SHORT)
    assert str(path) in line and message in line
    assert_not_trained(run)


def test_a_file_where_the_run_should_be_is_one_line(city, run, capsys):
    run.write_text("mine")
    assert f"{run} is a file; choose another -o" in complaint(capsys, 1, "train", city, "-o", run, *SHORT)
    assert run.read_text() == "mine"


def test_a_file_above_the_run_is_one_line(city, run, capsys):
    run.write_text("mine")
    assert f"{run}" in complaint(capsys, 1, "train", city, "-o", run / "inner", *SHORT)


def test_a_folder_where_the_metrics_should_be_is_one_line(city, run, capsys):
    (run / "metrics.jsonl").mkdir(parents=True)
    assert "metrics.jsonl" in complaint(capsys, 1, "train", city, "-o", run, *SHORT)
    assert_not_trained(run)


def test_a_file_where_checkpoints_should_be_is_one_line(city, run, capsys):
    run.mkdir()
    (run / "checkpoints").write_text("mine")
    assert "checkpoints" in complaint(capsys, 1, "train", city, "-o", run, *SHORT)
    assert not (run / "results.json").exists()


def test_damaged_metrics_stop_a_resumed_run_with_one_line(city, run, capsys):
    assert main(["train", str(city), "-o", str(run), *SHORT]) == 0
    (run / "metrics.jsonl").write_text("nonsense\n")
    assert "metrics.jsonl:1: not a JSON line" in complaint(capsys, 1, "train", city, "-o", run, "--resume")


def test_a_run_that_is_there_needs_resume(city, run, capsys):
    assert main(["train", str(city), "-o", str(run), *SHORT]) == 0
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    assert "already holds checkpoints of a run; add --resume" in complaint(capsys, 2, "train", city, "-o", run, *SHORT)
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before


def foreign_hdf5(path):
    with h5py.File(path, "w") as file:
        file["points"] = np.arange(3)


def text_file(path):
    path.write_text("not HDF5")


def empty_folder(path):
    path.mkdir()


def nothing(path):
    pass


@pytest.mark.parametrize("make, message", [
    (foreign_hdf5, "not a gaian_hpc checkpoint"), (text_file, "given"), (empty_folder, "holds no checkpoint"),
    (nothing, "there is no such file or folder")])
@pytest.mark.parametrize("verb", [["evaluate"], ["inspect"], ["inspect", "--digest"], ["export", "-o", "out.ply"],
                                  ["render", "-o", "out"]], ids=" ".join)
def test_what_is_no_checkpoint_is_one_line_naming_it(tmp_path, capsys, monkeypatch, make, message, verb):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "given")
    line = complaint(capsys, 1, verb[0], tmp_path / "given", *verb[1:])
    assert str(tmp_path / "given") in line and message in line
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.ply").exists()


@pytest.fixture(scope="module")
def trained(city, tmp_path_factory):
    scene = shutil.copytree(city, tmp_path_factory.mktemp("bad") / "scene")
    run = scene.parent / "run"
    assert main(["train", str(scene), "-o", str(run), *SHORT]) == 0
    return scene, run


@pytest.mark.parametrize("name", ["scene.h5", "shard_00000.h5"])
@pytest.mark.parametrize("verb", ["evaluate", "inspect", "render"])
def test_a_truncated_checkpoint_is_one_line_naming_the_file(trained, tmp_path, capsys, name, verb):
    copy = shutil.copytree(trained[1], tmp_path / "run")
    halve(copy / "checkpoints" / "step_0000003" / name)
    assert name in complaint(capsys, 1, verb, copy)
    assert not (copy / "renders").exists()


def test_evaluating_without_the_scene_or_with_other_views_is_one_line(city, tmp_path, capsys):
    scene, run = shutil.copytree(city, tmp_path / "scene"), tmp_path / "run"
    assert main(["train", str(scene), "-o", str(run), *SHORT]) == 0
    cameras = scene / "sparse" / "0" / "cameras.txt"
    cameras.write_text(cameras.read_text().replace(" 57.59", " 57.69", 1))
    assert "its views are no longer those that" in complaint(capsys, 1, "evaluate", run, "--json")
    shutil.rmtree(scene)
    assert f"{scene} is not a folder" in complaint(capsys, 1, "evaluate", run)
    assert main(["render", str(run)]) == 0  # needs no pictures


def test_a_truncated_test_picture_fails_evaluate_and_not_training(trained, tmp_path, capsys):
    picture = trained[0] / "images" / "view_008.png"
    whole = picture.read_bytes()
    halve(picture)
    try:
        assert "view_008.png cannot be decoded" in complaint(capsys, 1, "evaluate", trained[1])
    finally:
        picture.write_bytes(whole)


@pytest.mark.parametrize("content, message", [(b"{", "is not valid JSON"), (b"{}", "'frames' must be a list")])
def test_a_bad_camera_path_is_one_line_naming_it(trained, tmp_path, capsys, content, message):
    path = tmp_path / "path.json"
    path.write_bytes(content)
    line = complaint(capsys, 1, "render", trained[1], "--path", path, "-o", tmp_path / "out")
    assert str(path) in line and message in line
    assert not (tmp_path / "out").exists()


def test_a_file_where_renders_should_go_is_one_line(trained, tmp_path, capsys):
    (tmp_path / "out").write_text("mine")
    assert str(tmp_path / "out") in complaint(capsys, 1, "render", trained[1], "-o", tmp_path / "out")


def test_an_export_to_another_kind_of_file_or_into_nowhere_is_one_line(trained, tmp_path, capsys):
    assert "only .ply can be written" in complaint(capsys, 2, "export", trained[1], "-o", tmp_path / "a.obj")
    line = complaint(capsys, 1, "export", trained[1], "-o", tmp_path / "absent" / "a.ply")
    assert "a.ply: cannot be written" in line


def test_a_step_that_was_not_kept_is_one_line(trained, capsys):
    assert "has no checkpoint of step 2; it has: step_0000003" in complaint(capsys, 1, "evaluate", trained[1],
                                                                            "--step", 2)


def test_huge_values_in_a_start_file_stop_at_the_first_step_in_one_line(trained, city, tmp_path, run, capsys):
    from gaian_hpc.checkpoint.ply import export_points, read_gaussian_ply

    assert main(["export", str(trained[1]), "-o", str(tmp_path / "start.ply")]) == 0
    raw = read_gaussian_ply(tmp_path / "start.ply")
    raw["sh"][:, 0] = 3e38
    export_points(tmp_path / "huge.ply", raw)
    line = complaint(capsys, 1, "train", city, "-o", run, "--data.init", tmp_path / "huge.ply", *SHORT)
    assert "step 1: the loss of view_00" in line
    assert_not_trained(run)
    assert json.loads(json.dumps(line))


def test_bench_of_a_damaged_scene_is_one_line(scene, capsys):
    halve(scene / "sparse" / "0" / "images.txt")
    assert "images.txt" in complaint(capsys, 1, "bench", "step", scene, "--threads", 1)
