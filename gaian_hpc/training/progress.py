"""The progress bar of a run, on a terminal only."""

from __future__ import annotations

import sys
from types import TracebackType


class Progress:
    """Shows steps, smoothed loss, points and time left; silent where standard error is no terminal."""

    def __init__(self, steps: int, first: int):
        from tqdm import tqdm

        self._bar = tqdm(total=steps, initial=first, unit="step", dynamic_ncols=True, mininterval=0.5,
                         disable=not sys.stderr.isatty())
        self._loss: float | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._bar.close()

    def update(self, step: int, loss: float, n_points: int) -> None:
        """Show that ``step`` is done."""
        self._loss = loss if self._loss is None else 0.98 * self._loss + 0.02 * loss
        if not self._bar.disable:
            self._bar.set_postfix(loss=f"{self._loss:.4f}", points=n_points, refresh=False)
            self._bar.update(step - self._bar.n)
