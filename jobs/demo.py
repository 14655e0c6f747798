"""``gaian demo``: make a small procedural city, train it, and put truth, render and error side by side."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np

from gaian_hpc.checkpoint.folders import list_checkpoints
from gaian_hpc.config import settings_from_toml
from gaian_hpc.data.cache import PictureCache
from gaian_hpc.data.synthetic import write_city
from gaian_hpc.evaluation.run import open_run
from gaian_hpc.evaluation.views import render_view
from gaian_hpc.jobs.evaluate import run_evaluate
from gaian_hpc.jobs.render import write_png
from gaian_hpc.jobs.train import run_train
from gaian_hpc.log import get_logger
from gaian_hpc.training.pixels import shown_background, target_pixels
from gaian_hpc.training.start import open_scene

CONFIG = "configs/demo.toml"
GAP = 4
ERROR_GAIN = 4.0


def run_demo(output: Path) -> int:
    """Make, train, measure and show the city in ``output``; what is there already is kept and gone on from.

    Returns
    -------
    int
        Exit code.
    """
    settings, options = settings_from_toml((files("gaian_hpc.jobs") / CONFIG).read_text(encoding="utf-8"), CONFIG)
    scene, run, pictures = output / "scene", output / "run", output / "compare"
    if not scene.exists():
        get_logger().info("making the city in %s", scene)
        output.mkdir(parents=True, exist_ok=True)
        write_city(scene)
    code = run_train(scene, run, settings, options, resume=True)
    if code or open_run(run).state.step < settings.steps:  # stopped by a signal: to be gone on with later
        return code
    run_evaluate(run)
    n = write_comparisons(scene, run, pictures)
    print(f"pictures    {pictures}/ ({n} test views: truth | render | {ERROR_GAIN:g} x error)\n"
          f"checkpoint  {list_checkpoints(run)[-1]}\n"
          f"scene       {scene}/ (COLMAP)")
    return 0


def write_comparisons(scene_path: Path, run: Path, folder: Path) -> int:
    """Write a PNG of truth, render and error for every test view; return their number."""
    trained = open_run(run)
    data = trained.settings.data
    scene, background = open_scene(scene_path, data), shown_background(data.background)
    with PictureCache(scene, data.cache_mb << 20, prefetch=0) as cache:
        for index in scene.test_idx:
            view = scene.views[index]
            truth = target_pixels(cache.get(index), view, background)
            image = render_view(trained.renderer, trained.state.store.values, view, background)
            write_png(folder / view.name, np.concatenate(side_by_side(truth, image), axis=2))
    return len(scene.test_idx)


def side_by_side(truth: np.ndarray, image: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return truth, render and magnified absolute error, (3, H, W) in [0, 1], with white gaps between them."""
    gap = np.ones((3, truth.shape[1], GAP), np.float32)
    return truth, gap, image, gap, np.minimum(ERROR_GAIN * np.abs(truth - image), 1)
