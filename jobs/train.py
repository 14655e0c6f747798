"""``gaian train``: train a scene, write checkpoints and metrics, print one line of results; on any number of ranks."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import h5py
import numba
import numpy as np

from gaian_hpc import __version__
from gaian_hpc.backends.threads import use_threads
from gaian_hpc.config import settings_to_toml
from gaian_hpc.data.cache import PictureCache
from gaian_hpc.data.scene import Scene
from gaian_hpc.distributed.world import World
from gaian_hpc.errors import DataError
from gaian_hpc.evaluation.views import evaluate_views, mean_scores
from gaian_hpc.log import get_logger, write_text
from gaian_hpc.settings import Settings
from gaian_hpc.training.start import open_scene, resolve_backend, scene_fingerprint
from gaian_hpc.training.trainer import RunResult, Trainer

RESULTS_NAME = "results.json"


def run_train(scene_path: Path | str, output: Path | str, settings: Settings, options: Any, *,
              resume: bool = False, world: World | None = None) -> int:
    """Collective. Train ``scene_path`` into ``output`` on the ranks of ``world`` (one), and return the exit code."""
    world, output = world or World(), Path(output)
    log = get_logger(world.rank, world.size)
    fair_share = world.threads()  # collective, whatever this rank was told
    with world.agreed():
        use_threads(settings.threads or fair_share)
        if output.exists() and not output.is_dir():
            raise DataError(f"{output} is a file; choose another -o, the folder of the run's results")
        scene = open_scene(scene_path, settings.data)
    check_ranks(world, scene, settings, options)
    settings = resolve_backend(world, settings)
    world.require_same(**{"-o": str(output.resolve()), "--resume": resume})
    trainer = Trainer(scene, output, settings, options, resume=resume, world=world)
    describe(log, world, trainer)
    with world.agreed():
        if world.is_root:
            (output / RESULTS_NAME).unlink(missing_ok=True)  # those of an earlier end of this run
    result = trainer.run()
    line = (f"stopped at step {result.step} of {settings.steps} by a signal; checkpoint written, go on with --resume"
            if result.stopped else summary(trainer, scene, result))
    if world.is_root:
        print(line)
    return 0


def check_ranks(world: World, scene: Scene, settings: Settings, options: Any) -> None:
    """Collective. Refuse ranks that run different programs, settings or scenes.

    Raises
    ------
    ExchangeError
        On every rank, naming the first rank at odds and what differs.
    """
    versions = {"gaian_hpc": __version__, "Python": sys.version.split()[0], "numpy": np.__version__,
                "numba": numba.__version__, "h5py": h5py.__version__}
    world.require_same(**{f"version of {name}": version for name, version in versions.items()})
    lines = dict(line.split(" = ", 1) for line in settings_to_toml(settings, options).splitlines() if " = " in line)
    world.require_same(**{f"setting {name}": value for name, value in lines.items() if name != "threads"})
    world.require_same(**{"scene (views, poses and split)": scene_fingerprint(scene)})


def describe(log: logging.Logger, world: World, trainer: Trainer) -> None:
    """Collective. Log what is trained, and where."""
    scene, n = trainer.scene, int(world.sum(np.array([trainer.store.n]))[0])
    n_hosts = len(set(world.hosts.tolist()))
    log.info("%s: %d training and %d test views, %s points%s%s", scene.path, len(scene.train_idx), len(scene.test_idx),
             f"{n:,}", f", resumed at step {trainer.step}" if trainer.resumed is not None else "",
             f", on {world.size} ranks of {n_hosts} host{'s' * (n_hosts > 1)}" if world.size > 1 else "")


def summary(trainer: Trainer, scene: Scene, result: RunResult) -> str:
    """Collective. Evaluate the test views, write ``results.json`` and return the line of results."""
    settings = trainer.settings
    with PictureCache(scene, settings.data.cache_mb << 20, settings.data.prefetch) as pictures:
        scores = evaluate_views(trainer.renderer.at_step(result.step), trainer.store.values,
                                [scene.views[i] for i in scene.test_idx], pictures, settings.data.background,
                                settings.patch_size, ids=trainer.store.ids, exchange=trainer.exchange)
    psnr, ssim = mean_scores(scores)
    results = {"step": result.step, "n_points": result.n_points, "seconds": round(result.seconds, 2),
               "psnr": psnr if scores else None, "ssim": ssim if scores else None, "n_test_views": len(scores)}
    if trainer.world.is_root:
        write_text(trainer.output / RESULTS_NAME, json.dumps(results) + "\n")
    measured = f"test PSNR {psnr:.2f} dB, SSIM {ssim:.4f} ({len(scores)} views)" if scores else "no test views"
    return f"step {result.step}: {result.n_points:,} points, {measured}, {result.seconds:.1f} s -> {trainer.output}"
