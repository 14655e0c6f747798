"""The folders of a run's checkpoints: listing, pruning, and what interrupted writes leave behind.

Hidden names are never checkpoints, with one exception: ``.step_0000300.tmp`` is being written,
``.step_0000300.gone`` is being removed, and ``.step_0000300.old`` is a complete one set aside for the instant that its
replacement takes its name.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import GaianError
from .schema import CHECKPOINTS_FOLDER, step_name

_STEP = re.compile(r"step_(\d{7,})")
_LEFTOVER = re.compile(r"\.(step_\d{7,})\.(tmp|old|gone)")


def list_checkpoints(run_dir: Path | str) -> list[Path]:
    """Return the folders of all checkpoints of a run, oldest first, whether they are intact or not.

    A checkpoint that was set aside by a replacement that never came is one of them.
    """
    folder = Path(run_dir) / CHECKPOINTS_FOLDER
    found: dict[int, Path] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        set_aside = _LEFTOVER.fullmatch(path.name)
        if set_aside and set_aside[2] == "old":
            found.setdefault(int(set_aside[1][5:]), path)
        elif match := _STEP.fullmatch(path.name):
            found[int(match[1])] = path
    return [found[step] for step in sorted(found)]


def prune_checkpoints(run_dir: Path | str, keep: int, step: int) -> None:
    """Remove all but the newest ``keep`` checkpoints up to ``step``, the one just written; for the root only.

    Parameters
    ----------
    run_dir : path
    keep : int
        0 keeps all.
    step : int
        Later checkpoints are neither counted nor removed: a run that went back to this step found them damaged.

    Raises
    ------
    GaianError
        If a folder cannot be removed.
    """
    reached = [path for path in list_checkpoints(run_dir) if _step_of(path) <= step]
    for path in reached[:-keep] if keep > 0 else []:
        with reported(path):
            gone = path.with_name(f".{step_name(_step_of(path))}.gone")
            path.rename(gone)  # a removal cut short must not look like a damaged checkpoint
            shutil.rmtree(gone)


def clean_leftovers(run_dir: Path | str) -> None:
    """Finish what interrupted writes, replacements and removals left behind; for the root only."""
    folder = Path(run_dir) / CHECKPOINTS_FOLDER
    for path in sorted(folder.iterdir()):
        match = _LEFTOVER.fullmatch(path.name)
        if match and match[2] == "old" and not (folder / match[1]).exists():
            path.rename(folder / match[1])
        elif match:
            shutil.rmtree(path)


def _step_of(path: Path) -> int:
    """Return the step that the folder of a checkpoint is named after."""
    return int(_STEP.search(path.name)[1])


def working_folder(run_dir: Path | str, step: int) -> Path:
    """Return the hidden folder in which the checkpoint of ``step`` is made."""
    return Path(run_dir) / CHECKPOINTS_FOLDER / f".{step_name(step)}.tmp"


@contextmanager
def reported(path: Path) -> Iterator[None]:
    """Turn what the system refuses into one line that names the file."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # h5py reports a full disk as either
        reason = getattr(error, "strerror", None) or error
        raise GaianError(f"{path}: the checkpoint cannot be written ({reason}); free space or mend the permissions, "
                         f"then resume the run") from error
