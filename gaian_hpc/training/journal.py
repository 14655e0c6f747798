"""What a run writes as it goes: metrics, timings, and progress on a terminal."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..distributed.ledger import as_table
from ..log import MetricsLog, write_text
from .progress import Progress
from .step import StepReport

if TYPE_CHECKING:
    from .trainer import Trainer

METRICS_NAME = "metrics.jsonl"
TIMINGS_NAME = "timings.jsonl"


class Journal:
    """What a run writes line by line, by the root: metrics, timings, progress on a terminal.

    Lines of ``metrics.jsonl`` with ``exchange`` tell bytes sent since the last such line, over all ranks; they are
    there on several ranks only. All other lines are the same on any number of ranks.
    """

    def __init__(self, trainer: Trainer, started: float):
        self._trainer, self._started, self._stack = trainer, started, ExitStack()
        self._sent = np.zeros_like(trainer.exchange.ledger.sent)
        self._due = False

    def __enter__(self) -> Journal:
        t = self._trainer
        with t.world.agreed():
            if t.world.is_root:
                resume_step = t.step if t.resumed is not None else None
                if t.resumed is not None:
                    restore_metrics(t.output / METRICS_NAME, t.resumed.metrics)
                self._metrics = self._stack.enter_context(MetricsLog(t.output / METRICS_NAME, resume_step))
                self._timings = self._stack.enter_context(MetricsLog(t.output / TIMINGS_NAME, resume_step))
                self._progress = self._stack.enter_context(Progress(t.settings.steps, t.step))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def write(self, report: StepReport, n_points: int) -> None:
        """Write the lines of the step just done."""
        t = self._trainer
        # Not at the last step: a run that is gone on with must leave the lines of one that never stopped.
        due = t.step % t.settings.log_every == 0 or t.step == 1
        if t.world.is_root:
            self._progress.update(t.step, report.loss, n_points)
            if report.edit is not None:
                edit = {k: v for k, v in dataclasses.asdict(report.edit).items() if v and k != "n_points"}
                self._metrics.write(t.step, n_points=n_points, edit=edit)
            if due:
                self._metrics.write(t.step, loss=report.loss, l1=report.l1, ssim=report.ssim, n_points=n_points,
                                    n_scope=report.n_scope)
        self._due |= due

    def write_ranks(self, reads: Mapping[str, int]) -> None:
        """Collective, with nothing in flight. Write bytes, times and reads of all ranks, if lines are due."""
        if not self._due:
            return
        t, self._due = self._trainer, False
        phases = t.timer.seconds()
        counts = t.world.sum(np.array(list(reads.values()), np.int64))
        more = {"reads": dict(zip(reads, counts.tolist(), strict=True))} if len(counts) else {}
        if t.world.size > 1:
            names = sorted(set().union(*t.world.collect(tuple(phases))))
            ledger = t.exchange.ledger.sent
            sent = t.world.sum(ledger - self._sent)
            self._sent = ledger.copy()
            times = t.world.stack(np.array([phases.get(name, 0.0) for name in names]))
            table = {name: [round(float(f(times[:, i])), 4) for f in (np.min, np.mean, np.max)]
                     for i, name in enumerate(names)}
            if t.world.is_root:
                self._metrics.write(t.step, exchange=as_table(sent))
        else:
            table = {name: round(seconds, 4) for name, seconds in phases.items()}
        if t.world.is_root:
            self._timings.write(t.step, seconds=round(time.monotonic() - self._started, 3), phases=table, **more)


def read_metrics(path: Path) -> tuple[str, ...]:
    """Return the lines of ``metrics.jsonl`` that do not depend on the number of ranks."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return tuple(line for line in lines if '"exchange"' not in line)


def restore_metrics(path: Path, lines: Sequence[str]) -> None:
    """Write ``metrics.jsonl`` from a checkpoint's lines if the file is gone."""
    if lines and not path.exists():
        write_text(path, "".join(f"{line}\n" for line in lines))
