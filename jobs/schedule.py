"""``gaian plan SCENE --schedule``: how much units in flight would share, at random and arranged ahead of time."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from gaian_hpc.renderers.base import build_renderer
from gaian_hpc.schedule.compiled import ScheduleSampler
from gaian_hpc.schedule.graph import conflicts
from gaian_hpc.settings import Settings
from gaian_hpc.training.start import open_scene, view_tracks

WINDOWS = (2, 4)


def run_schedule(path: Path, settings: Settings, options: Any, *, epochs: int = 3, as_json: bool = False) -> int:
    """Print the predicted conflict of random and of scheduled epochs for windows of 2 and 4 units.

    Parameters
    ----------
    path : path
        Folder of a scene.
    settings, options
        Of a training run; ``views_per_step`` views a unit.
    epochs : int
        Epochs that means are taken over.
    """
    scene = open_scene(path, settings.data)
    tracks = view_tracks(scene, settings, build_renderer(settings.method, options, "cpu"))
    table = {}
    for window in WINDOWS:
        started = time.perf_counter()
        sampler = ScheduleSampler(scene.train_idx, settings.views_per_step, settings.seed, tracks, window)
        scheduled = float(np.mean([sampler.predicted(e).mean() for e in range(epochs)]))
        seconds = (time.perf_counter() - started) / epochs
        rng = np.random.default_rng(settings.seed)
        at_random = float(np.mean([conflicts(tracks, rng.permutation(tracks.n_views), settings.views_per_step,
                                             window).mean() for _ in range(epochs)]))
        table[f"window {window}"] = {"conflict_random": at_random, "conflict_scheduled": scheduled,
                                     "acceptance_random": 1 - at_random, "acceptance_scheduled": 1 - scheduled,
                                     "seconds_per_epoch": seconds, "distance": sampler.distance}
    print(json.dumps(table) if as_json else report_text(table, tracks.n_views, settings.views_per_step))
    return 0


def report_text(table: dict[str, dict[str, Any]], n_views: int, views_per_step: int) -> str:
    """Return the predictions as a table."""
    lines = [f"{n_views} views, {views_per_step} a unit: share of a unit's tracks that earlier units in flight also "
             "hold",
             f"{'':<12}{'random':>9}{'scheduled':>11}{'accepted at once':>18}{'s an epoch':>12}"]
    lines += [f"{name:<12}{row['conflict_random']:>9.1%}{row['conflict_scheduled']:>11.1%}"
              f"{row['acceptance_scheduled']:>18.1%}{row['seconds_per_epoch']:>12.2f}" for name, row in table.items()]
    return "\n".join(lines)
