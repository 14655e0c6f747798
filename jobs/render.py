"""``gaian render``: views of a run, or a camera path, as PNG files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from gaian_hpc.arrays import View
from gaian_hpc.data.camera_path import read_camera_path
from gaian_hpc.data.folders import SUFFIXES
from gaian_hpc.errors import DataError
from gaian_hpc.evaluation.run import open_run
from gaian_hpc.evaluation.views import render_view
from gaian_hpc.training.pixels import shown_background


def run_render(run: Path | str, *, output: Path | str | None = None, path: Path | str | None = None,
               split: str = "test") -> int:
    """Render the views of a split of ``run``, or the cameras of the file ``path``, and return the exit code."""
    trained = open_run(run)
    views = read_camera_path(Path(path)) if path is not None else trained.views(split)
    if not views:
        raise DataError(f"{run} has no {split} views; choose another --split or give --path")
    folder = Path(output) if output is not None else Path(run) / "renders"
    background, names = shown_background(trained.settings.data.background), [png_name(view) for view in views]
    if twice := next((name for name, n in Counter(names).items() if n > 1), None):
        raise DataError(f"{path or run}: several cameras would be rendered to {twice}; give each a name of its own")
    for view, name in zip(views, names, strict=True):
        image = render_view(trained.renderer, trained.state.store.values, view, background,
                            trained.settings.patch_size)
        write_png(folder / name, image)
    print(f"{len(views)} views of step {trained.state.step} -> {folder}")
    return 0


def png_name(view: View) -> str:
    """Return the file name of a view's rendering; folders in its name are kept."""
    name = Path(view.name or f"{view.index:05d}")
    return str(name.with_suffix(".png")) if name.suffix.lower() in SUFFIXES else f"{name}.png"


def write_png(path: Path, image: np.ndarray) -> None:
    """Write a (3, H, W) picture in [0, 1]; the file appears when it is complete."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.round(np.clip(image, 0, 1) * 255).astype(np.uint8).transpose(1, 2, 0)
    part = path.with_name(path.name + ".part")
    Image.fromarray(pixels).save(part, format="PNG")
    part.replace(path)
