"""``gaian evaluate``: PSNR and SSIM of a run on its test views."""

from __future__ import annotations

import json
from pathlib import Path

from gaian_hpc.data.cache import PictureCache
from gaian_hpc.errors import DataError
from gaian_hpc.evaluation.run import open_run
from gaian_hpc.evaluation.views import evaluate_views, mean_scores
from gaian_hpc.training.start import open_scene, scene_fingerprint


def run_evaluate(run: Path | str, *, as_json: bool = False, step: int | None = None) -> int:
    """Print the scores of the test views of ``run`` and return the exit code."""
    trained = open_run(run, step)
    d = trained.settings.data
    scene = open_scene(trained.state.scene_path, d)
    if scene_fingerprint(scene) != trained.state.scene_fingerprint:
        raise DataError(f"{scene.path}: its views are no longer those that {run} was trained on; restore the scene")
    with PictureCache(scene, d.cache_mb << 20, d.prefetch) as pictures:
        scores = evaluate_views(trained.renderer, trained.state.store.values, [scene.views[i] for i in scene.test_idx],
                                pictures, d.background, trained.settings.patch_size)
    psnr, ssim = mean_scores(scores)
    if as_json:
        print(json.dumps({"psnr": psnr if scores else None, "ssim": ssim if scores else None,
                          "n_points": trained.state.store.n, "step": trained.state.step,
                          "views": [{"name": s.name, "psnr": s.psnr, "ssim": s.ssim} for s in scores]}))
        return 0
    for s in scores:
        print(f"{s.name}  PSNR {s.psnr:.2f} dB  SSIM {s.ssim:.4f}")
    print(f"step {trained.state.step}: {trained.state.store.n:,} points, "
          + (f"PSNR {psnr:.2f} dB, SSIM {ssim:.4f} ({len(scores)} views)" if scores else "no test views"))
    return 0
