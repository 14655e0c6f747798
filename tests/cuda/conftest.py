"""Tests here build kernels with the host's C++ compiler."""

import pytest

from gaian_hpc.backends.threads import use_threads
from tests.cuda.emulation.module import COMPILER, has_compiler


@pytest.fixture(autouse=True)
def needs_a_compiler():
    if not has_compiler():
        pytest.skip(f"no C++ compiler {COMPILER!r} to run the kernels with")


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Run kernels of the cpu backend on one thread."""
    use_threads(1)
