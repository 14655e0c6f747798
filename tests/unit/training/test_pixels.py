"""Backgrounds, and the two pictures over them that the loss compares."""

import dataclasses

import numpy as np
import pytest

from gaian_hpc.arrays import View
from gaian_hpc.data.images import Picture
from gaian_hpc.errors import DataError
from gaian_hpc.training.pixels import alpha_gradient, background_color, over_background, target_pixels

VIEW = View(np.eye(4, dtype=np.float32), np.eye(3, dtype=np.float32), 4, 3, name="a.png", index=7)
GREEN = np.float32([0, 1, 0])


def test_black_and_white_are_the_same_at_every_step():
    assert background_color("black", 1, 2, VIEW).tolist() == [0, 0, 0]
    assert background_color("white", 3, 4, VIEW).tolist() == [1, 1, 1]


def test_a_random_background_depends_on_seed_step_and_view_and_on_nothing_else():
    other = dataclasses.replace(VIEW, index=8)
    colors = [background_color("random", *key) for key in [(0, 1, VIEW), (1, 1, VIEW), (0, 2, VIEW), (0, 1, other)]]
    assert len({c.tobytes() for c in colors}) == 4
    assert background_color("random", 0, 1, dataclasses.replace(VIEW, name="b.png")).tobytes() == colors[0].tobytes()


def test_random_backgrounds_fill_the_unit_cube_evenly():
    colors = np.array([background_color("random", 0, step, VIEW) for step in range(2000)])
    assert colors.dtype == np.float32 and colors.shape == (2000, 3)
    assert 0 <= colors.min() and colors.max() <= 1
    np.testing.assert_allclose(colors.mean(axis=0), 0.5, atol=5 / np.sqrt(12 * 2000))
    assert np.abs(np.corrcoef(colors.T) - np.eye(3)).max() < 0.1


def test_a_picture_without_alpha_is_its_bytes_over_255_whatever_the_background():
    rgb = np.arange(36, dtype=np.uint8).reshape(3, 3, 4) * 7
    np.testing.assert_allclose(target_pixels(Picture(rgb), VIEW, GREEN), rgb / 255, atol=1e-7)
    assert target_pixels(Picture(np.full((3, 3, 4), 255, np.uint8)), VIEW, GREEN).max() <= 1


def test_a_picture_with_alpha_lies_over_the_background():
    rgb = np.full((3, 3, 4), 255, np.uint8)
    alpha = np.full((3, 4), 51, np.uint8)  # a fifth
    target = target_pixels(Picture(rgb, alpha), VIEW, GREEN)
    np.testing.assert_allclose(target[:, 0, 0], [0.2, 1, 0.2], atol=1e-6)
    np.testing.assert_allclose(target_pixels(Picture(rgb, 0 * alpha), VIEW, GREEN)[:, 1, 1], GREEN, atol=1e-7)


def test_a_picture_of_another_size_is_refused_by_name():
    with pytest.raises(DataError, match=r"^a\.png: the picture is 5 x 3 pixels, its view 4 x 3; restore"):
        target_pixels(Picture(np.zeros((3, 3, 5), np.uint8)), VIEW, GREEN)


@pytest.mark.parametrize("background", [np.zeros(3, np.float32), GREEN, np.float32([0.2, 0.3, 0.4])])
def test_the_gradient_of_alpha_is_the_slope_of_the_picture_over_its_background(background):
    rng = np.random.default_rng(0)
    color, v_image = rng.random((2, 3, 3, 4), np.float32)
    alpha = rng.random((3, 4), np.float32)
    images = np.empty((2, 3, 3, 4), np.float32)
    over_background(color, alpha + np.float32(0.01), background, images[0])
    over_background(color, alpha - np.float32(0.01), background, images[1])
    np.testing.assert_allclose(images.mean(axis=0), color + background[:, None, None] * (1 - alpha), atol=1e-6)
    slope = np.sum(v_image * (images[0] - images[1]), axis=0) / 0.02
    v_alpha = alpha_gradient(v_image, background)
    np.testing.assert_allclose(0 if v_alpha is None else v_alpha, slope, atol=2e-5)
    assert (v_alpha is None) == (not background.any())
