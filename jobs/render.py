"""``gaian render``: views of a run, or a camera path, as PNG files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from gaian_hpc.arrays import View
from gaian_hpc.data.camera_path import read_camera_path
from gaian_hpc.data.folders import SUFFIXES
from gaian_hpc.errors import DataError, SettingsError
from gaian_hpc.evaluation.run import open_run
from gaian_hpc.evaluation.views import render_all, surface_maps
from gaian_hpc.training.pixels import shown_background


def run_render(run: Path | str, *, output: Path | str | None = None, path: Path | str | None = None,
               split: str = "test", maps: bool = False) -> int:
    """Render the views of a split of ``run``, or the cameras of the file ``path``, and return the exit code.

    With ``maps`` each picture comes with ``NAME.depth.tiff`` and, of methods that have it, ``NAME.median.tiff``, camera
    depths in world units as 32-bit floats, 0 where nothing is hit, and ``NAME.normals.png``, (normal + 1)/2 in camera
    coordinates, towards the camera, grey where nothing is hit.
    """
    trained = open_run(run)
    views = read_camera_path(Path(path)) if path is not None else trained.views(split)
    if not views:
        raise DataError(f"{run} has no {split} views; choose another --split or give --path")
    folder = Path(output) if output is not None else Path(run) / "renders"
    background, names = shown_background(trained.settings.data.background), [png_name(view) for view in views]
    if twice := next((name for name, n in Counter(names).items() if n > 1), None):
        raise DataError(f"{path or run}: several cameras would be rendered to {twice}; give each a name of its own")
    renderer = trained.renderer
    if maps:
        if not hasattr(renderer, "with_maps"):
            raise SettingsError(f"method {renderer.name!r} renders no maps; leave --maps out")
        renderer = renderer.with_maps()
    renderings = render_all(renderer, trained.state.store.values, views, background, trained.settings.patch_size)
    for view, name, rendering in zip(views, names, renderings, strict=True):
        write_png(folder / name, rendering.image)
        if maps:
            stem = name.removesuffix(".png")
            for kind, plane in surface_maps(view, rendering).items():
                if kind == "normals":
                    write_png(folder / f"{stem}.normals.png", (plane + 1) / 2)
                else:
                    write_tiff(folder / f"{stem}.{kind}.tiff", plane)
    print(f"{len(views)} views of step {trained.state.step} -> {folder}")
    return 0


def png_name(view: View) -> str:
    """Return the file name of a view's rendering; folders in its name are kept."""
    name = Path(view.name or f"{view.index:05d}")
    return str(name.with_suffix(".png")) if name.suffix.lower() in SUFFIXES else f"{name}.png"


def write_png(path: Path, image: np.ndarray) -> None:
    """Write a (3, H, W) picture in [0, 1]; the file appears when it is complete."""
    _write(path, np.round(np.clip(image, 0, 1) * 255).astype(np.uint8).transpose(1, 2, 0), "PNG")


def write_tiff(path: Path, plane: np.ndarray) -> None:
    """Write an (H, W) float32 array as it is; the file appears when it is complete."""
    _write(path, plane, "TIFF")


def _write(path: Path, pixels: np.ndarray, form: str) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    Image.fromarray(pixels).save(part, format=form)
    part.replace(path)
