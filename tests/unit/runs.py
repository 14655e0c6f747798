"""Short training runs for tests: settings by their dotted names, and a run in one call."""

import dataclasses
import json
from pathlib import Path

from gaian_hpc.backends.threads import use_threads
from gaian_hpc.data.scene import load_scene
from gaian_hpc.renderers.base import renderer_class
from gaian_hpc.settings import Settings
from gaian_hpc.training.journal import METRICS_NAME
from gaian_hpc.training.trainer import Trainer

STEPS = 24
# Edits open the steps 6, 11, 16 and 21 and a reset step 13; every step is logged.
SHORT = {"steps": STEPS, "horizon": 40, "threads": 1, "log_every": 1, "data.cache_mb": 16, "data.background": "black",
         "densify.start": 4, "densify.every": 5, "densify.stop": 30, "densify.reset_every": 12,
         "densify.grad_threshold": 3e-3, "densify.cap": 140, "densify.split_scale": 0.05, "densify.prune_scale": 0.1,
         "checkpoint.every": 1000}
# One entry a way to train that has code of its own: settings, options, and the edits that must have happened.
VARIANTS = {
    "default": ({}, {}, {"split", "cloned", "pruned", "reset"}),
    "two views in many patches": ({"views_per_step": 2, "patch_size": 16}, {}, {"split", "reset"}),
    "absgrad": ({"densify.absgrad": True, "densify.absgrad_threshold": 1.2e-2}, {}, {"split", "reset"}),
    "mcmc": ({"densify.strategy": "mcmc", "densify.prune_opacity": 0.45}, {}, {"relocated", "added"}),
    "antialiased": ({}, {"antialiased": True}, {"split", "reset"}),
    "random background": ({"data.background": "random"}, {}, {"split", "reset"}),
    "dense adam": ({"optimizer.kind": "dense"}, {}, {"split", "reset"}),
}


def make_settings(changes: dict) -> Settings:
    """Return :data:`SHORT` with changes by dotted name."""
    settings = Settings()
    for name, value in {**SHORT, **changes}.items():
        section, _, leaf = name.rpartition(".")
        if section:
            value, leaf = dataclasses.replace(getattr(settings, section), **{leaf: value}), section
        settings = dataclasses.replace(settings, **{leaf: value})
    return settings.validate()


def make_trainer(scene: Path, run: Path, changes: dict | None = None, options: dict | None = None, *,
                 resume: bool = False) -> Trainer:
    """Return the trainer of a run that is short by default and whose SH degree rises every eight steps."""
    settings = make_settings(changes or {})
    use_threads(settings.threads)
    d = settings.data
    return Trainer(load_scene(scene, factor=d.factor, test_every=d.test_every), run, settings,
                   renderer_class(settings.method).Options(**{"sh_every": 8, **(options or {})}), resume=resume)


def train(scene: Path, run: Path, changes: dict | None = None, options: dict | None = None, *,
          resume: bool = False) -> Trainer:
    """Train and return the trainer."""
    trainer = make_trainer(scene, run, changes, options, resume=resume)
    trainer.run()
    return trainer


def metrics_of(run: Path) -> list[dict]:
    """Return the lines of ``metrics.jsonl``."""
    return [json.loads(line) for line in (run / METRICS_NAME).read_text().splitlines()]


def edits_of(run: Path) -> set[str]:
    """Return the kinds of edits that a run made."""
    return {kind for line in metrics_of(run) for kind in line.get("edit", {})}
