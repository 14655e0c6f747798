"""How many threads the compiled kernels of this process use."""

from __future__ import annotations

from ..errors import SettingsError


def use_threads(threads: int) -> int:
    """Set the threads of all later CPU kernels and return their number.

    Parameters
    ----------
    threads : int
        0 = all cores this process may use (its affinity, as Slurm and ``taskset`` set it).

    Raises
    ------
    SettingsError
        If there are fewer cores: more threads than cores only slow each other down.
    """
    import numba

    # Waits by sleeping. OpenMP's waits spin, and on a shared machine a step took twice as long or more with it.
    numba.config.THREADING_LAYER = "workqueue"
    available = numba.config.NUMBA_NUM_THREADS
    if threads > available:
        raise SettingsError(f"setting threads is {threads}; this process may use {available} cores, so at most that, "
                            "or 0 for all of them")
    numba.set_num_threads(threads or available)
    return numba.get_num_threads()
