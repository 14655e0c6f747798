"""``gaian export``: write the points of a run as a PLY file that splat viewers open."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np

from gaian_hpc.checkpoint.ply import export_points
from gaian_hpc.checkpoint.reader import read_checkpoint
from gaian_hpc.errors import SettingsError

log = logging.getLogger(__name__)


def run(options: Any) -> int:
    """Run the job from parsed options: ``run`` and ``output``."""
    return export(options.run, options.output)


def export(run: Path | str, output: Path | str) -> int:
    """Write the points of ``run`` (a run, a checkpoint's folder or its ``scene.h5``) to the PLY file ``output``.

    Points are in the order of their ids and in the frame of the input scene (no axis is flipped); all bits are kept.

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
    n_bad = sum(int(np.count_nonzero(~np.isfinite(x))) for x in state.store.raw.values())
    if n_bad:
        log.warning("%s: %d values are not finite and are written as they are", output, n_bad)
    export_points(output, state.store.raw)
    print(f"{output}: {state.store.n} points of step {state.step}, {output.stat().st_size} bytes")
    return 0
