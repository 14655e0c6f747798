"""Scores with known answers, pictures rendered in any patches, and backgrounds of a run that is shown."""

import numpy as np
import pytest

from gaian_hpc.data.cache import PictureCache
from gaian_hpc.data.scene import load_scene
from gaian_hpc.errors import DataError
from gaian_hpc.evaluation.run import open_run
from gaian_hpc.evaluation.views import ViewScore, evaluate_views, mean_scores, render_view, score
from gaian_hpc.training.pixels import shown_background
from tests.golden.training import ssim_oracle
from tests.unit.runs import train


@pytest.fixture(scope="module")
def trained(city, tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluation") / "run"
    train(city, folder, {"steps": 16, "checkpoint.every": 8, "data.background": "random", "densify.reset_every": 0})
    return folder


def pair(shift):
    target = np.random.default_rng(0).random((3, 20, 31), np.float32) * np.float32(0.5)
    return target + np.float32(shift), target


@pytest.mark.parametrize("shift, psnr", [(0.1, 20.0), (0.01, 40.0), (0.5, -20 * np.log10(0.5)), (0.0, 120.0)])
def test_psnr_of_a_constant_error_is_known(shift, psnr):
    assert score(*pair(shift))[0] == pytest.approx(psnr, abs=1e-3)


def test_psnr_of_white_against_black_is_zero_and_their_ssim_next_to_nothing():
    psnr, ssim = score(np.ones((3, 30, 30), np.float32), np.zeros((3, 30, 30), np.float32))
    assert psnr == pytest.approx(0, abs=1e-6)
    assert 0 < ssim < 1e-3


def test_ssim_is_one_for_equal_pictures_and_that_of_the_reference_for_others():
    image, target = pair(0.0)
    assert score(image, target)[1] == pytest.approx(1, abs=1e-5)
    image = image + np.random.default_rng(1).normal(0, 0.05, image.shape).astype(np.float32)
    values, _ = ssim_oracle(*(x.transpose(1, 2, 0).astype(np.float64) for x in (image, target)))
    assert score(image, target)[1] == pytest.approx(values.mean(), abs=1e-4)


def test_only_pixels_of_the_mask_are_scored():
    image, target = pair(0.1)
    mask = np.zeros(image.shape[1:], bool)
    mask[4:12, 5:25] = True
    inside = score(image, target, mask)
    assert inside[0] == pytest.approx(20.0, abs=1e-3)
    image[:, ~mask] = 0.9
    assert score(image, target, mask) == inside
    assert score(image, target)[0] < 15
    assert score(target, target.copy(), mask)[1] == pytest.approx(1, abs=1e-5)


def test_a_mask_of_nothing_scores_without_failing():
    assert np.isfinite(score(*pair(0.1), np.zeros((20, 31), bool))).all()


def test_means_are_over_views_and_nan_without_any():
    assert mean_scores([ViewScore("a", 10.0, 0.5), ViewScore("b", 20.0, 0.7)]) == (15.0, pytest.approx(0.6))
    assert np.isnan(mean_scores([])).all()


@pytest.mark.parametrize("mode, color", [("black", 0), ("white", 1), ("random", 0)])
def test_a_run_is_shown_on_its_background_and_on_black_where_that_is_random(mode, color):
    assert shown_background(mode).tolist() == [color] * 3


def test_a_picture_does_not_depend_on_its_patches_and_lies_in_the_unit_range(trained):
    run = open_run(trained)
    view, white = run.views("test")[1], shown_background("white")
    whole = render_view(run.renderer, run.state.store.values, view, white)
    parts = render_view(run.renderer, run.state.store.values, view, white, patch_size=16)
    assert whole.shape == (3, view.height, view.width) and whole.std() > 0.01
    assert 0 <= whole.min() and whole.max() <= 1
    np.testing.assert_allclose(parts, whole, atol=1e-6)


def test_evaluating_compares_with_the_pictures_of_the_views(trained, city):
    run, scene = open_run(trained), load_scene(city)
    views = [scene.views[i] for i in scene.test_idx]
    with PictureCache(scene, 1 << 20, 2) as pictures:
        scores = evaluate_views(run.renderer, run.state.store.values, views, pictures, "random")
        for s, view in zip(scores, views, strict=True):
            image = render_view(run.renderer, run.state.store.values, view, np.zeros(3, np.float32))
            error = np.mean((image - pictures.get(view.index).rgb / 255.0) ** 2)
            assert s.name == view.name
            assert s.psnr == pytest.approx(-10 * np.log10(error), abs=1e-3)


def test_a_run_opens_at_its_newest_step_or_the_one_asked_for_with_the_bands_of_that_step(trained):
    newest, earlier = open_run(trained), open_run(trained, 8)
    assert (newest.state.step, newest.renderer.degree) == (16, 2)
    assert (earlier.state.step, earlier.renderer.degree) == (8, 1)
    assert [v.name for v in newest.views("test")] == ["view_000.png", "view_008.png"]
    assert len(newest.views("train")) == 8


def test_a_step_without_a_checkpoint_is_refused_naming_those_there_are(trained):
    with pytest.raises(DataError, match=r"has no checkpoint of step 9; it has: step_0000008, step_0000016$"):
        open_run(trained, 9)
