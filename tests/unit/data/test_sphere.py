"""The traced sphere on a plane: a COLMAP scene, and what a method of surfaces makes of it."""

import dataclasses

import numpy as np
import pytest

from gaian_hpc.data.scene import load_scene
from gaian_hpc.data.sphere import RADIUS, sphere_views, trace, write_sphere
from gaian_hpc.evaluation.run import open_run
from gaian_hpc.evaluation.views import depth_normals, render_whole, surface_maps
from gaian_hpc.settings import Settings


def test_what_pixels_see_lies_on_the_sphere_or_the_plane_and_depths_have_its_normals():
    for view in sphere_views(5, 60, 44):
        points, normals, depths = trace(view)
        on_ball = np.abs(np.linalg.norm(points - [0, 0, RADIUS], axis=-1) - RADIUS) < 1e-4 * RADIUS
        assert (on_ball | (np.abs(points[..., 2]) < 1e-4 * RADIUS)).all() and 0.1 < on_ball.mean() < 0.9
        assert np.linalg.norm(normals, axis=-1) == pytest.approx(np.ones((44, 60)))
        cosine = (depth_normals(view, depths) * normals.transpose(2, 0, 1)).sum(axis=0)[1:-1, 1:-1]
        assert np.median(cosine) > 0.9999 and (normals * np.array([0, 0, 1])).sum(axis=-1).max() < 0


def errors_of(scene, folder, normal_from, steps):
    """Train surfels; return the mean angle (degrees) of their normals on test views and the median share of depths."""
    from gaian_hpc.renderers.gaussian2d import Options
    from gaian_hpc.training.trainer import Trainer

    settings = dataclasses.replace(Settings(), method="gaussian2d", steps=steps, threads=1).validate()
    Trainer(scene, folder, settings, Options(normal_from=normal_from)).run()
    run, angles, far = open_run(folder), [], []
    for view in run.views("test"):
        rendering = render_whole(run.renderer.with_maps(), run.state.store.values, view, np.zeros(3, np.float32))
        maps, (_, normals, depths) = surface_maps(view, rendering), trace(view)
        cosine = (maps["normals"] * normals.transpose(2, 0, 1)).sum(axis=0)[1:-1, 1:-1]
        angles.append(np.degrees(np.arccos(np.clip(cosine, -1, 1))).mean())
        far += [np.abs(maps[name] / depths - 1) for name in ("depth", "median")]
    return np.mean(angles), np.median(far)


def test_a_method_of_surfaces_finds_normals_and_its_loss_is_why(tmp_path):
    scene = load_scene(write_sphere(tmp_path / "scene", width=100, height=75))
    assert len(scene.points.positions) > 1000
    with_loss, without = (errors_of(scene, tmp_path / str(start), start, 500) for start in (100, 10_000))
    assert with_loss[0] < min(0.85 * without[0], 25) and with_loss[1] < 0.05, (with_loss, without)


@pytest.mark.scenes
def test_after_two_thousand_steps_normals_lie_within_ten_degrees(tmp_path):
    angle, far = errors_of(load_scene(write_sphere(tmp_path / "scene")), tmp_path / "run", 500, 2000)
    assert angle < 10 and far < 0.03, (angle, far)
