"""``gaian train``: train a scene, write checkpoints and metrics, print one line of results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gaian_hpc.data.cache import PictureCache
from gaian_hpc.data.scene import Scene
from gaian_hpc.distributed.world import require_one_rank
from gaian_hpc.errors import DataError
from gaian_hpc.evaluation.views import evaluate_views, mean_scores
from gaian_hpc.log import get_logger
from gaian_hpc.settings import Settings
from gaian_hpc.training.trainer import RunResult, Trainer, open_scene

RESULTS_NAME = "results.json"


def run_train(scene_path: Path | str, output: Path | str, settings: Settings, options: Any, *,
              resume: bool = False) -> int:
    """Train ``scene_path`` into the folder ``output`` and return the exit code."""
    require_one_rank()
    log, output = get_logger(), Path(output)
    if output.exists() and not output.is_dir():
        raise DataError(f"{output} is a file; choose another -o, the folder of the run's results")
    scene = open_scene(scene_path, settings.data)
    trainer = Trainer(scene, output, settings, options, resume=resume)
    log.info("%s: %d training and %d test views, %s points%s", scene.path, len(scene.train_idx), len(scene.test_idx),
             f"{trainer.store.n:,}", f", resumed at step {trainer.step}" if trainer.resumed is not None else "")
    (output / RESULTS_NAME).unlink(missing_ok=True)  # those of an earlier end of this run
    result = trainer.run()
    if result.stopped:
        print(f"stopped at step {result.step} of {settings.steps} by a signal; checkpoint written, go on with --resume")
        return 0
    print(summary(trainer, scene, result))
    return 0


def summary(trainer: Trainer, scene: Scene, result: RunResult) -> str:
    """Evaluate the test views, write ``results.json`` and return the line of results."""
    settings = trainer.settings
    with PictureCache(scene, settings.data.cache_mb << 20, settings.data.prefetch) as pictures:
        scores = evaluate_views(trainer.renderer.at_step(result.step), trainer.store.values,
                                [scene.views[i] for i in scene.test_idx], pictures, settings.data.background,
                                settings.patch_size)
    psnr, ssim = mean_scores(scores)
    results = {"step": result.step, "n_points": result.n_points, "seconds": round(result.seconds, 2),
               "psnr": psnr if scores else None, "ssim": ssim if scores else None, "n_test_views": len(scores)}
    (trainer.output / RESULTS_NAME).write_text(json.dumps(results) + "\n", encoding="utf-8")
    measured = f"test PSNR {psnr:.2f} dB, SSIM {ssim:.4f} ({len(scores)} views)" if scores else "no test views"
    return f"step {result.step}: {result.n_points:,} points, {measured}, {result.seconds:.1f} s -> {trainer.output}"
