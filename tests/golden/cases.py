"""Reading golden files and telling what each of them tests."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

# Arrays that only one kind of file has; the first kind whose arrays are all present is taken.
SIGNATURES: tuple[tuple[str, frozenset[str]], ...] = (
    ("gaussian2d", frozenset({"ray_transforms"})),
    ("convex3d", frozenset({"points", "delta", "sigma"})),
    ("gaussian4d", frozenset({"quats_l", "quats_r"})),
    ("gaussian3d scene", frozenset({"means", "quats", "scales", "opacities", "sh", "v_image", "image"})),
    ("gaussian3d projection", frozenset({"means", "quats", "scales", "v_means2d", "v_conics"})),
    ("sh", frozenset({"dirs", "coeffs", "v_colors"})),
    ("ssim", frozenset({"image", "target", "ssim"})),
    ("adam", frozenset({"param0", "grads"})),
)


class CaseError(Exception):
    """A golden file cannot be read, is of no known kind, or tests what is not available."""


@dataclass(frozen=True)
class Case(Mapping[str, np.ndarray]):
    """The arrays of one golden file, scalars as 0-d arrays, and the ``kind`` of thing that it tests."""

    path: Path
    kind: str
    arrays: dict[str, np.ndarray]

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.arrays:
            raise CaseError(f"{self.path}: array {name!r} is missing; is the file complete?")
        return self.arrays[name]

    def __contains__(self, name: object) -> bool:
        return name in self.arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)

    def double(self, name: str) -> np.ndarray:
        """Return an array in float64."""
        return self[name].astype(np.float64)

    def scalar(self, name: str, default: float | None = None) -> float:
        """Return a scalar entry; without a default it must be there."""
        if name not in self.arrays and default is not None:
            return default
        if self[name].size != 1:
            raise CaseError(f"{self.path}: {name!r} has shape {self[name].shape} where a scalar is expected")
        return self[name].item()

    def expect_shapes(self, **shapes: tuple[int, ...]) -> None:
        """Raise CaseError unless each named array that the file has is of the given shape."""
        for name, shape in shapes.items():
            if name in self.arrays and self.arrays[name].shape != shape:
                raise CaseError(f"{self.path}: {name!r} has shape {self.arrays[name].shape} where {shape} is expected")


def load_case(path: str | Path) -> Case:
    """Read a golden file.

    Raises
    ------
    CaseError
        If it is no readable ``.npz`` file or its arrays are those of no known kind.
    """
    path = Path(path)
    try:
        # Opened as what it must be: `np.load` would take other formats too.
        with zipfile.ZipFile(path), np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise CaseError(f"{path}: cannot be read as .npz: {error}") from error
    for kind, names in SIGNATURES:
        if names <= arrays.keys():
            return Case(path, kind, arrays)
    raise CaseError(f"{path}: its arrays ({', '.join(sorted(arrays)[:8])} …) are those of no known kind of case")
