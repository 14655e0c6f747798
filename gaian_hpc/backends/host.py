"""The memory of the CPU as a place where arrays lie: what :class:`~gaian_hpc.backends.cuda.Device` is for a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np


class Host:
    """Where arrays lie that no GPU holds."""

    xp = np

    def array(self, x: Any, dtype: type | None = None) -> np.ndarray:
        """Return ``x`` contiguous; what is so already is not copied."""
        return np.ascontiguousarray(x, dtype)

    def host(self, x: np.ndarray) -> np.ndarray:
        """Return ``x``, which is here."""
        return x

    def synchronize(self) -> None:
        """Do nothing: what was asked for is done."""


HOST = Host()
