"""Every built-in method from the command line: train, evaluate, render, inspect, plan and export."""

import json

import numpy as np
import pytest
from PIL import Image
from plyfile import PlyData

from gaian_hpc.checkpoint.ply import read_gaussian_ply, write_gaussian_ply
from gaian_hpc.checkpoint.reader import read_checkpoint
from gaian_hpc.cli import main
from gaian_hpc.data.synthetic import write_moving

METHODS = ("gaussian3d", "gaussian2d", "gaussian4d", "convex3d")


@pytest.fixture(scope="module")
def moving(tmp_path_factory):
    """A scene of twelve 64 × 48 pictures at four times; not to be written to."""
    return write_moving(tmp_path_factory.mktemp("moving") / "scene", n_times=4, n_cameras=3, width=64, height=48,
                        n_points=600, spacing=5.0)


def call(capsys, *words):
    """Run a command that must succeed and return what it printed."""
    capsys.readouterr()
    assert main([str(word) for word in words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("method", METHODS)
def test_a_method_trains_and_is_looked_at_by_all_jobs(moving, tmp_path, capsys, method):
    run, ply = tmp_path / "run", tmp_path / "points.ply"
    call(capsys, "train", moving, "-o", run, "--method", method, "--steps", 12, "--threads", 1)
    scores = json.loads(call(capsys, "evaluate", run, "--json"))
    assert scores["psnr"] > 5
    folder = tmp_path / "pictures"
    call(capsys, "render", run, "-o", folder, "--maps")
    normals = sorted(folder.glob("*.normals.png"))
    pictures = [np.asarray(Image.open(p)) for p in sorted(folder.glob("*.png")) if p not in normals]
    assert len(pictures) == len(normals) == len(scores["views"]) and max(p.std() for p in pictures) > 5
    depths = [np.asarray(Image.open(p)) for p in sorted(folder.glob("*.depth.tiff"))]
    assert len(depths) == len(pictures) and all(d.dtype == np.float32 and np.isfinite(d).all() for d in depths)
    assert len(list(folder.glob("*.median.tiff"))) == len(depths) * (method == "gaussian2d")
    assert json.loads(call(capsys, "inspect", run, "--json"))["method"] == method
    call(capsys, "plan", moving, "--method", method, "--ranks", 4, "--hosts", 2)
    times = ["--time", 0.5] if method == "gaussian4d" else []
    call(capsys, "export", run, "-o", ply, *times)
    if method == "convex3d":
        vertex, raw = PlyData.read(str(ply))["vertex"], read_checkpoint(run).store.raw
        assert len(vertex.data) == scores["n_points"]
        for i in range(6):
            for k, axis in enumerate("xyz"):
                assert (vertex[f"p{axis}_{i}"] == raw["points"][:, i, k]).all()
        assert (vertex["log_delta"] == raw["delta"]).all() and (vertex["opacity"] == raw["opacities"]).all()
        return
    raw = read_gaussian_ply(ply)
    assert raw["scales"].shape[1] == (2 if method == "gaussian2d" else 3)
    assert 0 < len(raw["means"]) <= scores["n_points"] and all(np.isfinite(x).all() for x in raw.values())
    same = "gaussian2d" if method == "gaussian2d" else "gaussian3d"
    call(capsys, "train", moving, "-o", tmp_path / "next", "--method", same, "--data.init", ply, "--steps", 2,
         "--threads", 1)
    other = "gaussian3d" if method == "gaussian2d" else "gaussian2d"
    assert main(["train", str(moving), "-o", str(tmp_path / "c"), "--method", other, "--data.init", str(ply)]) != 0
    assert f"holds Gaussians of {raw['scales'].shape[1]} scales" in capsys.readouterr().err


def test_what_a_method_cannot_do_is_told_by_its_name(moving, city, tmp_path, capsys):
    run = tmp_path / "run"
    call(capsys, "train", moving, "-o", run, "--method", "gaussian4d", "--steps", 2, "--threads", 1)
    for words, complaint in (
            (["export", run, "-o", tmp_path / "a.ply"], "'gaussian4d' change in time; say with --time"),
            (["train", city, "-o", tmp_path / "b", "--method", "gaussian4d", "--steps", 2],
             "method 'gaussian4d' needs the time of every view"),
            (["train", moving, "-o", run, "--method", "gaussian3d", "--steps", 4, "--resume"],
             "belongs to method 'gaussian4d', not to 'gaussian3d'"),
            (["train", moving, "-o", tmp_path / "c", "--method", "gausian4d"], "did you mean 'gaussian4d'?")):
        capsys.readouterr()
        assert main([str(word) for word in words]) != 0
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert complaint in error, error
    call(capsys, "train", moving, "-o", tmp_path / "d", "--method", "gaussian3d", "--steps", 2, "--threads", 1)
    assert main(["export", str(tmp_path / "d"), "-o", str(tmp_path / "d.ply"), "--time", "0.5"]) != 0
    assert "do not change in time" in capsys.readouterr().err


def test_start_points_whose_colours_would_be_hidden_are_told(moving, tmp_path, capsys):
    rng, n = np.random.default_rng(0), 50
    raw = {"means": rng.normal(size=(n, 3)), "quats": rng.normal(size=(n, 4)), "scales": np.zeros((n, 3)),
           "opacities": np.zeros(n), "sh": rng.normal(size=(n, 4, 3))}
    write_gaussian_ply(tmp_path / "points.ply", {name: x.astype(np.float32) for name, x in raw.items()})
    for more, warned in ((), True), (("--renderer.sh_every", 0), False):
        capsys.readouterr()
        assert main([str(w) for w in ("train", moving, "-o", tmp_path / str(warned), "--data.init",
                                      tmp_path / "points.ply", "--steps", 1, "--threads", 1, *more)]) == 0
        out, error = capsys.readouterr()
        assert ("add --renderer.sh_every 0" in out + error) == warned
