"""Fixtures that every test may use."""

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Return the folder of real scenes and golden vectors: ``GAIAN_SHARED``, else ``shared`` beside the checkout."""
    folder = Path(os.environ.get("GAIAN_SHARED") or REPOSITORY.parent / "shared")
    if not folder.is_dir():
        pytest.skip(f"no folder of real scenes at {folder}; set GAIAN_SHARED to one")
    return folder


@pytest.fixture(scope="session")
def repository() -> Path:
    """Return the root of the checkout."""
    return REPOSITORY
