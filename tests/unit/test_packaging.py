"""The package list of pyproject.toml, which is kept by hand, and what importing the package starts."""

import subprocess
import sys
import tomllib


def test_every_folder_with_modules_is_a_listed_package(repository):
    setuptools = tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = {"gaian_hpc.jobs", "gaian_hpc.kernels"}
    for folder in (repository / "gaian_hpc").rglob("*/"):
        if (folder / "__init__.py").exists():
            found.add(".".join(folder.relative_to(repository).parts))
    assert set(setuptools["packages"]) == found | {"gaian_hpc"}


def test_every_folder_of_modules_is_a_package(repository):
    orphans = [p for p in (repository / "gaian_hpc").rglob("*.py") if not (p.parent / "__init__.py").exists()]
    assert orphans == []


def test_importing_the_package_and_its_command_starts_neither_mpi_nor_cuda_nor_numba():
    program = ("import sys, gaian_hpc, gaian_hpc.cli; gaian_hpc.cli.main(['--help']); "
               "print([m for m in ('mpi4py', 'cupy', 'numba', 'numpy', 'h5py', 'jsonargparse') if m in sys.modules])")
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert output.splitlines()[-1] == "[]"
