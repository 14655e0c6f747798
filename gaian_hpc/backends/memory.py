"""How much memory this host could give."""

from __future__ import annotations

import os
from pathlib import Path


def free_memory() -> int:
    """Return the bytes that this host could give, as Linux estimates them (what is cached included)."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
