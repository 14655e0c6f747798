"""Tests here build kernels with the host's C++ compiler."""

import pytest

from tests.cuda.emulation.module import COMPILER, has_compiler


@pytest.fixture(autouse=True)
def needs_a_compiler():
    if not has_compiler():
        pytest.skip(f"no C++ compiler {COMPILER!r} to run the kernels with")
