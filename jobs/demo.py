"""``gaian demo``: make a small procedural city, train it, and put truth, render and error side by side."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from gaian_hpc.checkpoint.reader import latest_checkpoint, read_checkpoint
from gaian_hpc.config import settings_from_toml
from gaian_hpc.data.cache import PictureCache
from gaian_hpc.data.scene import load_scene
from gaian_hpc.data.synthetic import write_city
from gaian_hpc.evaluation.views import render_view
from gaian_hpc.jobs.evaluate import run_evaluate
from gaian_hpc.jobs.train import run_train
from gaian_hpc.log import get_logger
from gaian_hpc.renderers.base import renderer_class
from gaian_hpc.settings import Settings
from gaian_hpc.training.pixels import background_color, target_pixels

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
    code = run_train(scene, run, settings, options, resume=True) or run_evaluate(run, as_json=False, step=None)
    if code:
        return code
    n = write_comparisons(scene, run, settings, options, pictures)
    print(f"pictures    {pictures}/ ({n} test views: truth | render | {ERROR_GAIN:g} x error)\n"
          f"checkpoint  {latest_checkpoint(run)}\n"
          f"scene       {scene}/ (COLMAP)")
    return 0


def write_comparisons(scene_path: Path, run: Path, settings: Settings, options: Any, folder: Path) -> int:
    """Write a PNG of truth, render and error for every test view; return their number."""
    data = settings.data
    scene = load_scene(scene_path, factor=data.factor, max_side=data.max_side, test_every=data.test_every)
    state = read_checkpoint(run)
    renderer = renderer_class(settings.method)(options).at_step(state.step)
    folder.mkdir(exist_ok=True)
    with PictureCache(scene, data.cache_mb << 20, prefetch=0) as cache:
        for index in scene.test_idx:
            view = scene.views[index]
            background = background_color(data.background, settings.seed, state.step, view)
            truth = target_pixels(cache.get(index), view, background)
            image = render_view(renderer, state.store.values, view, background, settings.patch_size)
            Image.fromarray(side_by_side(truth, image)).save(folder / view.name)
    return len(scene.test_idx)


def side_by_side(truth: np.ndarray, image: np.ndarray) -> np.ndarray:
    """Return truth, render and magnified absolute error, (3, H, W) float in [0, 1], as one (H, W', 3) uint8 picture."""
    gap = np.ones((3, truth.shape[1], GAP), np.float32)
    row = np.concatenate([truth, gap, image, gap, ERROR_GAIN * np.abs(truth - image)], axis=2)
    return np.moveaxis(np.rint(np.clip(row, 0, 1) * 255).astype(np.uint8), 0, -1)
