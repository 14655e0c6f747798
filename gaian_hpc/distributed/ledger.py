"""Bytes that a rank hands over, by phase and by the link they cross."""

from __future__ import annotations

import numpy as np

LINKS = ("self", "same_host", "other_host")
PHASES = ("counts", "splats", "pixels", "gradients", "points")
"""What is handed over: counts of a unit's patches; splats and their ids; rendered pixels beside patch borders;
gradients of splats (of all points, too, in replicated mode with a barrier); points themselves (density control,
placement, migration, and what replicated mode publishes)."""


class Ledger:
    """Bytes sent since the start, (phases, links) int64. ``self`` counts what an owner renders itself, never copied."""

    def __init__(self) -> None:
        self.sent = np.zeros((len(PHASES), len(LINKS)), np.int64)

    def add(self, phase: str, sizes: np.ndarray, links: np.ndarray) -> None:
        """Add ``sizes`` (size,) bytes by destination, whose links are ``links`` (size,)."""
        np.add.at(self.sent[PHASES.index(phase)], links, np.asarray(sizes, np.int64))


def as_table(sent: np.ndarray) -> dict[str, dict[str, int]]:
    """Return bytes by phase and link, as ``metrics.jsonl`` has them."""
    return {phase: dict(zip(LINKS, row, strict=True)) for phase, row in zip(PHASES, sent.tolist(), strict=True)}
