"""Methods of other people, as packages of their own, and how tests install them."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

FOLDER = Path(__file__).parent


def installed(name: str, target: Path) -> dict[str, str]:
    """Install plug-in ``name`` in folder ``target`` as pip would, and return the environment in which it is found."""
    project = tomllib.loads((FOLDER / name / "pyproject.toml").read_text())["project"]
    info = target / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    for module in (FOLDER / name).glob("*.py"):
        (target / module.name).write_text(module.read_text())
    return {"PYTHONPATH": os.pathsep.join([str(target), *filter(None, [os.environ.get("PYTHONPATH")])])}
