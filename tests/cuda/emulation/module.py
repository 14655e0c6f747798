"""What the project uses of ``cupy.RawModule``, run on the CPU.

Kernel text is compiled by the host's C++ compiler behind ``cuda_emu.hpp``, which makes every CUDA thread of a block a
fiber that switches at barriers and warp intrinsics. It checks what CuPy does not: the number and the byte sizes of
arguments. It shows nothing of speed, of blocks that run at once, or of the GPU's memory model.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

HEADER = Path(__file__).with_name("cuda_emu.hpp")
FORWARD, REVERSE, RANDOM = 0, 1, 7  # orders of the threads of a block
COMPILER = os.environ.get("CXX", "g++")
SANITIZERS = {
    "": [],
    "address": ["-fsanitize=address", "-fno-omit-frame-pointer"],
    "thread": ["-fsanitize=thread", "-fno-omit-frame-pointer"],
    "undefined": ["-fsanitize=undefined", "-fno-sanitize-recover=undefined"],
}
MAX_STATIC_SHARED = 48 << 10  # what a kernel gets unless it asks for more
_DYNAMIC = re.compile(r"extern\s+__shared__\s+(?:__align__\s*\(\s*\d+\s*\)\s*)?([\w:\s]+?)\s+(\w+)\s*\[\s*\]\s*;")
_KERNEL = re.compile(r'extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)')


class EmulationError(RuntimeError):
    """A kernel does not compile for the host, was called wrongly, or did what no GPU allows."""


def has_compiler() -> bool:
    """Tell whether there is a compiler to build kernels with."""
    return shutil.which(COMPILER) is not None


class EmulatedModule:
    """A compiled kernel file.

    Parameters
    ----------
    code : str
        Kernel text without includes.
    options : sequence of str
        Compiler options; only definitions count.
    name_expressions : sequence of str
        Template instances to make, as for CuPy.
    warp : int
        Lanes of a warp, 32 or 64.
    sanitizer : str
        Key of ``SANITIZERS``.
    """

    def __init__(self, code: str, options: Sequence[str] = (), name_expressions: Sequence[str] = (), *, warp: int = 32,
                 sanitizer: str = ""):
        self.names = list(dict.fromkeys([*name_expressions, *_KERNEL.findall(code)]))
        defines = [o for o in options if o.startswith("-D")]
        flags = ["-O1" if sanitizer else "-O2", "-g1", "-std=c++17", "-fPIC", "-shared", "-fno-math-errno",
                 "-ffp-contract=fast", "-march=native", "-Wno-unknown-pragmas", f"-DCUEMU_WARP={warp}", *defines,
                 f"-I{HEADER.parent}", *SANITIZERS[sanitizer]]
        self._library = ctypes.CDLL(str(_build(_host_text(code, self.names), flags)))

    def set_order(self, order: int) -> None:
        """Run the threads of a block forward, in reverse, or at random with a seed above 1."""
        self._library.emu_order(int(order))

    def get_function(self, name: str) -> EmulatedKernel:
        """Return a kernel by its name or name expression."""
        return EmulatedKernel(self._library, self.names.index(name), name)


class EmulatedKernel:
    """A kernel with the call of CuPy's: ``kernel(grid, block, arguments, shared_mem=0)``."""

    def __init__(self, library: ctypes.CDLL, index: int, name: str):
        self.name = name
        self._launch = getattr(library, f"emu_launch_{index}")
        self._launch.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_size_t] + [ctypes.c_void_p] * 2 + [ctypes.c_size_t]
        sizes, alignments = (ctypes.c_int * 64)(), (ctypes.c_int * 64)()
        n = getattr(library, f"emu_sizes_{index}")(sizes, alignments)
        self._sizes, self._alignments = list(sizes[:n]), list(alignments[:n])

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], arguments: Sequence, *, shared_mem: int = 0):
        if len(arguments) != len(self._sizes):
            raise EmulationError(f"{self.name}: {len(arguments)} arguments where {len(self._sizes)} are declared")
        if shared_mem > MAX_STATIC_SHARED:
            raise EmulationError(f"{self.name}: {shared_mem} bytes of shared memory exceed {MAX_STATIC_SHARED}")
        if any(n < 1 for n in grid) or any(n > 65535 for n in grid[1:]):
            raise EmulationError(f"{self.name}: a grid of {grid} is outside of what a GPU takes")
        held = [self._packed(k, a, size) for k, (a, size) in enumerate(zip(arguments, self._sizes, strict=True))]
        pointers = (ctypes.c_void_p * len(held))(*[ctypes.addressof(v) for v in held])
        dims = [(ctypes.c_uint * 3)(*(tuple(int(x) for x in d) + (1, 1))[:3]) for d in (grid, block)]
        error = ctypes.create_string_buffer(512)
        if self._launch(dims[0], dims[1], int(shared_mem), pointers, error, len(error)):
            raise EmulationError(f"{self.name}: {error.value.decode()}")

    def _packed(self, k: int, argument, size: int):
        if isinstance(argument, np.ndarray):
            if not argument.flags.c_contiguous:
                raise EmulationError(f"{self.name}: argument {k} is not contiguous")
            if argument.size and argument.ctypes.data % max(self._alignments[k], 1):
                raise EmulationError(f"{self.name}: the address of argument {k} is no multiple of "
                                     f"{self._alignments[k]} bytes")
            packed, n = ctypes.c_void_p(argument.ctypes.data), 8
        else:
            if not isinstance(argument, np.generic):
                raise EmulationError(f"{self.name}: argument {k} is a Python number; give it a numpy type")
            packed, n = ctypes.create_string_buffer(argument.tobytes(), argument.nbytes), argument.nbytes
        if n != size:
            raise EmulationError(f"{self.name}: argument {k} has {n} bytes where the kernel takes {size}")
        return packed


def _host_text(code: str, names: Sequence[str]) -> str:
    """Return the kernels with a launcher each; in a namespace, so that shared arrays are the file's own."""
    parts = ['#include "cuda_emu.hpp"', "namespace {", _DYNAMIC.sub(r"CUEMU_DYN_SHARED(\1, \2);", code), "}"]
    for i, name in enumerate(names):
        parts.append(f'extern "C" int emu_launch_{i}(const unsigned* g, const unsigned* t, size_t s, void** a, char* e,'
                     f' size_t n) {{ return cuemu::launch(&{name}, g, t, s, a, e, n); }}\n'
                     f'extern "C" int emu_sizes_{i}(int*o,int*a){{return cuemu::arg_sizes(&{name},o,a);}}')
    parts.append('extern "C" void emu_order(int o){cuemu::g_order=o;}')
    return "\n".join(parts)


def _build(text: str, flags: Sequence[str]) -> Path:
    """Return the shared library of a text; built once per text, header and flags."""
    key = hashlib.sha256("\0".join([text, HEADER.read_text(), COMPILER, *flags]).encode()).hexdigest()[:20]
    folder = Path(tempfile.gettempdir()) / f"gaian_emulation-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    library = folder / f"{key}.so"
    if not library.exists():
        source, partial = folder / f"{key}.{os.getpid()}.cpp", folder / f"{key}.{os.getpid()}.so"
        source.write_text(text)
        done = subprocess.run([COMPILER, *flags, str(source), "-o", str(partial)], capture_output=True, text=True)
        if done.returncode:
            raise EmulationError(done.stderr[:4000])
        source.unlink()
        partial.replace(library)
    return library
