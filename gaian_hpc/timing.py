"""Time per phase of a step, cheap enough to be always on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class PhaseTime:
    """Accumulated time of one phase: seconds and number of entries."""

    seconds: float = 0.0
    calls: int = 0


class _Region:
    """Adds the time between entry and exit to one phase; may be nested in itself only through another phase."""

    __slots__ = ("_phase", "_start")

    def __init__(self, phase: PhaseTime):
        self._phase = phase
        self._start = 0.0

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._phase.seconds += time.perf_counter() - self._start
        self._phase.calls += 1


class PhaseTimer:
    """Times of named phases, in order of first use.

    Examples
    --------
    >>> timer = PhaseTimer()
    >>> with timer.region("splat"):
    ...     pass
    >>> timer.phases["splat"].calls
    1
    """

    def __init__(self) -> None:
        self.phases: dict[str, PhaseTime] = {}
        self._regions: dict[str, _Region] = {}

    def region(self, name: str) -> _Region:
        """Return the context manager that adds its time to phase ``name``; not to be nested in the same phase."""
        region = self._regions.get(name)
        if region is None:
            phase = self.phases[name] = PhaseTime()
            region = self._regions[name] = _Region(phase)
        return region

    def reset(self) -> None:
        """Zero all phases, keeping their order."""
        for phase in self.phases.values():
            phase.seconds, phase.calls = 0.0, 0

    def seconds(self) -> dict[str, float]:
        """Return seconds per phase."""
        return {name: phase.seconds for name, phase in self.phases.items()}

    def table(self, per: int = 0) -> str:
        """Return milliseconds and shares of the phases as aligned text lines.

        Parameters
        ----------
        per : int
            Number of steps to divide by; 0 divides each phase by its own number of entries.
        """
        return format_phases({n: 1e3 * p.seconds / max(per or p.calls, 1) for n, p in self.phases.items() if p.calls})


def format_phases(milliseconds: Mapping[str, float]) -> str:
    """Return ``phase  ms  share`` lines with a total."""
    total = sum(milliseconds.values())
    width = max([len(n) for n in milliseconds] + [len("total")])
    rows = [f"{name:<{width}} {ms:>10.3f} ms {100 * ms / (total or 1):>5.1f} %" for name, ms in milliseconds.items()]
    return "\n".join([*rows, f"{'total':<{width}} {total:>10.3f} ms"])
