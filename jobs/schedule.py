"""``gaian plan SCENE --schedule``: how much units in flight would share, at random, greedily, and as scheduled."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from gaian_hpc.data.sampler import EpochSampler
from gaian_hpc.errors import SettingsError
from gaian_hpc.renderers.base import build_renderer
from gaian_hpc.schedule.compiled import ScheduleSampler
from gaian_hpc.schedule.graph import ViewTracks, conflicts
from gaian_hpc.schedule.unions import bitsets, greedy
from gaian_hpc.settings import Settings
from gaian_hpc.training.start import open_scene, view_tracks

WINDOWS = (2, 4)
MOST_UNITS = 64  # as pipeline.units


def run_schedule(path: Path, settings: Settings, options: Any, *, window: int = 0, epochs: int = 4,
                 as_json: bool = False) -> int:
    """Print the predicted conflict of random, greedy and scheduled epochs, each in the units that training would cut.

    Parameters
    ----------
    path : path
        Folder of a scene.
    settings, options
        Of a training run; ``views_per_step`` views a unit.
    window : int
        K, units in flight; 0 = 2 and 4.
    epochs : int
        Epochs that means are taken over, from the second on, which has a whole window before its first unit.
    """
    scene = open_scene(path, settings.data)
    tracks = view_tracks(scene, settings, build_renderer(settings.method, options, "cpu"))
    table = {f"window {k}": predict(tracks, settings.views_per_step, settings.seed, k, epochs)
             for k in ([window] if window else WINDOWS)}
    print(json.dumps(table) if as_json else report_text(table, tracks.n_views, settings.views_per_step))
    return 0


def check_window(window: int) -> None:
    """Refuse a window that training would refuse.

    Raises
    ------
    SettingsError
    """
    if not 0 <= window <= MOST_UNITS:
        raise SettingsError(f"argument --window is {window}; it must be from 0 (2 and 4) to {MOST_UNITS}")


def predict(tracks: ViewTracks, views_per_step: int, seed: int, window: int, epochs: int) -> dict[str, Any]:
    """Return the conflict of three orders for a window, the share accepted at once, and what compiling takes."""
    views = np.arange(tracks.n_views)
    started = time.perf_counter()
    sampler = ScheduleSampler(views, views_per_step, seed, tracks, window)
    scheduled = np.concatenate([sampler.predicted(e) for e in range(1, epochs + 1)])
    seconds = (time.perf_counter() - started) / (epochs + 2)  # one before and one after are compiled as well
    at_random = ScheduleSampler(views, views_per_step, seed, tracks, 1)  # a window of one unit arranges nothing
    shares = {"random": float(np.concatenate([at_random.predicted(e, window) for e in range(1, epochs + 1)]).mean()),
              "scheduled": float(scheduled.mean())}
    if (sets := bitsets(tracks)) is not None:
        shares["greedy"] = float(np.mean(greedy_conflict(tracks, sets, views_per_step, seed, window, epochs)))
    return {**{f"conflict_{name}": share for name, share in shares.items()},
            **{f"acceptance_{name}": 1 - share for name, share in shares.items()},
            "seconds_per_epoch": seconds, "distance": sampler.distance}


def greedy_conflict(tracks: ViewTracks, sets: np.ndarray, views_per_step: int, seed: int, window: int,
                    epochs: int) -> np.ndarray:
    """Return the conflict of each unit of greedy epochs, each begun where the one before ends, but for the first's."""
    n = tracks.n_views
    drawn = EpochSampler(np.arange(n), 1, seed)  # epochs without units: the greedy order makes its own
    run = np.empty(0, np.int64)
    for epoch in range(epochs + 1):
        run = np.concatenate([run, [drawn.unit(epoch * n + i)[0] for i in range(n)]])
        greedy(run, epoch * n, sets, views_per_step, window)
    return conflicts(tracks, run, views_per_step, window)[-(-n // views_per_step):]


def report_text(table: dict[str, dict[str, Any]], n_views: int, views_per_step: int) -> str:
    """Return the predictions as a table."""
    lines = [f"{n_views} views, {views_per_step} a unit: share of a unit's tracks that earlier units in flight also "
             "hold",
             f"{'':<12}{'random':>9}{'greedy':>9}{'scheduled':>11}{'accepted at once':>18}{'s an epoch':>12}"]
    for name, row in table.items():
        simple = f"{row['conflict_greedy']:.1%}" if "conflict_greedy" in row else "-"
        lines.append(f"{name:<12}{row['conflict_random']:>9.1%}{simple:>9}{row['conflict_scheduled']:>11.1%}"
                     f"{row['acceptance_scheduled']:>18.1%}{row['seconds_per_epoch']:>12.2f}")
    return "\n".join(lines)
