"""A number that changes with a module's source, to key numba's disk cache on functions that kernels inline."""

from __future__ import annotations

import zlib
from pathlib import Path
from types import ModuleType


def source_stamp(*modules: ModuleType | str) -> int:
    """Return the CRC-32 of the source files of ``modules`` (modules or file paths)."""
    crc = 0
    for module in modules:
        path = module if isinstance(module, str) else module.__file__
        crc = zlib.crc32(Path(path).read_bytes(), crc)
    return crc
