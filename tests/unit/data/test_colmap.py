"""COLMAP models: both file kinds, and every inconsistency by name."""

import struct
import time

import numpy as np
import pytest

from gaian_hpc.data import binary
from gaian_hpc.data.colmap import find_model, read_model
from gaian_hpc.errors import DataError
from tests.unit.data.colmap_files import Model, ring_model, write_binary, write_text

WRITERS = pytest.mark.parametrize("writer", [write_binary, write_text])


def read(tmp_path, model, writer=write_binary):
    writer(model, tmp_path / "sparse/0")
    return read_model(tmp_path / "sparse/0", tmp_path / "images")


@WRITERS
def test_a_model_is_read_back_as_written(tmp_path, writer):
    model = ring_model(6, 12)
    result = read(tmp_path, model, writer)
    assert [frame.name for frame in result.frames] == [image[3] for image in model.images.values()]
    frame = result.frames[1]
    np.testing.assert_allclose(frame.viewmat[:3, 3], (0, 0, 3))
    turn = 2 * np.pi / 6
    np.testing.assert_allclose(frame.viewmat[0, :3], (np.cos(turn), 0, np.sin(turn)), atol=1e-12)
    assert (frame.camera.fx, frame.camera.fy, frame.camera.cx, frame.camera.cy) == (35, 36, 20, 15)
    np.testing.assert_array_equal(result.points.positions, np.float32([p[0] for p in model.points.values()]))
    np.testing.assert_allclose(result.points.colors * 255, [p[1] for p in model.points.values()], atol=1e-4)
    for i, (_, _, track) in enumerate(model.points.values()):
        seen = result.track_view_idx[result.track_offsets[i]:result.track_offsets[i + 1]]
        assert seen.tolist() == sorted(image_id - 1 for image_id, _ in track)


def test_binary_and_text_give_the_same_arrays_in_the_same_order(tmp_path):
    model = ring_model(7, 30)
    shuffled = Model(model.cameras, dict(reversed(model.images.items())), dict(reversed(model.points.items())))
    one, two = read(tmp_path / "a", model, write_binary), read(tmp_path / "b", shuffled, write_text)
    assert [f.name for f in one.frames] == [f.name for f in two.frames]
    for a, b in zip(one.frames, two.frames, strict=True):
        np.testing.assert_array_equal(a.viewmat, b.viewmat)
    np.testing.assert_array_equal(one.points.positions, two.points.positions)
    np.testing.assert_array_equal(one.points.colors, two.points.colors)
    np.testing.assert_array_equal(one.track_offsets, two.track_offsets)
    np.testing.assert_array_equal(one.track_view_idx, two.track_view_idx)


@WRITERS
def test_images_without_observations_and_nested_names_with_spaces_are_read(tmp_path, writer):
    model = ring_model(4, 5, names=["b/1.png", "a/sub/1.png", "a/my picture.png", "b.png"])
    for i in model.images:
        model.images[i] = (*model.images[i][:4], [])
    result = read(tmp_path, model, writer)
    assert [f.name for f in result.frames] == ["a/my picture.png", "a/sub/1.png", "b.png", "b/1.png"]
    assert result.frames[1].path == tmp_path / "images/a/sub/1.png"


@WRITERS
def test_tracks_follow_the_sorted_views_and_name_a_view_once(tmp_path, writer):
    model = ring_model(3, 0, names=["c.png", "a.png", "b.png"])
    model.points = {5: ((0.0, 0.0, 0.0), (1, 2, 3), [(1, 0), (3, 0), (1, 1)]), 4: ((1.0, 0.0, 0.0), (1, 2, 3), [])}
    result = read(tmp_path, model, writer)
    assert result.track_offsets.tolist() == [0, 0, 2]
    assert result.track_view_idx.tolist() == [1, 2]


@WRITERS
def test_a_model_without_points_has_neither_points_nor_tracks(tmp_path, writer):
    model = ring_model(3, 0)
    model.points = None
    result = read(tmp_path, model, writer)
    assert result.points is None and result.track_offsets is None


def test_a_model_with_zero_points_has_empty_arrays(tmp_path):
    result = read(tmp_path, ring_model(3, 0))
    assert result.points.positions.shape == (0, 3) and result.track_offsets.tolist() == [0]


def test_binary_files_win_over_text_files(tmp_path):
    write_text(ring_model(3, 0), tmp_path / "sparse/0")
    assert len(read(tmp_path, ring_model(5, 0)).frames) == 5


@pytest.mark.parametrize("folder", ["sparse/0", "sparse", "colmap/sparse/0"])
def test_models_are_found_in_every_known_folder(tmp_path, folder):
    assert find_model(tmp_path) is None
    write_text(ring_model(3, 0), tmp_path / folder)
    assert find_model(tmp_path) == tmp_path / folder


def broken(change):
    model = ring_model(3, 4)
    change(model)
    return model


def set_pose(model, q=(1.0, 0.0, 0.0, 0.0), t=(0.0, 0.0, 0.0)):
    model.images[2] = (q, t, *model.images[2][2:])


def rename(model, name):
    model.images[2] = (*model.images[2][:3], name, [])


@WRITERS
@pytest.mark.parametrize("change, text", [
    (lambda m: set_pose(m, q=(float("nan"), 0.0, 0.0, 0.0)), r"images.*image 2 \('picture_001.png'\).*quaternion"),
    (lambda m: set_pose(m, q=(0.0, 0.0, 0.0, 0.0)), "images.*image 2.*quaternion"),
    (lambda m: set_pose(m, t=(0.0, float("inf"), 0.0)), "images.*image 2.*pose is not finite"),
    (lambda m: m.images.update({2: (*m.images[2][:2], 9, *m.images[2][3:])}), "image 2.*camera 9, which"),
    (lambda m: m.cameras.update({1: ("PINHOLE", 40, 30, (float("nan"), 1.0, 1.0, 1.0))}), "camera 1.*not all finite"),
    (lambda m: m.cameras.update({1: ("PINHOLE", 0, 30, (9.0, 9.0, 1.0, 1.0))}), "camera 1.*size 0 x 30"),
    (lambda m: m.points.update({3: ((0.0, 0.0, 0.0), (0, 0, 0), [(77, 0)])}), "points3D.*point 3 names image 77"),
    (lambda m: m.points.update({3: ((0.0, float("nan"), 0.0), (0, 0, 0), [])}), "points3D.*point 3 at"),
    (lambda m: rename(m, "picture_000.png"), "two images are named 'picture_000.png'"),
    (lambda m: rename(m, "../../outside.png"), "image 2.*'../../outside.png' must be a path below"),
    (lambda m: rename(m, "/etc/picture.png"), "image 2.*must be a path below"),
    (lambda m: m.images.clear(), "images.*holds no images"),
])
def test_inconsistent_models_are_refused_by_file_and_image(tmp_path, writer, change, text):
    with pytest.raises(DataError, match=text):
        read(tmp_path, broken(change), writer)


def test_a_missing_table_is_named(tmp_path):
    write_binary(ring_model(3, 0), tmp_path)
    (tmp_path / "cameras.bin").unlink()
    with pytest.raises(DataError, match=r"neither cameras.bin nor cameras.txt"):
        read_model(tmp_path, tmp_path)


@pytest.mark.parametrize("table", ["cameras.bin", "images.bin", "points3D.bin"])
def test_every_truncation_of_a_binary_file_is_refused_by_name(tmp_path, table):
    write_binary(ring_model(2, 3), tmp_path)
    whole = (tmp_path / table).read_bytes()
    for length in range(len(whole)):
        (tmp_path / table).write_bytes(whole[:length])
        with pytest.raises(DataError, match=rf"{table} is truncated"):
            read_model(tmp_path, tmp_path)


@pytest.mark.parametrize("table", ["cameras.bin", "images.bin", "points3D.bin"])
def test_bytes_after_the_last_record_are_refused(tmp_path, table):
    write_binary(ring_model(2, 3), tmp_path)
    (tmp_path / table).write_bytes((tmp_path / table).read_bytes() + b"\0")
    with pytest.raises(DataError, match=rf"{table} is damaged: 1 bytes follow"):
        read_model(tmp_path, tmp_path)


@pytest.mark.parametrize("table", ["cameras.bin", "images.bin", "points3D.bin"])
def test_a_count_larger_than_the_file_is_refused_before_anything_is_read(tmp_path, table):
    write_binary(ring_model(2, 3), tmp_path)
    data = bytearray((tmp_path / table).read_bytes())
    data[:8] = struct.pack("<Q", 1 << 62)
    (tmp_path / table).write_bytes(data)
    with pytest.raises(DataError, match=rf"announces {1 << 62}"):
        read_model(tmp_path, tmp_path)


def test_a_camera_model_number_of_the_future_is_refused_with_what_to_do(tmp_path):
    model = ring_model(2, 0)
    model.cameras[1] = (12, 40, 30, (1.0, 2.0, 3.0, 4.0))
    with pytest.raises(DataError, match=r"camera 1 has model number 12 .*image_undistorter"):
        read(tmp_path, model)


def test_a_camera_model_name_of_the_future_is_refused_with_what_to_do(tmp_path):
    model = ring_model(2, 0)
    model.cameras[1] = ("EQUIRECTANGULAR", 40, 30, (1.0, 2.0))
    with pytest.raises(DataError, match=r"'EQUIRECTANGULAR' is not supported .*image_undistorter"):
        read(tmp_path, model, write_text)


@pytest.mark.parametrize("table, line, text", [
    ("cameras.txt", "1 PINHOLE 40 thirty 1 2 3 4", "line 1: invalid literal"),
    ("cameras.txt", "1 PINHOLE 40", "line 1: 3 fields"),
    ("images.txt", "1 1 0 0 0 0 0", "line 1: 7 fields"),
    ("images.txt", "1 1 0 0 0 0 0 3 1 a.png\n1.5 2.5", "line 2: observations"),
    ("points3D.txt", "1 0 0 0 300 0 0 0.5", "line 1"),
    ("points3D.txt", "1 0 0 0 30 0 0 0.5 4", "line 1: a track"),
    ("points3D.txt", "99999999999999999999 0 0 0 30 0 0 0.5", "line 1: id .* out of range"),
])
def test_text_that_cannot_be_parsed_is_refused_by_line(tmp_path, table, line, text):
    write_text(ring_model(2, 3), tmp_path)
    (tmp_path / table).write_text(line)
    with pytest.raises(DataError, match=rf"{table}, {text}"):
        read_model(tmp_path, tmp_path)


def test_two_hundred_thousand_points_with_a_million_observations_are_scanned_quickly(tmp_path):
    n, length = 200_000, 5
    record = np.dtype([*[(name, binary.POINT.fields[name][0]) for name in binary.POINT.names],
                       ("track", binary.TRACK_ELEMENT, length)])
    rows = np.zeros(n, record)
    rows["id"], rows["length"] = np.arange(n), length
    rows["xyz"] = np.arange(3 * n).reshape(n, 3)
    rows["track"]["image_id"] = np.arange(n * length).reshape(n, length)
    path = tmp_path / "points3D.bin"
    path.write_bytes(struct.pack("<Q", n) + rows.tobytes())
    begin = time.process_time()
    points = binary.read_points(path)
    assert time.process_time() - begin < 5.0
    np.testing.assert_array_equal(points.track_image_ids, np.arange(n * length))
    np.testing.assert_array_equal(points.positions[-1], [3 * n - 3, 3 * n - 2, 3 * n - 1])
