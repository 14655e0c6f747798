"""Camera paths: cameras in the form of a transforms.json, without pictures."""

import json

import numpy as np
import pytest

from gaian_hpc.data.camera_path import read_camera_path
from gaian_hpc.errors import DataError

SIZE = {"w": 40, "h": 30}
IDENTITY = np.eye(4).tolist()


def write(folder, root, frames):
    path = folder / "path.json"
    path.write_text(json.dumps({**root, "frames": frames}))
    return path


def test_cameras_come_in_the_order_of_the_file_with_what_stands_beside_the_frames(tmp_path):
    frames = [{"transform_matrix": IDENTITY, "file_path": "./zoom/b.jpg", "time": 0.5},
              {"transform_matrix": IDENTITY, "w": 20, "h": 10, "fl_x": 7}, {"transform_matrix": IDENTITY, "cx": 1}]
    first, second, third = read_camera_path(write(tmp_path, {**SIZE, "fl_x": 50, "fl_y": 60, "cx": 19}, frames))
    assert [v.name for v in (first, second, third)] == ["zoom/b.jpg", "00001", "00002"]
    assert [v.index for v in (first, second, third)] == [0, 1, 2]
    assert (first.width, first.height, first.time) == (40, 30, 0.5)
    assert first.K.tolist() == [[50, 0, 19], [0, 60, 15], [0, 0, 1]]
    assert (second.width, second.height, second.time) == (20, 10, 0.0)
    assert second.K.tolist() == [[7, 0, 19], [0, 60, 5], [0, 0, 1]]
    assert third.K[0, 2] == 1


def test_a_field_of_view_gives_the_focal_length(tmp_path):
    root = {**SIZE, "camera_angle_x": np.pi / 2}
    view, = read_camera_path(write(tmp_path, root, [{"transform_matrix": IDENTITY}]))
    np.testing.assert_allclose(view.K, [[20, 0, 20], [0, 20, 15], [0, 0, 1]], rtol=1e-6)


def test_poses_go_from_camera_to_world_in_opengl_to_world_to_camera_in_opencv(tmp_path):
    pose = np.eye(4)
    pose[:3, 3] = [1, 2, 3]  # at (1, 2, 3), looking along -z with y up
    view, = read_camera_path(write(tmp_path, {**SIZE, "fl_x": 9}, [{"transform_matrix": pose.tolist()}]))
    np.testing.assert_allclose(view.camera_center, [1, 2, 3], atol=1e-6)
    np.testing.assert_allclose(view.viewmat @ [1, 2, -4, 1], [0, 0, 7, 1], atol=1e-6)  # ahead is +z
    np.testing.assert_allclose(view.viewmat @ [1, 3, 3, 1], [0, -1, 0, 1], atol=1e-6)  # up is -y
    assert view.viewmat.dtype == np.float32 and view.K.dtype == np.float32


@pytest.mark.parametrize("root, frames, message", [
    (SIZE, [], "'frames' must be a list of objects"),
    (SIZE, [3], "'frames' must be a list of objects"),
    ({}, [{"transform_matrix": IDENTITY, "fl_x": 9}], "frame 0 has no picture size; give w and h in pixels"),
    (SIZE, [{"transform_matrix": IDENTITY}], "frame 0: 'camera_angle_x' is missing"),
    (SIZE, [{"fl_x": 9}], "frame 0: transform_matrix "),
    (SIZE, [{"fl_x": 9, "transform_matrix": IDENTITY}, {"fl_x": 9, "transform_matrix": (2 * np.eye(4)).tolist()}],
     "frame 1: transform_matrix does not hold a rotation"),
    (SIZE, [{"fl_x": 9, "transform_matrix": [[float("nan")] * 4] * 4}], "frame 0: the pose is not finite"),
    (SIZE, [{"fl_x": float("nan"), "transform_matrix": IDENTITY}], "frame 0: fl_x is nan; it must be finite"),
    (SIZE, [{"fl_x": -1, "transform_matrix": IDENTITY}], "frame 0"),
    ({"w": 0, "h": 30}, [{"fl_x": 9, "transform_matrix": IDENTITY}], "frame 0"),
    ({**SIZE, "k1": 0.1}, [{"fl_x": 9, "transform_matrix": IDENTITY}], "frame 0 has lens distortion, which can't be"),
    (SIZE, [{"fl_x": 9, "transform_matrix": IDENTITY, "time": 1.5}], "frame 0: time is 1.5; it must be from 0 to 1"),
    (SIZE, [{"fl_x": 9, "transform_matrix": IDENTITY, "time": -0.1}], "frame 0: time is -0.1; it must be from 0 to 1"),
    (SIZE, [{"fl_x": 9, "transform_matrix": IDENTITY, "file_path": "a/../../b.png"}], "picture name"),
])
def test_a_bad_path_is_one_line_naming_file_and_frame(tmp_path, root, frames, message):
    path = write(tmp_path, root, frames)
    with pytest.raises(DataError) as caught:
        read_camera_path(path)
    text = str(caught.value)
    assert text.startswith(str(path)) and message in text and "\n" not in text


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"3"])
def test_a_file_that_is_no_json_object_is_refused_by_name(tmp_path, content):
    path = tmp_path / "path.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"path\.json"):
        read_camera_path(path)


def test_a_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(DataError, match=r"absent\.json cannot be read"):
        read_camera_path(tmp_path / "absent.json")
