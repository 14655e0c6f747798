"""How tests start several ranks: MPICH beside this Python, Open MPI in a prefix of its own."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Launcher:
    """An ``mpirun`` and the environment its ranks need."""

    mpirun: Path
    environment: dict[str, str]

    def run(self, n: int, *words: str, timeout: float = 300, environment: dict[str, str] | None = None,
            cwd: Path | None = None) -> subprocess.CompletedProcess:
        """Run ``words`` on ``n`` ranks and return its exit code and output, standard error included."""
        return self.run_each([(n, words)], timeout=timeout, environment=environment, cwd=cwd)

    def run_each(self, groups, timeout: float = 300, environment: dict[str, str] | None = None,
                 cwd: Path | None = None) -> subprocess.CompletedProcess:
        """Run another command on each group of ranks."""
        process = self.start(groups, environment=environment, cwd=cwd)
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            pytest.fail(f"still running after {timeout} s:\n{output[-3000:]}")
        return subprocess.CompletedProcess(groups, process.returncode, output)

    def start(self, groups, environment: dict[str, str] | None = None, cwd: Path | None = None) -> subprocess.Popen:
        """Start another command on each group of ranks."""
        words = [str(self.mpirun)]
        for i, (n, command) in enumerate(groups):
            words += [":"] * (i > 0) + ["-n", str(n), *map(str, command)]
        known = {k: v for k, v in os.environ.items()
                 if not k.startswith(("PMI", "OMPI", "SLURM", "PRTE", "GAIAN_MPI"))}
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                env={**known, **self.environment, **(environment or {})}, cwd=cwd)


def mpich() -> Launcher:
    """Return the MPICH that mpi4py finds beside this Python."""
    path = BIN / "mpirun"
    if not path.exists():
        pytest.skip(f"no mpirun beside {sys.executable}; install the package mpich there")
    return Launcher(path, {})


def openmpi() -> Launcher:
    """Return the Open MPI in ``GAIAN_OPENMPI``, or in the folder ``openmpi`` of this environment."""
    prefix = Path(os.environ.get("GAIAN_OPENMPI") or Path(sys.prefix) / "openmpi")
    path, library = prefix / "bin" / "mpirun", prefix / "lib" / "libmpi.so.40"
    if not (path.exists() and library.exists()):
        pytest.skip(f"no Open MPI at {prefix}; pip install --no-deps --ignore-installed --prefix {prefix} openmpi")
    return Launcher(path, {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                           "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_MCA_osc": "^ucx",
                           "MPI4PY_MPIABI": "openmpi", "MPI4PY_LIBMPI": str(library),
                           "LD_LIBRARY_PATH": str(library.parent)})


LAUNCHERS = {"mpich": mpich, "openmpi": openmpi}
