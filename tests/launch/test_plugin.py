"""A third party's method, found through its entry point, trains on ranks and is looked at without a change here."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.launch.launchers import mpich
from tests.plugins import FOLDER, installed

GAIAN = [sys.executable, "-m", "gaian_hpc.cli"]
TRAIN = ["--method", "discs", "--steps", "40", "--threads", "1", "--densify.strategy", "none", "--patch_size", "32",
         "--views_per_step", "2", "--log_every", "1"]


@pytest.fixture(scope="module")
def city(tmp_path_factory):
    """A COLMAP scene of ten 64 × 48 pictures, two of them for tests."""
    from gaian_hpc.data.synthetic import write_city

    return write_city(tmp_path_factory.mktemp("city") / "scene", n_views=10, width=64, height=48, n_points=600,
                      spacing=4.0)


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    """The environment in which the plug-in is installed."""
    return installed("discs", tmp_path_factory.mktemp("site") / "site")


def run(plugin, n, *words):
    """Run a command on ``n`` ranks; it must succeed. Return what it printed."""
    done = mpich().run(n, *GAIAN, *map(str, words), environment=plugin)
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


def test_the_plugin_is_as_short_as_it_claims():
    assert len((FOLDER / "discs" / "gaian_discs.py").read_text().splitlines()) <= 120


def test_the_page_on_methods_shows_the_plugin_as_it_is():
    page = (FOLDER.parents[1] / "docs" / "methods.md").read_text()
    source = "".join((FOLDER / "discs" / name).read_text() for name in ("gaian_discs.py", "pyproject.toml"))
    blocks = re.findall(r"```(?:python|toml)\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 5
    for block in blocks:
        assert block in source, block


def test_the_commands_of_the_page_on_methods_work(plugin, city, tmp_path):
    page = (FOLDER.parents[1] / "docs" / "methods.md").read_text()
    commands = re.search(r"```sh\n(.*?)```", page, re.DOTALL).group(1).splitlines()
    assert len(commands) == 4
    for command in commands:
        words = command.replace("SCENE", str(city)).split()
        n = int(words.pop(2)) if words[:2] == ["mpirun", "-n"] else 1
        done = mpich().run(n, *GAIAN, *words[words.index("gaian") + 1:], environment=plugin, cwd=tmp_path)
        assert done.returncode == 0, done.stdout[-3000:]
    assert len(list((tmp_path / "pictures").glob("*.png"))) == 2


def test_a_plugin_trains_on_two_ranks_with_the_bits_of_one_and_all_jobs_know_it(plugin, city, tmp_path):
    for folder, n, sync in (("one", 1, "barrier"), ("two", 2, "barrier"), ("ahead", 2, "quality")):
        run(plugin, n, "train", city, "-o", tmp_path / folder, *TRAIN, "--sync", sync)
    digests = {run(plugin, 1, "inspect", tmp_path / folder, "--digest") for folder in ("one", "two", "ahead")}
    assert len(digests) == 1
    losses = [json.loads(line)["loss"] for line in (tmp_path / "two" / "metrics.jsonl").read_text().splitlines()
              if '"loss"' in line]
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    scores = json.loads(run(plugin, 1, "evaluate", tmp_path / "two", "--json").splitlines()[-1])
    assert scores["psnr"] > 10
    run(plugin, 1, "render", tmp_path / "two", "-o", tmp_path / "pictures")
    pictures = sorted(Path(tmp_path / "pictures").glob("*.png"))
    assert len(pictures) == 2 and np.asarray(Image.open(pictures[0])).std() > 5
    run(plugin, 1, "plan", city, "--method", "discs", "--ranks", 4, "--hosts", 2)


def test_what_this_method_has_no_way_to_do_is_told_in_one_line(plugin, city, tmp_path):
    done = mpich().run(1, *GAIAN, "train", city, "-o", tmp_path / "a", "--method", "discs", "--steps", 2,
                       environment=plugin)
    assert done.returncode != 0
    assert "needs the attribute 'means', which points of this method do not have" in done.stdout
    assert "Traceback" not in done.stdout
    done = mpich().run(1, *GAIAN, "train", city, "-o", tmp_path / "b", "--method", "discs", "--steps", 2)
    assert done.returncode != 0 and "method 'discs' is unknown" in done.stdout


def test_a_run_of_one_method_is_not_opened_as_another(plugin, city, tmp_path):
    run(plugin, 1, "train", city, "-o", tmp_path, *TRAIN[:2], "--steps", "1", *TRAIN[4:])
    done = mpich().run(2, *GAIAN, "train", city, "-o", tmp_path, "--method", "gaussian3d", "--resume",
                       environment=plugin)
    assert done.returncode != 0 and "Traceback" not in done.stdout
    assert "setting renderer.size belongs to method 'discs', not to 'gaussian3d'" in done.stdout


@pytest.mark.parametrize("sync", ["barrier", "quality"])
def test_a_gradient_that_is_wrong_ends_the_job_by_its_name(city, tmp_path, sync):
    broken = installed("discs", tmp_path / "site")
    module = tmp_path / "site" / "gaian_discs.py"
    right, wrong = '"sizes": v["sigmas"] * focal[0] / z[:, 0]', '"sizes": v["sigmas"] * np.float32(np.nan)'
    assert right in module.read_text()
    module.write_text(module.read_text().replace(right, wrong))
    done = mpich().run(2, *GAIAN, "train", city, "-o", tmp_path / "run", *TRAIN, "--sync", sync, environment=broken)
    assert done.returncode != 0 and "Traceback" not in done.stdout
    assert "method 'discs': splat_vjp returns a gradient of 'sizes' that is not finite" in done.stdout
