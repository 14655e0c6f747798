"""The kernels of a whole step under the address and the thread sanitizer: no index outside, no race inside a block."""

import pytest

from tests.cuda.test_emulation import run_sanitized

PROGRAM = """
import sys
from tests.cuda.sanitized_step import run
run(*sys.argv[1].split())
"""


@pytest.mark.parametrize("part", ["step", "surfels", "others"])
@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_a_step_is_clean(sanitizer, part):
    done = run_sanitized(sanitizer, f"{sanitizer} {part}", program=PROGRAM)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == f"{part} is done"
