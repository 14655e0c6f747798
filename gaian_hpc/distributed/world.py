"""What this process knows of the other ranks."""

from __future__ import annotations

import os

from ..errors import SettingsError

# Set by the launchers: Hydra and Slurm's PMI, Open MPI, Slurm's PMIx.
_SIZE_VARIABLES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")


def launched_ranks() -> int:
    """Return the number of ranks that a launcher says it started; 1 without a launcher."""
    for name in _SIZE_VARIABLES:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return 1


def require_one_rank() -> None:
    """Refuse to train one run on several ranks, which would each write the same files.

    Raises
    ------
    SettingsError
    """
    n = launched_ranks()
    if n > 1:
        raise SettingsError(f"started on {n} ranks, but this version trains on 1; run gaian by itself")
