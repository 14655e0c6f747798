"""Fixtures of the unit tests: a small city to train on, and a logger that each test leaves as it found it."""

import logging
from pathlib import Path

import pytest

from gaian_hpc.backends.threads import use_threads
from gaian_hpc.data.synthetic import write_city


@pytest.fixture(scope="session")
def city(tmp_path_factory) -> Path:
    """Return the folder of a COLMAP scene of ten 64 × 48 pictures, two of them for tests; not to be written to."""
    return write_city(tmp_path_factory.mktemp("city") / "scene", n_views=10, width=64, height=48, n_points=600,
                      spacing=4.0)


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Run kernels on one thread, whose pool sleeps while it waits; tests of threads ask for more."""
    use_threads(1)


@pytest.fixture(autouse=True)
def package_logger():
    """Undo what a job did to the package's logger, which would keep writing to a stream that is gone."""
    logger = logging.getLogger("gaian_hpc")
    before = list(logger.handlers), logger.level, logger.propagate
    yield logger
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])
