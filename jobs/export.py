"""``gaian export``: write the points of a run as a PLY file that splat viewers open."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from gaian_hpc.checkpoint.ply import export_points
from gaian_hpc.checkpoint.reader import read_checkpoint
from gaian_hpc.config import settings_from_toml
from gaian_hpc.errors import SettingsError
from gaian_hpc.renderers.base import build_renderer

log = logging.getLogger(__name__)


def export(run: Path | str, output: Path | str, time: float | None = None) -> int:
    """Write the points of ``run`` (a run, a checkpoint's folder or its ``scene.h5``) to the PLY file ``output``.

    Points are in the order of their ids and in the frame of the input scene (no axis is flipped); all bits are kept.
    Points that change in time are written as the 3D Gaussians that they are at ``time``.

    Returns
    -------
    int
        Exit code.

    Raises
    ------
    GaianError
        If the checkpoint cannot be read, its method has no PLY layout, or ``output`` cannot be written.
    """
    output = Path(output)
    if output.suffix.lower() != ".ply":
        raise SettingsError(f"output {str(output)!r}: only .ply can be written; name a file that ends in .ply")
    state = read_checkpoint(run)
    raw = state.store.raw
    settings, options = settings_from_toml(state.settings, f"settings of {run}")
    renderer = build_renderer(settings.method, options, "cpu").at_step(state.step)
    if getattr(renderer, "needs_time", False):
        if time is None:
            raise SettingsError(f"points of method {renderer.name!r} change in time; say with --time which, from "
                                "0 to 1, is wanted")
        raw = renderer.at_time(state.store.values, time)
    elif time is not None:
        raise SettingsError(f"points of method {renderer.name!r} do not change in time; leave --time out")
    n_bad = sum(int(np.count_nonzero(~np.isfinite(x))) for x in raw.values())
    if n_bad:
        log.warning("%s: %d values are not finite and are written as they are", output, n_bad)
    export_points(output, raw)
    print(f"{output}: {len(raw['opacities'])} points of step {state.step}, {output.stat().st_size} bytes")
    return 0
