"""Damaged input files give a scene or a named error, within bounded memory and time."""

import json
import shutil
import time
import tracemalloc

import numpy as np
import pytest
from PIL import Image

from gaian_hpc.data import binary
from gaian_hpc.data.clouds import read_ply_points
from gaian_hpc.data.scene import load_scene
from gaian_hpc.errors import GaianError
from tests.unit.data.colmap_files import ring_model, write_scene, write_text
from tests.unit.data.test_transforms import INTRINSICS, frames, write, write_ply

CASES = 300
MEMORY_PER_BYTE = 60  # a record's Python objects over its bytes
MEMORY_FLOOR = 4 << 20


def damaged(whole, seed):
    """Yield truncations, flipped bits, and bytes of extreme values in turn."""
    random = np.random.default_rng(seed)
    for case in range(CASES):
        data = bytearray(whole)
        if case % 3 == 0:
            data = data[:random.integers(0, len(data))]
        for at in random.integers(0, max(len(data), 1), random.integers(1, 5) if case % 3 else 0):
            data[at] = data[at] ^ (1 << random.integers(0, 8)) if case % 3 == 1 else random.choice([0, 127, 128, 255])
        yield bytes(data)


def check(path, whole, read, seed):
    """Read many damaged versions of a file; return the number of refusals."""
    refused = 0
    begin = time.process_time()
    tracemalloc.start()
    try:
        for data in damaged(whole, seed):
            path.write_bytes(data)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                read()
            except GaianError as error:
                refused += 1
                assert "\n" not in str(error)
            peak = tracemalloc.get_traced_memory()[1] - before
            assert peak < MEMORY_FLOOR + MEMORY_PER_BYTE * len(whole)
    finally:
        tracemalloc.stop()
    assert time.process_time() - begin < 120
    return refused


@pytest.fixture(params=["generated", "brighton_beach"])
def colmap_scene(request, tmp_path):
    """A scene to damage: generated, or a copy of a real one's model with its pictures linked."""
    if request.param == "generated":
        return write_scene(tmp_path / "scene", ring_model(6, 15, camera=(
            "OPENCV", 40, 30, (35.0, 36.0, 20.0, 15.0, -0.1, 0.01, 0.001, 0.001))))
    real = request.getfixturevalue("shared_dir") / "data" / request.param
    copy = tmp_path / "scene"
    copy.mkdir()
    shutil.copytree(real / "sparse", copy / "sparse", copy_function=shutil.copyfile)
    for folder in (copy / "sparse", copy / "sparse/0"):
        folder.chmod(0o755)
    (copy / "images").symlink_to(real / "images")
    return copy


@pytest.mark.parametrize("table", ["cameras", "images", "points3D"])
def test_damaged_binary_tables_give_records_or_a_named_error(colmap_scene, table):
    path = colmap_scene / f"sparse/0/{table}.bin"
    read = {"cameras": binary.read_cameras, "images": binary.read_images, "points3D": binary.read_points}[table]
    assert check(path, path.read_bytes(), lambda: read(path), seed=11) >= CASES // 4


@pytest.mark.parametrize("table", ["cameras", "images", "points3D"])
def test_scenes_with_a_damaged_binary_table_are_read_or_refused_by_name(tmp_path, table):
    scene = write_scene(tmp_path, ring_model(4, 6, camera=(
        "OPENCV", 40, 30, (35.0, 36.0, 20.0, 15.0, -0.1, 0.01, 0.001, 0.001))))
    path = scene / f"sparse/0/{table}.bin"

    def read():
        loaded = load_scene(scene)
        for view in loaded.views:
            assert np.isfinite(view.viewmat).all() and np.isfinite(view.K).all()
            assert 0 < view.width <= 400 and 0 < view.height <= 400
        assert np.isfinite(loaded.points.positions).all()
        assert np.isfinite(loaded.extent) and loaded.extent > 0

    assert check(path, path.read_bytes(), read, seed=12) >= CASES // 4


@pytest.mark.parametrize("table", ["cameras", "images", "points3D"])
def test_scenes_with_a_damaged_text_table_are_read_or_refused_by_name(tmp_path, table):
    scene = write_scene(tmp_path, ring_model(4, 6), writer=write_text)
    path = scene / f"sparse/0/{table}.txt"
    assert check(path, path.read_bytes(), lambda: load_scene(scene), seed=13) >= CASES // 6


def test_scenes_with_damaged_json_are_read_or_refused_by_name(tmp_path):
    root = {**INTRINSICS, "k1": -0.1, "p1": 0.001, "frames": frames(4), "train_filenames": ["images/f0.png"]}
    write(tmp_path, root)
    path = tmp_path / "transforms.json"
    assert check(path, json.dumps(root).encode(), lambda: load_scene(tmp_path), seed=14) >= CASES // 3


@pytest.mark.parametrize("as_text", [True, False])
def test_damaged_plys_are_read_or_refused_by_name(tmp_path, as_text):
    path = tmp_path / "a.ply"
    write_ply(path, text=as_text, n=20)
    assert check(path, path.read_bytes(), lambda: read_ply_points(path), seed=15) >= CASES // 4


def test_scenes_with_a_truncated_picture_are_read_or_refused_by_name(tmp_path):
    scene = write_scene(tmp_path, ring_model(3, 3, names=["a.jpg", "b.jpg", "c.jpg"]))
    path = scene / "images/b.jpg"
    Image.effect_noise((40, 30), 90).convert("RGB").save(path)
    assert check(path, path.read_bytes(), lambda: load_scene(scene), seed=16) > 0
