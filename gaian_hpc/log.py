"""Rank-aware log lines and the ``metrics.jsonl`` file."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from .errors import DataError


def get_logger(rank: int = 0, size: int = 1, verbose: bool = False) -> logging.Logger:
    """Return the package's logger, set up to print one line per event on standard error.

    Parameters
    ----------
    rank, size : int
        With more than one rank every line begins with the rank, and ranks other than 0 print warnings and above only.
    verbose : bool
        Print debug lines, on all ranks.
    """
    logger = logging.getLogger("gaian_hpc")
    prefix = f"[{rank:>{len(str(size - 1))}}/{size}] " if size > 1 else ""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(prefix + "%(message)s"))
    logger.handlers[:] = [handler]
    logger.setLevel(logging.DEBUG if verbose else logging.INFO if rank == 0 else logging.WARNING)
    logger.propagate = False
    return logger


def write_text(path: Path, text: str) -> None:
    """Write a file aside and rename it, so that a kill leaves the old one or the new one."""
    aside = path.with_name(path.name + ".part")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)


class MetricsLog:
    """One JSON object per line, flushed as written, so that a run can be followed and survives a kill.

    Parameters
    ----------
    path : path
        File to append to; created if absent.
    resume_step : int, optional
        Drop the lines of steps after this one, and a last line cut short by a kill, so that a resumed run leaves
        the same file as an uninterrupted one. Without it a present file is emptied.

    Raises
    ------
    DataError
        If the present file is not one of JSON lines.
    """

    def __init__(self, path: str | os.PathLike[str], resume_step: int | None = None):
        self.path = Path(path)
        if resume_step is not None and self.path.exists():
            self._rewind(resume_step)
        self._file = self.path.open("w" if resume_step is None else "a", encoding="utf-8")

    def write(self, step: int, **values: Any) -> None:
        """Append ``{"step": step, **values}``."""
        self._file.write(json.dumps({"step": step, **values}, allow_nan=True) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file; more than once is allowed."""
        self._file.close()

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _rewind(self, step: int) -> None:
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n"):
            del lines[-1]
        kept = [line for i, line in enumerate(lines, 1) if self._step(line, i) <= step]
        write_text(self.path, "".join(kept))

    def _step(self, line: str, number: int) -> int:
        try:
            return int(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError):
            raise DataError(f"{self.path}:{number}: not a JSON line with a step; move the file away") from None
