"""The names, version and dataclasses of the checkpoint format that FORMAT.md describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..arrays import Attribute, View
from ..errors import FormatError
from ..points.store import PointStore

FORMAT_INDEX = "gaian_hpc scene"
FORMAT_SHARD = "gaian_hpc shard"
FORMAT_VERSION = 1

CHECKPOINTS_FOLDER = "checkpoints"
INDEX_NAME = "scene.h5"
SUMS_NAME = "SHA256SUMS"

IDS = "ids"
POINTS = "points"
FIRST_MOMENTS = "adam/first_moments"
SECOND_MOMENTS = "adam/second_moments"
STATISTICS = "statistics"


def shard_name(rank: int) -> str:
    """Return the file name of the shard that ``rank`` writes."""
    return f"shard_{rank:05d}.h5"


def step_name(step: int) -> str:
    """Return the folder name of the checkpoint after ``step`` optimizer steps."""
    return f"step_{step:07d}"


@dataclass(frozen=True, slots=True)
class Camera:
    """A view of the scene and whether it is held out for tests."""

    view: View
    is_test: bool = False


@dataclass(frozen=True, slots=True)
class RngState:
    """All there is to know of the random numbers: generators are counter-based, so there is no hidden state.

    Attributes
    ----------
    seed : int
    generator : str
        Name of the generator and what keys it.
    counters : mapping of str to int
        Positions that do not follow from the step (empty where all of them do).
    """

    seed: int
    generator: str = "philox; key = seed, purpose; counter = step, point id"
    counters: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """What the index keeps of one shard file.

    Attributes
    ----------
    file : str
        Name relative to the checkpoint's folder.
    owner : int
        Rank that owned the points.
    n_points : int
    n_bytes : int
        Size of the file.
    sha256 : str
        Lower-case hexadecimal digest of the file.
    """

    file: str
    owner: int
    n_points: int
    n_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """Everything a run needs to go on, or an outsider to read the scene.

    Attributes
    ----------
    step : int
        Optimizer steps done.
    settings : str
        Text of the resolved settings (TOML or JSON).
    method : str
        Name of the renderer.
    method_options : str
        JSON of the renderer's options.
    store : PointStore
        The points of this rank (of the rows read, after reading).
    scene_path, scene_fingerprint : str
        Where the pictures came from, and a digest of what was there.
    cameras : tuple of Camera
    rng : RngState
    trainer : mapping of str to JSON values
        What else the trainer keeps between steps (the scene extent, for example); floats survive exactly.
    metrics : tuple of str
        JSON lines logged so far.
    n_total : int
        Points of the whole scene; set by the reader, ignored by the writer.
    shards : tuple of ShardRecord
        The placement, in row order of the index; set by the reader, ignored by the writer.
    """

    step: int
    settings: str
    method: str
    store: PointStore
    method_options: str = "{}"
    scene_path: str = ""
    scene_fingerprint: str = ""
    cameras: tuple[Camera, ...] = ()
    rng: RngState = field(default_factory=lambda: RngState(0))
    trainer: Mapping[str, object] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    n_total: int = 0
    shards: tuple[ShardRecord, ...] = ()


def check_version(path: object, version: object) -> None:
    """Raise FormatError unless ``version``, found in ``path``, is one this package reads."""
    if version == FORMAT_VERSION:
        return
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise FormatError(f"{path}: checkpoint format version {version} is newer than version {FORMAT_VERSION}, the "
                          f"newest this gaian_hpc reads; update gaian_hpc")
    raise FormatError(f"{path}: checkpoint format version {version!r} is unknown (this gaian_hpc reads version "
                      f"{FORMAT_VERSION}); use the gaian_hpc release that wrote it")


def same_layout(a: Attribute, b: Attribute) -> bool:
    """Say whether two attributes store the same thing in the same shape."""
    return (a.name, a.stored, tuple(a.shape), a.activation) == (b.name, b.stored, tuple(b.shape), b.activation)
