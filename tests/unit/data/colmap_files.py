"""Writers of COLMAP models and of small scenes, for tests."""

import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

MODEL_IDS = {"SIMPLE_PINHOLE": 0, "PINHOLE": 1, "SIMPLE_RADIAL": 2, "RADIAL": 3, "OPENCV": 4, "OPENCV_FISHEYE": 5,
             "FULL_OPENCV": 6, "FOV": 7, "SIMPLE_RADIAL_FISHEYE": 8, "RADIAL_FISHEYE": 9, "THIN_PRISM_FISHEYE": 10}


@dataclass
class Model:
    """Rows of a model: cameras {id: (model, w, h, params)}, images {id: (qvec, tvec, camera, name, observations)} and
    points {id: (xyz, rgb, track)}, with observations (x, y, point id) and tracks (image id, observation index)."""

    cameras: dict = field(default_factory=dict)
    images: dict = field(default_factory=dict)
    points: dict | None = field(default_factory=dict)


def write_binary(model: Model, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    out = struct.pack("<Q", len(model.cameras))
    for i, (name, w, h, params) in model.cameras.items():
        out += struct.pack(f"<IiQQ{len(params)}d", i, MODEL_IDS.get(name, name), w, h, *params)
    (folder / "cameras.bin").write_bytes(out)
    out = struct.pack("<Q", len(model.images))
    for i, (q, t, camera, name, observations) in model.images.items():
        out += struct.pack("<I7dI", i, *q, *t, camera) + name.encode() + b"\0" + struct.pack("<Q", len(observations))
        out += b"".join(struct.pack("<ddq", *o) for o in observations)
    (folder / "images.bin").write_bytes(out)
    if model.points is None:
        return
    out = struct.pack("<Q", len(model.points))
    for i, (xyz, rgb, track) in model.points.items():
        out += struct.pack("<Q3d3BdQ", i, *xyz, *rgb, 0.5, len(track))
        out += b"".join(struct.pack("<II", *element) for element in track)
    (folder / "points3D.bin").write_bytes(out)


def write_text(model: Model, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["# Camera list", f"# Number of cameras: {len(model.cameras)}"]
    lines += [" ".join(map(str, (i, name, w, h, *map(repr, params)))) for i, (name, w, h, params) in
              model.cameras.items()]
    (folder / "cameras.txt").write_text("\n".join(lines) + "\n")
    lines = ["# Image list with two lines of data per image:"]
    for i, (q, t, camera, name, observations) in model.images.items():
        lines += [" ".join(map(str, (i, *map(repr, q), *map(repr, t), camera, name))),
                  " ".join(f"{x!r} {y!r} {p}" for x, y, p in observations)]
    (folder / "images.txt").write_text("\n".join(lines) + "\n")
    if model.points is None:
        return
    lines = ["# 3D point list"]
    for i, (xyz, rgb, track) in model.points.items():
        lines.append(" ".join(map(str, (i, *map(repr, xyz), *rgb, 0.5, *(x for e in track for x in e)))))
    (folder / "points3D.txt").write_text("\n".join(lines) + "\n")


def ring_model(n_images: int = 10, n_points: int = 20, camera: tuple = ("PINHOLE", 40, 30, (35.0, 36.0, 20.0, 15.0)),
               names: list[str] | None = None) -> Model:
    """Cameras on a circle of radius 3 that look at the origin, and points that a few of them see."""
    random = np.random.default_rng(5)
    model = Model(cameras={1: camera})
    names = names or [f"picture_{i:03d}.png" for i in range(n_images)]
    tracks: dict[int, list] = {p: [] for p in range(1, n_points + 1)}
    for i in range(n_images):
        angle = 2 * np.pi * i / n_images
        q = (float(np.cos(angle / 2)), 0.0, float(np.sin(angle / 2)), 0.0)
        observations = []
        for p in range(1, n_points + 1):
            if (p + i) % 3 == 0 or p <= 2:
                tracks[p].append((i + 1, len(observations)))
                observations.append((float(random.uniform(-2, 42)), float(random.uniform(0, 30)), p))
        observations.append((1.5, 2.5, -1))
        model.images[i + 1] = (q, (0.0, 0.0, 3.0), 1, names[i], observations)
    for p, track in tracks.items():
        xyz = tuple(float(x) for x in random.uniform(-1, 1, 3))
        model.points[p] = (xyz, tuple(int(c) for c in random.integers(0, 256, 3)), track)
    return model


def write_pictures(model: Model, folder: Path, size: tuple[int, int] | None = None) -> None:
    """Write a plain picture, its colour telling its number, for each image of the model."""
    for i, (_, _, camera, name, _) in model.images.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size or model.cameras[camera][1:3], (i, 2 * i, 100)).save(path)


def write_scene(folder: Path, model: Model | None = None, writer=write_binary, sparse: str = "sparse/0") -> Path:
    """Write a model and its pictures, by default those of :func:`ring_model`."""
    model = model or ring_model()
    writer(model, folder / sparse)
    write_pictures(model, folder / "images")
    return folder
