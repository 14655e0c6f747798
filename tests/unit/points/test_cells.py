"""Cells along a Morton curve: codes interleave, cells are even, nothing finite or not is left out."""

import numpy as np
import pytest

from gaian_hpc.points.cells import cell_bounds, cell_of, morton_codes

LOW, HIGH = np.zeros(3), np.ones(3)


def codes_of(points):
    return morton_codes(np.array(points, np.float32), LOW, HIGH)


def test_codes_interleave_the_bits_of_the_axes_with_x_lowest():
    step = 1 / (2**21 - 1)
    grid = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [2, 0, 0], [3, 3, 3]], np.float64) * step
    found = morton_codes(grid + step / 2, LOW, HIGH)
    assert found.tolist() == [1, 2, 4, 8, 63]


def test_codes_are_those_of_a_loop_over_bits():
    points = np.random.default_rng(0).random((50, 3))
    axes = (points * (2**21 - 1)).astype(np.uint64)
    expected = [sum((int(a[d]) >> b & 1) << (3 * b + d) for b in range(21) for d in range(3)) for a in axes]
    assert morton_codes(points, LOW, HIGH).tolist() == expected


def test_points_outside_and_not_finite_ones_are_moved_to_the_box():
    low, high = codes_of([[0, 0, 0]])[0], codes_of([[1, 1, 1]])[0]
    assert high == 2**63 - 1 and low == 0
    with np.errstate(invalid="raise"):
        found = codes_of([[-5, -1, -np.inf], [2, np.inf, 7], [np.nan, np.nan, np.nan]])
    assert found[0] == low and found[1] == high and found[2] <= high


@pytest.mark.parametrize("high", [[0, 0, 0], [0, 0, 1], [np.inf, 1, 1], [-np.inf, 1, 1]])
def test_boxes_without_a_side_or_not_finite_give_codes(high):
    codes = morton_codes(np.random.default_rng(1).random((5, 3)).astype(np.float32), LOW, np.array(high))
    assert codes.dtype == np.uint64 and (codes < 2**63).all()


def test_cells_hold_about_equally_many_points():
    codes = np.sort(codes_of(np.random.default_rng(2).random((10_000, 3)) ** 3))
    bounds = cell_bounds(codes, 40)
    sizes = np.bincount(cell_of(codes, bounds))
    assert len(bounds) == 39 and sizes.min() >= 249 and sizes.max() <= 251


def test_bounds_from_a_sample_cut_all_points_nearly_evenly():
    codes = np.sort(codes_of(np.random.default_rng(3).random((50_000, 3))))
    sizes = np.bincount(cell_of(codes, cell_bounds(codes[::10], 20)))
    assert len(sizes) == 20 and np.ptp(sizes) < 0.02 * 2500


def test_points_at_one_place_are_in_one_cell():
    codes = codes_of([[0.5, 0.5, 0.5]] * 100)
    bounds = cell_bounds(codes, 10)
    assert len(np.unique(cell_of(codes, bounds))) == 1


def test_cells_are_runs_of_the_curve():
    codes = codes_of(np.random.default_rng(4).random((500, 3)))
    cells = cell_of(codes, cell_bounds(np.sort(codes), 7))
    assert (np.diff(cells[np.argsort(codes)]) >= 0).all() and cells.dtype == np.int32


@pytest.mark.parametrize("n", [0, 1, 3])
def test_fewer_points_than_cells_give_fewer_cells(n):
    codes = np.sort(codes_of(np.random.default_rng(5).random((n, 3)).reshape(n, 3)))
    bounds = cell_bounds(codes, 8)
    assert len(bounds) <= max(n - 1, 0) and len(cell_of(codes, bounds)) == n
