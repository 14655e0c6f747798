"""JSON scenes: axes, intrinsics, names, splits and start points."""

import json
import math

import numpy as np
import pytest
from PIL import Image
from plyfile import PlyData, PlyElement

from gaian_hpc.data.clouds import read_ply_points
from gaian_hpc.data.images import load_picture
from gaian_hpc.data.scene import load_scene
from gaian_hpc.errors import DataError

INTRINSICS = {"fl_x": 50.0, "fl_y": 52.0, "cx": 21.0, "cy": 14.0, "w": 40, "h": 30}


def pose(x=0.0, y=0.0, z=0.0):
    matrix = np.eye(4)
    matrix[:3, 3] = x, y, z
    return matrix.tolist()


def frames(n=4, folder="images", suffix=".png", **extra):
    return [{"file_path": f"{folder}/f{i}{suffix}", "transform_matrix": pose(x=float(i)), **extra} for i in range(n)]


def write(scene, root, name="transforms.json", size=(40, 30), mode="RGB"):
    (scene / name).write_text(json.dumps(root))
    for frame in root["frames"]:
        path = scene / frame["file_path"]
        path = path if path.suffix else path.with_name(path.name + ".png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new(mode, size, (10, 20, 30, 128)[:len(mode)]).save(path)
    return scene


def test_opengl_camera_to_world_becomes_opencv_world_to_camera(tmp_path):
    turned = np.eye(4)
    turned[:3, :3] = [[0, 0, 1], [0, 1, 0], [-1, 0, 0]]  # looks along -x of the world
    turned[:3, 3] = 3, 1, 0
    root = {**INTRINSICS, "frames": frames(3)}
    root["frames"][0]["transform_matrix"] = turned.tolist()
    view = load_scene(write(tmp_path, root)).views[0]
    before_camera = view.viewmat @ np.array([-2, 1, 0, 1])
    np.testing.assert_allclose(before_camera, [0, 0, 5, 1], atol=1e-6)
    above = view.viewmat @ np.array([-2, 2, 0, 1])
    np.testing.assert_allclose(above, [0, -1, 5, 1], atol=1e-6)  # world up is picture up: y points down
    np.testing.assert_allclose(view.camera_center, [3, 1, 0], atol=1e-6)


def test_intrinsics_of_the_file_are_overridden_per_frame(tmp_path):
    root = {**INTRINSICS, "frames": frames(3)}
    root["frames"][1] |= {"fl_x": 70.0, "cx": 19.0}
    views = load_scene(write(tmp_path, root)).views
    assert (views[0].K[0, 0], views[0].K[0, 2], views[0].K[1, 1], views[0].K[1, 2]) == (50, 21, 52, 14)
    assert (views[1].K[0, 0], views[1].K[0, 2], views[1].K[1, 1], views[1].K[1, 2]) == (70, 19, 52, 14)


def test_an_opening_angle_alone_gives_square_pixels_and_a_central_principal_point(tmp_path):
    root = {"camera_angle_x": 1.0, "frames": frames(2, "train", "")}
    view = load_scene(write(tmp_path, root)).views[0]
    focal = 20 / math.tan(0.5)
    np.testing.assert_allclose(view.K, [[focal, 0, 20], [0, focal, 15], [0, 0, 1]], rtol=1e-6)
    assert view.name == "train/f0.png"


def test_names_leave_out_the_picture_folder_and_way_up(tmp_path):
    root = {**INTRINSICS, "frames": [*frames(2), *frames(1, "../elsewhere")]}
    scene = tmp_path / "scene"
    scene.mkdir()
    assert [v.name for v in load_scene(write(scene, root)).views] == ["elsewhere/f0.png", "f0.png", "f1.png"]


def test_blender_sets_take_their_splits_from_their_files_and_keep_alpha(tmp_path):
    for split, n in (("train", 5), ("val", 2), ("test", 3)):
        write(tmp_path, {"camera_angle_x": 0.7, "frames": frames(n, f"./{split}", "")}, f"transforms_{split}.json",
              mode="RGBA")
    scene = load_scene(tmp_path, test_every=2)
    assert scene.kind == "blender" and len(scene.views) == 8 and scene.points is None
    assert {scene.views[i].name.split("/")[0] for i in scene.test_idx} == {"test"} and len(scene.test_idx) == 3
    picture = load_picture(scene.pictures[0])
    assert picture.alpha.shape == (30, 40) and (picture.alpha == 128).all()
    assert picture.rgb[:, 0, 0].tolist() == [10, 20, 30]


def test_blender_validation_views_test_where_there_is_no_test_file(tmp_path):
    for split in ("train", "val"):
        write(tmp_path, {"camera_angle_x": 0.7, "frames": frames(3, split, "")}, f"transforms_{split}.json")
    scene = load_scene(tmp_path)
    assert [scene.views[i].name for i in scene.test_idx] == ["val/f0.png", "val/f1.png", "val/f2.png"]


def test_lists_of_file_names_split_the_views_and_leave_out_the_others(tmp_path):
    root = {**INTRINSICS, "frames": frames(6), "train_filenames": ["images/f0.png", "./images/f4.png"],
            "val_filenames": ["images/f1.png"], "test_filenames": ["images/f2.png"]}
    scene = load_scene(write(tmp_path, root))
    assert scene.train_idx.tolist() == [0, 4] and scene.test_idx.tolist() == [2]


def test_without_lists_every_eighth_view_tests(tmp_path):
    scene = load_scene(write(tmp_path, {**INTRINSICS, "frames": frames(9)}))
    assert scene.test_idx.tolist() == [0, 8]


def test_the_folder_of_a_factor_serves_json_scenes_too(tmp_path):
    write(tmp_path, {**INTRINSICS, "frames": frames(3)})
    (tmp_path / "images_2").mkdir()
    for i in range(3):
        Image.new("RGB", (20, 15), (0, 0, 80 + i)).save(tmp_path / f"images_2/f{i}.png")
    scene = load_scene(tmp_path, factor=2)
    assert scene.views[0].K[0, 0] == 25 and load_picture(scene.pictures[2]).rgb[2, 0, 0] == 82


def test_times_and_masks_of_frames_are_kept(tmp_path):
    root = {**INTRINSICS, "frames": frames(3)}
    for i, frame in enumerate(root["frames"]):
        frame["time"] = i / 2
    root["frames"][2]["mask_path"] = "hidden/m.png"
    write(tmp_path, root)
    (tmp_path / "hidden").mkdir()
    Image.new("L", (40, 30), 0).save(tmp_path / "hidden/m.png")
    scene = load_scene(tmp_path)
    assert scene.times.tolist() == [0, 0.5, 1] and scene.views[1].time == 0.5
    assert not load_picture(scene.pictures[2]).mask.any() and load_picture(scene.pictures[0]).mask is None
    (tmp_path / "hidden/m.png").unlink()
    with pytest.raises(DataError, match=r"hidden/m.png does not exist"):
        load_scene(tmp_path)


@pytest.mark.parametrize("extra", [{"k1": -0.2, "k2": 0.01, "p1": 0.001, "p2": 0.002},
                                   {"distortion_params": [-0.2, 0.01, 0.0, 0.0, 0.001, 0.002]}])
def test_distortion_is_undone_however_it_is_written(tmp_path, extra):
    root = {**INTRINSICS, **extra, "frames": frames(2)}
    source = load_scene(write(tmp_path, root)).pictures[0]
    camera = source.undistortion.camera
    assert camera.model == "OPENCV_RADIAL4" and camera.coeffs == (-0.2, 0.01, 0.001, 0.002, 0.0, 0.0)
    view = load_scene(tmp_path).views[0]
    assert load_picture(source).rgb.shape == (3, view.height, view.width)


@pytest.mark.parametrize("extra", [{"camera_model": "OPENCV_FISHEYE"}, {"is_fisheye": True}])
def test_fisheye_cameras_are_undistorted(tmp_path, extra):
    root = {**INTRINSICS, **extra, "k1": 0.1, "fisheye_crop_radius": 12.0, "frames": frames(2)}
    camera = load_scene(write(tmp_path, root)).pictures[0].undistortion.camera
    assert camera.model == "OPENCV_FISHEYE" and camera.coeffs == (0.1, 0, 0, 0) and camera.crop_radius == 12.0


def write_ply(path, names=("red", "green", "blue"), kind="u1", text=False, n=5):
    vertex = np.zeros(n, [(axis, "f4") for axis in "xyz"] + [(name, kind) for name in names])
    vertex["x"] = np.arange(n)
    for name in names:
        vertex[name] = 255 if kind == "u1" else 1.0
    PlyData([PlyElement.describe(vertex, "vertex")], text=text).write(str(path))


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("kind", ["u1", "f4"])
def test_start_points_come_from_the_ply_that_the_file_names(tmp_path, text, kind):
    write(tmp_path, {**INTRINSICS, "frames": frames(2), "ply_file_path": "cloud.ply"})
    write_ply(tmp_path / "cloud.ply", kind=kind, text=text)
    points = load_scene(tmp_path).points
    assert points.positions[:, 0].tolist() == [0, 1, 2, 3, 4] and (points.colors == 1).all()


def test_a_ply_without_colours_has_none(tmp_path):
    write_ply(tmp_path / "a.ply", names=())
    assert read_ply_points(tmp_path / "a.ply").colors is None


@pytest.mark.parametrize("content", [
    b"", b"ply\n", b"not a ply end_header",
    b"ply\nformat binary_little_endian 1.0\nelement vertex 99999999999\nproperty float x\nend_header\n",
    b"ply\nformat ascii 1.0\nelement vertex 9\nproperty list uchar float x\nend_header\n1 2\n",
    b"ply\nformat ascii 1.0\nelement vertex 1\nproperty float u\nend_header\n1\n",
    b"ply\nformat ascii 1.0\nelement vertex 9999999999999\nproperty float x\nend_header\n1\n",
    b"ply\nformat binary_little_endian 1.0\nelement vertex 9999999999999\nproperty list uchar float x\nend_header\n1",
    b"ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\nproperty float y\nproperty float z\nend_header\n"
    b"nan 1 1\n",
])
def test_a_damaged_ply_is_refused_by_name(tmp_path, content):
    (tmp_path / "a.ply").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.ply"):
        read_ply_points(tmp_path / "a.ply")


def change_first(**extra):
    return lambda root: root["frames"][0].update(extra)


@pytest.mark.parametrize("change, text", [
    (lambda r: r.pop("frames"), "'frames' must be a list"),
    (lambda r: r.update(frames=[]), "'frames' must be a list"),
    (lambda r: r.pop("fl_x"), "'camera_angle_x' is missing"),
    (lambda r: r.update(fl_x=float("nan")), "fl_x is nan; it must be finite"),
    (lambda r: r.update(fl_x="50"), "fl_x is '50'; it must be a number"),
    (lambda r: r.update(w=40.5), "must be whole pixels"),
    (lambda r: r.update(camera_model="EQUIRECTANGULAR"), "'EQUIRECTANGULAR' is not supported"),
    (lambda r: r.update(distortion_params=[0.0] * 7), "distortion_params must be"),
    (lambda r: r.update(train_filenames="all"), "train_filenames must be a list"),
    (lambda r: r.update(ply_file_path="nowhere.ply"), "nowhere.ply cannot be read"),
    (change_first(transform_matrix=[[1, 2], [3, 4]]), r"frame 0 \('images/f0.png'\): transform_matrix has shape"),
    (change_first(transform_matrix=[[1, 2], [3]]), "frame 0 .*not a matrix"),
    (change_first(transform_matrix=None), "frame 0 .*shape"),
    (change_first(transform_matrix=pose(x=float("nan"))), "frame 0 .*pose is not finite"),
    (change_first(transform_matrix=np.diag([2.0, 2, 2, 1]).tolist()), "frame 0 .*does not hold a rotation"),
    (change_first(transform_matrix=np.diag([-1.0, 1, 1, 1]).tolist()), "frame 0 .*does not hold a rotation"),
    (change_first(time=2.0), "frame 0 .*time is 2; it must be from 0 to 1"),
    (change_first(time=0.5), "'f1.png' has no time but others have"),
    (change_first(file_path="images/f1.png"), "two frames name the picture 'f1.png'"),
    (change_first(file_path=""), r"frames\[0\].file_path is ''"),
    (change_first(file_path="images/none.png"), "none.png does not exist"),
])
def test_unusable_values_are_refused_by_file_and_frame(tmp_path, change, text):
    root = {**INTRINSICS, "frames": frames(3)}
    write(tmp_path, root)
    change(root)
    (tmp_path / "transforms.json").write_text(json.dumps(root))
    with pytest.raises(DataError, match=text):
        load_scene(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100000, b"\xff\xfe", b"3"])
def test_a_file_that_is_not_a_json_object_is_refused_by_name(tmp_path, content):
    (tmp_path / "transforms.json").write_bytes(content)
    with pytest.raises(DataError, match=r"transforms\.json"):
        load_scene(tmp_path)
