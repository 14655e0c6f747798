"""A trained run opened for rendering: its scene, renderer, points and settings."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from ..arrays import View
from ..checkpoint.folders import list_checkpoints
from ..checkpoint.reader import read_checkpoint
from ..checkpoint.schema import CheckpointState, step_name
from ..config import settings_from_toml
from ..errors import BackendError, DataError
from ..renderers.base import PointRenderer, build_renderer
from ..settings import Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainedRun:
    """A checkpoint with the renderer it was trained with, at the SH degree of its step."""

    state: CheckpointState
    settings: Settings
    renderer: PointRenderer

    def views(self, split: str) -> list[View]:
        """Return the views of split ``test`` or ``train``."""
        return [c.view for c in self.state.cameras if c.is_test == (split == "test")]


def open_run(path: Path | str, step: int | None = None) -> TrainedRun:
    """Open a run, or one of its checkpoints.

    Parameters
    ----------
    path : path
        Folder of a run, of a checkpoint, or a ``scene.h5``.
    step : int, optional
        Step of the checkpoint; the newest intact one by default.

    Raises
    ------
    GaianError
        If there is no such checkpoint or it is damaged.
    """
    path = Path(path)
    if step is not None:
        known = {p.name: p for p in list_checkpoints(path)}
        if step_name(step) not in known:
            raise DataError(f"{path} has no checkpoint of step {step}; it has: {', '.join(sorted(known)) or 'none'}")
        path = known[step_name(step)]
    state = read_checkpoint(path)
    settings, options = settings_from_toml(state.settings, f"settings of {path}")
    try:
        renderer = build_renderer(settings.method, options, settings.backend)
    except BackendError as error:
        log.warning("%s was trained with backend %s; it is rendered by the cpu, because: %s", path, settings.backend,
                    str(error).partition("; use --backend")[0].removeprefix(f"backend {settings.backend}: "))
        renderer = build_renderer(settings.method, options, "cpu")
    return TrainedRun(state, settings, renderer.at_step(state.step))
