"""The emulation itself: warp semantics against plain Python, and the mistakes it must see."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.cuda.emulation.module import COMPILER, FORWARD, RANDOM, REVERSE, EmulatedModule, EmulationError

ROOT = Path(__file__).resolve().parents[2]
WARPS = r"""
extern "C" __global__ void warps(int* o) {
    const int t = threadIdx.x, n = blockDim.x;
    o[0 * n + t] = __shfl_xor_sync(0xffffffffu, t, 5);
    o[1 * n + t] = __shfl_down_sync(0xffffffffu, t, 2, 8);
    o[2 * n + t] = (int)__ballot_sync(0xffffffffu, t % 3 == 0);
    if (t % 32 < 8) o[3 * n + t] = __shfl_xor_sync(0xffu, t, 1);
    else o[3 * n + t] = __shfl_down_sync(0xffffff00u, t, 1);
    o[4 * n + t] = __syncthreads_count(t % 2);
}
"""
BAD = {
    "out_of_shared": "__shared__ float s[64]; s[threadIdx.x] = 1; out[threadIdx.x] = s[threadIdx.x + (out[0] == 0)];",
    "out_of_global": "out[threadIdx.x + 1] = 1;",
    "no_barrier": "__shared__ float s[64]; s[threadIdx.x] = threadIdx.x; out[threadIdx.x] = s[63 - threadIdx.x];",
    "race": "out[0] += 1;",
    "divergent": "if (threadIdx.x < 32) {\n __syncthreads(); } else {\n __syncthreads(); }",
    "half_warp": "if (threadIdx.x % 32 < 16) out[threadIdx.x] = __shfl_down_sync(0xffffffffu, out[0], 1);\n"
                 "__syncthreads();",
}
GOOD = ("__shared__ float s[64]; s[threadIdx.x] = threadIdx.x; __syncthreads();"
        "out[threadIdx.x] = s[63 - threadIdx.x];")


def kernel(body: str) -> str:
    return f'extern "C" __global__ void k(float* __restrict__ out) {{\n{body}\n}}'


@pytest.mark.parametrize("order", [FORWARD, REVERSE, RANDOM])
def test_warp_intrinsics_are_those_of_cuda(order):
    module = EmulatedModule(WARPS)
    module.set_order(order)
    out = np.full((5, 64), -1, np.int32)
    module.get_function("warps")((1,), (64,), (out,))
    t = np.arange(64)
    lane = t % 32
    np.testing.assert_array_equal(out[0], t ^ 5)
    np.testing.assert_array_equal(out[1], np.where(t % 8 + 2 < 8, t + 2, t))
    ballots = [sum(1 << i for i in range(32) if (k + i) % 3 == 0) for k in (0, 32)]
    np.testing.assert_array_equal(out[2].view(np.uint32), np.repeat(np.array(ballots, np.uint32), 32))
    np.testing.assert_array_equal(out[3], np.where(lane < 8, t ^ 1, np.where(lane < 31, t + 1, t)))
    assert (out[4] == 32).all()


@pytest.mark.parametrize(("name", "message"), [("divergent", "divergent barrier"), ("half_warp", "deadlock")])
def test_a_kernel_that_would_hang_is_an_error(name, message):
    with pytest.raises(EmulationError, match=message):
        EmulatedModule(kernel(BAD[name])).get_function("k")((1,), (64,), (np.zeros(64, np.float32),))


def test_a_missing_barrier_changes_the_result_with_the_order_of_threads():
    results = []
    for order in (FORWARD, REVERSE):
        module, out = EmulatedModule(kernel(BAD["no_barrier"])), np.zeros(64, np.float32)
        module.set_order(order)
        module.get_function("k")((1,), (64,), (out,))
        results.append(np.nan_to_num(out, nan=-1))
    assert not np.array_equal(*results)


@pytest.mark.parametrize(("arguments", "message"), [
    ((), "0 arguments where 1"), ((1.0,), "Python number"), ((np.float32(1),), "4 bytes where the kernel takes 8"),
    ((np.zeros((8, 2), np.float32)[:, 0],), "not contiguous")])
def test_wrong_arguments_are_errors(arguments, message):
    with pytest.raises(EmulationError, match=message):
        EmulatedModule(kernel(GOOD)).get_function("k")((1,), (64,), arguments)


CHILD = """
import sys, numpy as np
from tests.cuda.emulation.module import EmulatedModule
from tests.cuda.test_emulation import BAD, GOOD, kernel
module = EmulatedModule(kernel(BAD.get(sys.argv[1], GOOD)), sanitizer=sys.argv[2])
module.get_function("k")((1,), (64,), (np.zeros(64, np.float32),))
"""


def run_sanitized(sanitizer: str, *arguments: str, program: str = CHILD) -> subprocess.CompletedProcess:
    """Run a program under a sanitizer; skips where the compiler has none that starts here."""
    library = subprocess.run([COMPILER, f"-print-file-name=lib{sanitizer[0]}san.so"], capture_output=True, text=True)
    if not os.path.isabs(library.stdout.strip()):
        pytest.skip(f"{COMPILER} has no {sanitizer} sanitizer")
    environment = dict(os.environ, LD_PRELOAD=library.stdout.strip(), ASAN_OPTIONS="detect_leaks=0",
                       TSAN_OPTIONS="exitcode=66 report_signal_unsafe=0", OMP_NUM_THREADS="1",
                       OPENBLAS_NUM_THREADS="1", PYTHONPATH=str(ROOT))
    fixed = ["setarch", "-R"] if sanitizer == "thread" else []  # some versions refuse a random address layout
    if fixed and shutil.which("setarch") is None:
        pytest.skip("no setarch to fix the address layout with")
    probe = subprocess.run([*fixed, sys.executable, "-c", "pass"], env=environment, capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"the {sanitizer} sanitizer does not start here: {probe.stderr.strip()[:200]}")
    return subprocess.run([*fixed, sys.executable, "-c", program, *arguments], env=environment, capture_output=True,
                          text=True, cwd=ROOT)


@pytest.mark.parametrize(("sanitizer", "name", "message"), [
    ("address", "out_of_shared", "global-buffer-overflow"), ("address", "out_of_global", "heap-buffer-overflow"),
    ("thread", "no_barrier", "data race"), ("thread", "race", "data race")])
def test_sanitizers_see_a_wrong_kernel(sanitizer, name, message):
    done = run_sanitized(sanitizer, name, sanitizer)
    assert done.returncode != 0
    assert re.search(message, done.stderr)


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_sanitizers_pass_a_right_kernel(sanitizer):
    done = run_sanitized(sanitizer, "good", sanitizer)
    assert done.returncode == 0, done.stderr[-2000:]
