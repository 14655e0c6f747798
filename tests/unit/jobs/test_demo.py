"""The demo, on a city and a run small enough for a test."""

import shutil

import numpy as np
import pytest
from PIL import Image

from gaian_hpc.data.synthetic import write_city
from gaian_hpc.jobs import demo

STEPS = 30


@pytest.fixture(scope="module")
def small_demo(tmp_path_factory):
    """Run the demo once on a small city; return its folder."""
    output = tmp_path_factory.mktemp("demo") / "deep" / "folder"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "write_city", lambda path: write_city(path, n_views=10, width=64, height=48, n_points=600,
                                                                  spacing=4.0))
        settings_from_toml = demo.settings_from_toml
        patch.setattr(demo, "settings_from_toml", lambda text, source: settings_from_toml(
            text.replace("steps = 800", f"steps = {STEPS}").replace("stop = 600", "stop = 0"), source))
        assert demo.run_demo(output) == 0
        yield output


def test_a_picture_of_every_test_view_shows_truth_render_and_error(small_demo):
    names = sorted(p.name for p in (small_demo / "compare").iterdir())
    assert names == ["view_000.png", "view_008.png"]
    truth = np.asarray(Image.open(small_demo / "scene" / "images" / "view_008.png")).astype(int)
    row = np.asarray(Image.open(small_demo / "compare" / "view_008.png")).astype(int)
    width, step = truth.shape[1], truth.shape[1] + demo.GAP
    assert row.shape == (truth.shape[0], 3 * width + 2 * demo.GAP, 3)
    assert np.abs(row[:, :width] - truth).max() <= 1
    render, error = row[:, step:step + width], row[:, 2 * step:]
    assert np.abs(np.minimum(demo.ERROR_GAIN * np.abs(truth - render), 255) - error).max() <= 2 * demo.ERROR_GAIN


def test_a_checkpoint_and_metrics_are_left(small_demo):
    assert (small_demo / "run" / "checkpoints" / f"step_{STEPS:07d}" / "scene.h5").exists()
    assert (small_demo / "run" / "metrics.jsonl").stat().st_size > 0


def test_a_second_demo_keeps_the_city_and_prints_the_results_again(small_demo, capsys):
    picture = small_demo / "scene" / "images" / "view_000.png"
    before = picture.stat().st_mtime_ns
    shutil.rmtree(small_demo / "compare")
    assert demo.run_demo(small_demo) == 0
    assert picture.stat().st_mtime_ns == before
    printed = capsys.readouterr().out
    assert "PSNR" in printed
    assert "view_008.png" in printed
    assert (small_demo / "compare" / "view_008.png").exists()
