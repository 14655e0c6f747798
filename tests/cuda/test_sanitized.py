"""The kernels of a whole step under the address and the thread sanitizer: no index outside, no race inside a block."""

import pytest

from tests.cuda.test_emulation import run_sanitized

PROGRAM = """
import sys
from tests.cuda.sanitized_step import run
run(sys.argv[1])
"""


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_a_step_is_clean(sanitizer):
    done = run_sanitized(sanitizer, sanitizer, program=PROGRAM)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "pairs summed, bytes packed"
