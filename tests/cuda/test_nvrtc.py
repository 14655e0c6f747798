"""All kernels through the compiler that CuPy uses, with its options, for every architecture; no GPU is needed."""

import pytest

from gaian_hpc.backends.cuda import kernel_source
from tests.cuda.compile_gate import ARCHITECTURES, INSTANCES, usages


@pytest.fixture(scope="module", autouse=True)
def needs_nvrtc():
    nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="CuPy is not installed: kernels not compiled")
    try:
        nvrtc.getVersion()
    except Exception as error:  # CuPy's own error types differ between versions
        pytest.skip(f"NVRTC is not installed: kernels not compiled ({error})")


@pytest.mark.parametrize("source", INSTANCES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_compile_without_spills_and_leave_room_for_several_blocks(source, architecture):
    found = usages(source, architecture)
    assert len(found) == kernel_source(source).count('extern "C" __global__') + len(INSTANCES[source])
    assert [u for u in found if not u.ok] == []
