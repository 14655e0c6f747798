"""The package list of pyproject.toml, which is kept by hand, and what importing the package starts."""

import shutil
import subprocess
import sys
import tomllib
import zipfile


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


def test_the_wheel_holds_all_modules_jobs_kernel_sources_and_data_files(repository, tmp_path):
    source = tmp_path / "source"
    for name in ("gaian_hpc", "jobs", "kernels"):
        shutil.copytree(repository / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(repository / name, source)
    (source / "kernels" / "common").mkdir(exist_ok=True)
    (source / "kernels" / "common" / "probe.cuh").touch()
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path,
                    source], check=True)
    names = set(zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist())
    wanted = {p.relative_to(repository).as_posix() for p in (repository / "gaian_hpc").rglob("*.py")}
    wanted |= {f"gaian_hpc/{p.relative_to(repository).as_posix()}" for p in (repository / "jobs").rglob("*")
               if p.suffix in (".py", ".toml")}
    wanted |= {"gaian_hpc/kernels/common/probe.cuh", "gaian_hpc/kernels/__init__.py", "gaian_hpc/checkpoint/FORMAT.md"}
    assert wanted - names == set()
    assert not any(name.startswith(("tests/", "jobs/", "kernels/")) for name in names)
