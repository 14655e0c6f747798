"""Access profiles: counted as the renderer reads, joined and merged without losing a splat."""

import dataclasses

import numpy as np
import pytest

from gaian_hpc.data.patches import make_grid, make_patches
from gaian_hpc.errors import PlacementError, SettingsError
from gaian_hpc.placement.profile import centers, count_access, count_patches, merge
from gaian_hpc.points.cells import cell_bounds, cell_of, morton_codes
from gaian_hpc.renderers.base import build_renderer
from gaian_hpc.renderers.gaussian3d import Options
from gaian_hpc.settings import Settings
from gaian_hpc.training.start import open_scene, start_points
from tests.unit.placement.surveys import survey


@pytest.fixture(scope="module")
def scene(city):
    """Return renderer, points, cells, their number and views of a small city."""
    settings = Settings()
    scene = open_scene(city, settings.data)
    renderer = build_renderer("gaussian3d", Options(), "cpu")
    points = start_points(scene, settings, renderer.attributes).values
    codes = morton_codes(points["means"], points["means"].min(axis=0), points["means"].max(axis=0))
    bounds = cell_bounds(np.sort(codes), 40)
    return renderer, points, cell_of(codes, bounds), len(bounds) + 1, scene.views[:4]


def test_a_profile_counts_the_splats_that_reach_each_patch(scene):
    renderer, points, cells, n_cells, views = scene
    profile = count_access(renderer, points, cells, n_cells, views, 32)
    patch = 0
    for view in views:
        rows = renderer.cull(view, points)
        boxes = renderer.footprints(view, renderer.splat(view, points, rows))
        for p in make_patches(view, 32):
            reached = [cells[row] for row, (x0, y0, x1, y1) in zip(rows, boxes, strict=True)
                       if x0 <= p.x1 and x1 >= p.x0 and y0 <= p.y1 and y1 >= p.y0]
            entries = slice(profile.indptr[patch], profile.indptr[patch + 1])
            found = np.bincount(profile.cells[entries], weights=profile.counts[entries], minlength=n_cells)
            assert np.array_equal(found, np.bincount(reached, minlength=n_cells))
            assert profile.pixels[patch] == p.width * p.height
            patch += 1
    assert patch == profile.n_patches and profile.n_views == len(views)


def test_sampled_points_count_for_those_left_out(scene):
    full, sampled = (count_access(*scene, 64, every) for every in (1, 4))
    assert sampled.counts.sum() == pytest.approx(full.counts.sum(), rel=0.15)
    assert np.array_equal(sampled.cell_sizes, full.cell_sizes)


def test_profiles_of_parts_of_the_points_merge_to_that_of_all(scene):
    renderer, points, cells, n_cells, views = scene
    parts = [count_access(renderer, points.take(rows), cells[rows], n_cells, views, 32)
             for rows in np.array_split(np.arange(len(cells)), 3)]
    merged, full = merge(parts), count_access(*scene, 32)
    for name in ("cell_sizes", "indptr", "cells", "counts", "patch_view", "pixels"):
        assert np.array_equal(getattr(merged, name), getattr(full, name)), name
    assert np.allclose(merged.cell_centers, full.cell_centers, atol=1e-4)


def test_no_points_give_an_empty_profile_of_all_patches(scene):
    renderer, points, cells, n_cells, views = scene
    profile = count_access(renderer, points.take(np.arange(0)), cells[:0], n_cells, views, 32)
    assert profile.counts.sum() == 0 and profile.cell_sizes.sum() == 0
    assert profile.n_patches == sum(len(make_patches(v, 32)) for v in views)


def test_views_may_be_cut_into_a_grid(scene):
    renderer, points, cells, n_cells, views = scene
    grids = [make_grid(v, 3) for v in views]
    profile = count_patches(renderer, points, cells, n_cells, grids)
    assert np.bincount(profile.patch_view).tolist() == [9] * len(views)
    for view, grid in zip(views, grids, strict=True):
        assert sum(p.width * p.height for p in grid) == view.width * view.height
    with pytest.raises(SettingsError, match="patches is 0"):
        make_grid(views[0], 0)


def test_coarser_patches_read_the_sum_of_the_finer_ones():
    fine = survey(patches=4)
    coarse = fine.coarser(4, 2)
    assert coarse.n_patches == fine.n_patches // 4 and coarse.counts.sum() == fine.counts.sum()
    dense = fine.owned(np.arange(fine.n_cells), fine.n_cells).reshape(fine.n_cells, -1, 2, 2, 2, 2).sum(axis=(3, 5))
    assert np.array_equal(coarse.owned(np.arange(fine.n_cells), fine.n_cells).reshape(dense.shape), dense)
    with pytest.raises(PlacementError, match="cannot be joined by 3 x 3"):
        fine.coarser(4, 3)
    assert np.array_equal(fine.coarser(4, 4).counts, fine.whole_views().counts)


def test_some_rows_of_a_profile_read_what_they_read_in_it():
    profile = survey()
    patches = np.array([7, 3, 300, 3])
    owners = np.arange(profile.n_cells) % 5
    assert np.array_equal(profile.rows(patches).owned(owners, 5), profile.owned(owners, 5)[:, patches])


def test_work_counts_splats_and_known_pixels():
    profile = survey()
    assert profile.render_work().sum() == profile.counts.sum() == profile.read_work().sum()
    with_pixels = dataclasses.replace(profile, pixels=np.full(profile.n_patches, 100))
    assert np.allclose(with_pixels.render_work(0.5) - profile.render_work(), 50)


def test_the_center_of_a_cell_is_the_mean_of_its_points():
    means = np.array([[0, 0, 0], [2, 4, 6], [5, 5, 5]], np.float32)
    assert centers(means, np.array([0, 0, 2]), 3).tolist() == [[1, 2, 3], [0, 0, 0], [5, 5, 5]]
