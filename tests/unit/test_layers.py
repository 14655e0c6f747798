"""Imports go upward only: the table of layers, enforced on the source text."""

import ast
from pathlib import Path

import pytest

LAYERS = {
    "errors": 0, "settings": 0, "log": 0, "timing": 0, "rng": 0, "arrays": 0,
    "backends": 1,
    "data": 2, "points": 2, "renderers": 2, "placement": 2, "assignment": 2, "schedule": 2,
    "distributed": 3,
    "config": 4, "training": 4, "checkpoint": 4, "evaluation": 4,
    "cli": 5, "jobs": 5,
}
ROOT = Path(__file__).resolve().parents[2]
MODULES = {f"gaian_hpc.{'.'.join(p.relative_to(ROOT / 'gaian_hpc').with_suffix('').parts)}".removesuffix(".__init__"): p
           for p in (ROOT / "gaian_hpc").rglob("*.py")}
MODULES |= {f"gaian_hpc.jobs.{p.stem}".removesuffix(".__init__"): p for p in (ROOT / "jobs").glob("*.py")}


def imports_of(source: str, module: str, is_package: bool) -> set[str]:
    """Return the absolute names of all modules that ``source`` imports, wherever in it."""
    package = module if is_package else module.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = ".".join(parts[:len(parts) - node.level + 1]) if node.level else ""
            base = ".".join(filter(None, [base, node.module]))
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return found


def layer_of(module: str) -> int | None:
    """Return the layer of one of our modules, None for the package itself and foreign modules."""
    parts = module.split(".")
    return LAYERS.get(parts[1]) if parts[0] == "gaian_hpc" and len(parts) > 1 else None


def violations(module: str, imported: set[str]) -> list[str]:
    """Return what ``module`` must not import, each as a phrase."""
    own = layer_of(module)
    wrong = [f"{module} (layer {own}) imports {name} (layer {layer_of(name)})"
             for name in sorted(imported) if own is not None and (layer_of(name) or 0) > own]
    roots = {name.split(".")[0] for name in imported}
    if "mpi4py" in roots and not module.startswith("gaian_hpc.distributed"):
        wrong.append(f"{module} imports mpi4py; only distributed may")
    if "cupy" in roots and "cuda" not in module.split("."):
        wrong.append(f"{module} imports cupy; only modules named cuda may")
    subject = {name.split(".")[1] for name in imported if name.startswith("gaian_hpc.")}
    if module.startswith("gaian_hpc.distributed") and "renderers" in subject:
        wrong.append(f"{module} imports renderers; the runtime names no method")
    if own == 2 and "settings" in subject:
        wrong.append(f"{module} imports settings; pure parts get values, not the tree")
    return wrong


@pytest.mark.parametrize("module", sorted(MODULES))
def test_module_imports_upward_only(module):
    path = MODULES[module]
    source = path.read_text(encoding="utf-8")
    assert violations(module, imports_of(source, module, path.name == "__init__.py")) == []


@pytest.mark.parametrize("module", sorted(m for m in MODULES if m != "gaian_hpc"))
def test_module_is_in_the_table_of_layers(module):
    assert layer_of(module) is not None


@pytest.mark.parametrize(("module", "source"), [
    ("gaian_hpc.points.store", "from ..training import trainer"),
    ("gaian_hpc.points.store", "def f():\n    from gaian_hpc.cli import main"),
    ("gaian_hpc.data.images", "from ..settings import Settings"),
    ("gaian_hpc.training.step", "from mpi4py import MPI"),
    ("gaian_hpc.renderers.gaussian3d.cpu", "import cupy as cp"),
    ("gaian_hpc.distributed.world", "from ..renderers.base import PointRenderer"),
    ("gaian_hpc.errors", "from . import backends"),
])
def test_the_check_sees_a_downward_import(module, source):
    assert violations(module, imports_of(source, module, is_package=False)) != []
