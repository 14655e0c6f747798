"""Compile all kernels as CuPy would, without a GPU: ``python -m tests.cuda.compile_gate [ARCHITECTURE …]``.

Needs CuPy and NVRTC (``pip install cupy-cuda13x nvidia-cuda-nvrtc``). Prints registers, spilled bytes and shared
memory of each kernel; the exit code is 1 when one is over its limit. No GPU runs anything here.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

from gaian_hpc.backends.cuda import kernel_source

ARCHITECTURES = ("75", "80", "86", "89", "90", "100", "120")  # Turing to Blackwell
MAX_REGISTERS = 128  # at 256 threads a block, two blocks a multiprocessor; the compositor has its own
MAX_COMPOSITOR_REGISTERS = {"Ellipse": 64}  # four blocks; as ``blocks_at_once`` of the compositor asks for
MAX_LARGE_COMPOSITOR_REGISTERS = 80  # three blocks, for methods with more to read of a splat
MAX_SHARED = 48 << 10
MAX_SPILLED = {"gaussian2d/gaussian2d.cu": 8}  # else none; its project_vjp, on sm_80 to sm_89
PROJECTIONS = [f"{kernel}<{d}>" for d in range(4) for kernel in ("project", "project_vjp")]


def compositors(*methods: str) -> list[str]:
    """Return the instances of the compositor and the tile lists for methods by their C++ types."""
    return [f"{kernel}<{arguments}>" for method in methods for kernel, arguments in (
        ("count_tiles", method), ("emit_tiles", method), ("composite", method), ("composite_vjp", f"{method}, false"),
        ("composite_vjp", f"{method}, true"))]


INSTANCES = {
    "gaussian3d/gaussian3d.cu": PROJECTIONS, "gaussian4d/gaussian4d.cu": PROJECTIONS,
    "gaussian2d/gaussian2d.cu": PROJECTIONS, "convex3d/convex3d.cu": PROJECTIONS,
    "gaussian2d/surfels.cu": compositors("Surfel<3>", "Surfel<7>", "IntersectedSurfel"),
    "convex3d/convexes.cu": compositors("Convex<3>", "Convex<4>"),
    "ellipses/ellipses.cu": compositors(*(f"Ellipse<{absgrad}, {n}>" for absgrad in ("false", "true") for n in (3, 4))),
    "gaussian2d/normals.cu": [],
    **{f"training/{name}.cu": [] for name in ("loss", "points", "codecs", "patches", "noise")},
}
_USAGE = re.compile(r"Compiling entry function '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?"
                    r"Used (\d+) registers([^\n]*)", re.DOTALL)


@dataclass(frozen=True)
class Usage:
    """What a kernel takes of a multiprocessor on one architecture, by the compiler's account."""

    source: str
    architecture: str
    kernel: str
    registers: int
    spilled: int
    shared: int

    @property
    def ok(self) -> bool:
        """Whether it is within the limits."""
        method = re.match(r"composite\w*<(\w+)", self.kernel)
        limit = MAX_COMPOSITOR_REGISTERS.get(method[1], MAX_LARGE_COMPOSITOR_REGISTERS) if method else MAX_REGISTERS
        spilled = MAX_SPILLED.get(self.source, 0)
        return self.registers <= limit and self.spilled <= spilled and self.shared <= MAX_SHARED


def usages(source: str, architecture: str) -> list[Usage]:
    """Compile a kernel file for an architecture and return what its kernels take.

    Raises
    ------
    RuntimeError
        With the compiler's log, if it does not compile.
    """
    from cupy._core import core
    from cupy_backends.cuda.libs import nvrtc

    # What RawModule adds for NVRTC, and -v of the assembler for its account.
    options = (*core.assemble_cupy_compiler_options(()), "-ftz=true", "--device-as-default-execution-space",
               "-DWARP_SIZE=32", f"-arch=sm_{architecture}", "--ptxas-options=-v")
    program = nvrtc.createProgram(kernel_source(source), source, (), ())
    try:
        for name in INSTANCES[source]:
            nvrtc.addNameExpression(program, name)
        try:
            nvrtc.compileProgram(program, options)
        except nvrtc.NVRTCError as error:
            raise RuntimeError(f"{source} for sm_{architecture}:\n{nvrtc.getProgramLog(program)}") from error
        names = {nvrtc.getLoweredName(program, name): name for name in INSTANCES[source]}
        log = nvrtc.getProgramLog(program)
    finally:
        nvrtc.destroyProgram(program)
    found = []
    for lowered, stores, loads, registers, rest in _USAGE.findall(log):
        shared = re.search(r"(\d+) bytes smem", rest)
        found.append(Usage(source, architecture, names.get(lowered, lowered), int(registers), int(stores) + int(loads),
                           int(shared[1]) if shared else 0))
    return found


def main(architectures: list[str]) -> int:
    """Print the table and return the exit code."""
    table = [u for source in INSTANCES for a in architectures or ARCHITECTURES for u in usages(source, a)]
    for u in table:
        print(f"{'ok  ' if u.ok else 'OVER'} sm_{u.architecture:<4} {u.kernel:<48} {u.registers:>4} registers "
              f"{u.spilled:>4} B spilled {u.shared:>6} B shared")
    return 0 if table and all(u.ok for u in table) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
