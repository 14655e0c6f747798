"""Start points from structure from motion, from a PLY, and at random."""

from pathlib import Path

import numpy as np
import pytest

from gaian_hpc.arrays import View
from gaian_hpc.data.frames import ScenePoints
from gaian_hpc.data.scene import Scene
from gaian_hpc.errors import DataError
from gaian_hpc.points.init import cloud_from_scene, point_spacing, random_box


def scene(points=None, kind="colmap", extent=2.0):
    K = np.array([[50, 0, 50], [0, 50, 40], [0, 0, 1]], np.float32)
    viewmat = np.eye(4, dtype=np.float32)
    viewmat[2, 3] = 5  # the camera stands at z = -5 and looks along z
    views = (View(viewmat, K, 100, 80), View(viewmat, K, 100, 80, index=1))
    index = np.arange(2)
    return Scene(Path("somewhere"), kind, views, (), index, index[:0], points, None, extent)


def test_structure_from_motion_points_keep_their_order_and_colours():
    points = ScenePoints(np.float32([[0, 0, 0], [1, 0, 0], [0, 3, 0], [0, 0, 5]]), np.eye(4, 3, dtype=np.float32))
    cloud = cloud_from_scene(scene(points), "sfm", 0, seed=7)
    np.testing.assert_array_equal(cloud.positions, points.positions)
    np.testing.assert_array_equal(cloud.colors, points.colors)
    assert cloud.ids.tolist() == [0, 1, 2, 3] and cloud.ids.dtype == np.int64 and cloud.seed == 7
    expected = np.sqrt([(1 + 9 + 25) / 3, (1 + 10 + 26) / 3, (9 + 10 + 34) / 3, (25 + 26 + 34) / 3])
    np.testing.assert_allclose(cloud.spacing, expected, rtol=1e-6)
    assert cloud.spacing.dtype == cloud.positions.dtype == cloud.colors.dtype == np.float32


def test_spacing_agrees_with_all_pairs():
    positions = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    squared = ((positions[:, None].astype(float) - positions[None]) ** 2).sum(-1)
    expected = np.sqrt(np.sort(squared, axis=1)[:, 1:4].mean(axis=1))
    np.testing.assert_allclose(point_spacing(positions, 1.0), expected, rtol=1e-5)


def test_points_at_one_place_get_the_least_spacing():
    positions = np.zeros((6, 3), np.float32)
    np.testing.assert_allclose(point_spacing(positions, 1.0), np.sqrt(1e-7), rtol=1e-6)


@pytest.mark.parametrize("n, expected", [(1, [0.02]), (2, [2, 2]), (3, [np.sqrt(10), np.sqrt(4), np.sqrt(10)])])
def test_fewer_than_four_points_use_the_neighbours_there_are(n, expected):
    positions = np.float32([[0, 0, 0], [2, 0, 0], [4, 0, 0]])[:n]
    np.testing.assert_allclose(point_spacing(positions, 2.0), expected, rtol=1e-6)


def test_points_of_a_ply_without_colours_are_grey():
    cloud = cloud_from_scene(scene(), "ply", 0, 0, (np.random.default_rng(0).normal(size=(9, 3)), None))
    assert cloud.positions.shape == (9, 3) and (cloud.colors == 0.5).all()


def test_random_points_of_blender_sets_fill_their_cube():
    cloud = cloud_from_scene(scene(kind="blender"), "random", 20_000, 0)
    assert np.abs(cloud.positions).max() <= 1.3 and (np.abs(cloud.positions).max(axis=0) > 1.29).all()
    np.testing.assert_allclose(cloud.positions.mean(axis=0), 0, atol=0.03)
    assert (cloud.colors == 0.5).all()


def test_random_points_depend_on_the_seed_and_not_on_their_number():
    a, b = (cloud_from_scene(scene(), "random", n, 3).positions for n in (100, 150))
    np.testing.assert_array_equal(a, b[:100])
    assert not np.array_equal(a, cloud_from_scene(scene(), "random", 100, 4).positions)


def test_random_points_fill_what_the_cameras_see_where_there_are_no_points():
    low, high = random_box(scene(extent=2.0))
    np.testing.assert_allclose(low, [-4, -3.2, -5], atol=1e-5)  # depth 4 before the camera at z = -5
    np.testing.assert_allclose(high, [4, 3.2, -1], atol=1e-5)


def test_random_points_fill_the_box_of_the_points_without_outliers_where_there_are_some():
    positions = np.random.default_rng(0).uniform(0, 1, (5000, 3)).astype(np.float32)
    positions[0] = 1e6
    low, high = random_box(scene(ScenePoints(positions)))
    np.testing.assert_allclose(low, -0.09, atol=0.02)
    np.testing.assert_allclose(high, 1.09, atol=0.02)


@pytest.mark.parametrize("points", [None, ScenePoints(np.zeros((0, 3), np.float32))])
def test_no_points_are_refused_with_what_to_do(points):
    with pytest.raises(DataError, match=r"somewhere has no start points; use --data.init random"):
        cloud_from_scene(scene(points), "sfm", 0, 0)


def test_points_that_are_not_finite_are_refused():
    points = ScenePoints(np.float32([[0, 0, 0], [0, np.inf, 0]]))
    with pytest.raises(DataError, match="1 start points are not finite, the first is number 1"):
        cloud_from_scene(scene(points), "sfm", 0, 0)


def test_zero_random_points_are_refused():
    with pytest.raises(DataError, match="0 random start points"):
        cloud_from_scene(scene(), "random", 0, 0)
