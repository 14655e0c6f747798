"""Scenes as a whole: layouts, sizes, splits, masks, times and what is missing."""

import json
import pickle

import numpy as np
import pytest
from PIL import Image

from gaian_hpc.data.binary import read_points
from gaian_hpc.data.images import load_picture
from gaian_hpc.data.scene import load_scene
from gaian_hpc.errors import DataError
from tests.unit.data.colmap_files import ring_model, write_binary, write_pictures, write_scene, write_text


def names(scene, index):
    return [scene.views[i].name for i in index]


@pytest.mark.parametrize("writer", [write_binary, write_text])
@pytest.mark.parametrize("sparse", ["sparse/0", "sparse", "colmap/sparse/0"])
def test_colmap_scenes_are_read_from_every_layout(tmp_path, writer, sparse):
    scene = load_scene(write_scene(tmp_path, writer=writer, sparse=sparse))
    assert scene.kind == "colmap" and len(scene.views) == len(scene.pictures) == 10
    assert [view.index for view in scene.views] == list(range(10))
    assert (scene.views[3].width, scene.views[3].height) == (40, 30)
    np.testing.assert_array_equal(scene.views[3].K, np.float32([[35, 0, 20], [0, 36, 15], [0, 0, 1]]))
    assert scene.views[3].viewmat.dtype == scene.points.positions.dtype == scene.points.colors.dtype == np.float32
    assert scene.tracks.track_offsets.dtype == scene.tracks.track_view_idx.dtype == np.int64
    assert scene.train_idx.dtype == scene.test_idx.dtype == np.int64


def test_every_eighth_view_by_sorted_name_is_a_test_view(tmp_path):
    model = ring_model(18, 3, names=[f"{(7 * i) % 18:02d}.png" for i in range(18)])
    scene = load_scene(write_scene(tmp_path, model))
    assert names(scene, scene.test_idx) == ["00.png", "08.png", "16.png"]
    assert len(scene.train_idx) == 15 and not set(scene.train_idx) & set(scene.test_idx)


def test_test_every_zero_trains_on_all_views(tmp_path):
    scene = load_scene(write_scene(tmp_path), test_every=0)
    assert len(scene.train_idx) == 10 and len(scene.test_idx) == 0


@pytest.mark.parametrize("folder", [".", "sparse/0"])
def test_a_list_of_test_pictures_wins_over_every_eighth(tmp_path, folder):
    write_scene(tmp_path)
    (tmp_path / folder / "test.txt").write_text("picture_003.png\npicture_004.png\n")
    scene = load_scene(tmp_path, test_every=2)
    assert names(scene, scene.test_idx) == ["picture_003.png", "picture_004.png"] and len(scene.train_idx) == 8


def test_a_split_list_with_an_unknown_picture_is_refused(tmp_path):
    (write_scene(tmp_path) / "test.txt").write_text("picture_077.png\n")
    with pytest.raises(DataError, match=r"test.txt lists 1 pictures.*'picture_077.png'"):
        load_scene(tmp_path)


def test_the_extent_is_the_farthest_training_camera_from_their_mean_times_one_point_one(tmp_path):
    model = ring_model(4, 2)
    for i, x in zip(model.images, (100.0, 0.0, 1.0, 5.0), strict=True):
        model.images[i] = ((1.0, 0.0, 0.0, 0.0), (-x, 0.0, 0.0), *model.images[i][2:])
    scene = load_scene(write_scene(tmp_path, model), test_every=4)  # the camera at 100 is a test view
    assert scene.extent == pytest.approx(1.1 * 3.0)


def test_cameras_at_one_place_take_their_extent_from_the_points(tmp_path):
    model = ring_model(3, 0)
    for i in model.images:
        model.images[i] = (*model.images[i][:1], (0.0, 0.0, 0.0), *model.images[i][2:])
    model.points = {i: ((2.0 * i, 0.0, 0.0), (0, 0, 0), []) for i in (1, 2, 3)}
    assert load_scene(write_scene(tmp_path / "a", model)).extent == pytest.approx(1.1 * 4.0)
    model.points = None
    assert load_scene(write_scene(tmp_path / "b", model)).extent == 1.0


def test_cameras_too_far_from_the_origin_for_float32_are_refused(tmp_path):
    model = ring_model(4, 0)
    for i in model.images:
        model.images[i] = ((1.0, 0.0, 0.0, 0.0), (5e6 + i, 0.0, 0.0), *model.images[i][2:])
    with pytest.raises(DataError, match=r"float32 cannot resolve"):
        load_scene(write_scene(tmp_path, model))


def test_pictures_of_another_size_than_the_camera_scale_the_intrinsics_per_axis(tmp_path):
    model = ring_model(4, 2, camera=("PINHOLE", 400, 301, (350.0, 360.0, 210.0, 150.5)))
    write_binary(model, tmp_path / "sparse/0")
    write_pictures(model, tmp_path / "images", (100, 75))
    view = load_scene(tmp_path).views[0]
    assert (view.width, view.height) == (100, 75)
    np.testing.assert_allclose(view.K[:2], [[87.5, 0, 52.5], [0, 360 * 75 / 301, 37.5]], rtol=1e-6)


def test_mixed_picture_sizes_are_kept_per_view(tmp_path):
    model = ring_model(3, 2)
    model.cameras[2] = ("SIMPLE_PINHOLE", 20, 50, (40.0, 10.0, 25.0))
    model.images[2] = (*model.images[2][:2], 2, *model.images[2][3:])
    scene = load_scene(write_scene(tmp_path, model))
    assert [(v.width, v.height) for v in scene.views] == [(40, 30), (20, 50), (40, 30)]
    assert load_picture(scene.pictures[1]).rgb.shape == (3, 50, 20)


def test_a_factor_without_its_folder_scales_on_decoding(tmp_path):
    scene = load_scene(write_scene(tmp_path), factor=4)
    assert (scene.views[0].width, scene.views[0].height) == (10, 8)  # 7.5 rows round to 8
    np.testing.assert_allclose(scene.views[0].K[:2], [[8.75, 0, 5], [0, 36 * 8 / 30, 4]], rtol=1e-6)
    assert load_picture(scene.pictures[0]).rgb.shape == (3, 8, 10)


def test_max_side_caps_the_longer_side(tmp_path):
    scene = load_scene(write_scene(tmp_path), max_side=20)
    assert (scene.views[0].width, scene.views[0].height) == (20, 15)
    assert scene.views[0].K[0, 0] == pytest.approx(17.5)
    assert load_scene(tmp_path, max_side=100).views[0].width == 40


@pytest.mark.parametrize("rename", [lambda name: name, lambda name: name.replace(".png", ".jpg"),
                                    lambda name: f"frame{name[-7:]}"])
def test_the_folder_of_a_factor_is_used_by_name_by_stem_or_in_sorted_order(tmp_path, rename):
    model = ring_model(5, 2)
    write_scene(tmp_path, model)
    for i, image in model.images.items():
        path = tmp_path / "images_2" / rename(image[3])
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (20, 15), (0, 50 * i, 0)).save(path)
    scene = load_scene(tmp_path, factor=2)
    assert scene.views[0].width == 20 and scene.pictures[0].scaled_size == (20, 15)
    assert scene.views[2].name == "picture_002.png"
    assert abs(int(load_picture(scene.pictures[2]).rgb[1, 5, 5]) - 150) <= 2


def test_a_picture_missing_in_the_folder_of_a_factor_is_named(tmp_path):
    model = ring_model(5, 2)
    write_pictures(model, write_scene(tmp_path, model) / "images_2", (20, 15))
    (tmp_path / "images_2/picture_003.png").unlink()
    with pytest.raises(DataError, match=r"images_2/picture_003.png does not exist \(1 of 5"):
        load_scene(tmp_path, factor=2)


def test_the_first_missing_picture_is_named_and_the_others_are_counted(tmp_path):
    write_scene(tmp_path)
    (tmp_path / "images/picture_004.png").unlink()
    (tmp_path / "images/picture_007.png").unlink()
    with pytest.raises(DataError, match=r"picture_004.png does not exist \(2 of 10 pictures are missing\)"):
        load_scene(tmp_path)


@pytest.mark.parametrize("content, text", [(b"", "cannot be decoded"), (b"no picture at all", "it is not a picture")])
def test_a_file_that_is_no_picture_is_refused_when_the_scene_is_opened(tmp_path, content, text):
    (write_scene(tmp_path) / "images/picture_004.png").write_bytes(content)
    with pytest.raises(DataError, match=rf"picture_004.png.*{text}"):
        load_scene(tmp_path)


def test_a_picture_of_another_shape_than_its_camera_is_refused(tmp_path):
    Image.new("RGB", (30, 40)).save(write_scene(tmp_path) / "images/picture_004.png")
    with pytest.raises(DataError, match=r"picture_004.png is 30 x 40 pixels but its camera has 40 x 30"):
        load_scene(tmp_path)


@pytest.mark.parametrize("name", ["picture_002.png", "picture_002.png.png", "picture_002.jpg"])
def test_masks_are_found_by_name_appended_png_or_stem(tmp_path, name):
    write_scene(tmp_path)
    (tmp_path / "masks").mkdir()
    mask = np.full((30, 40), 255, np.uint8)
    mask[:, :20] = 0
    Image.fromarray(mask).save(tmp_path / "masks" / name)
    scene = load_scene(tmp_path, factor=2)
    assert [p.mask_path is not None for p in scene.pictures] == [i == 2 for i in range(10)]
    counted = load_picture(scene.pictures[2]).mask
    assert counted.dtype == bool and counted.shape == (15, 20)
    assert not counted[:, :9].any() and counted[:, 11:].all()
    assert all(p.mask_path is None for p in load_scene(tmp_path, masks=False).pictures)


def test_a_mask_of_another_shape_is_refused(tmp_path):
    (write_scene(tmp_path) / "masks").mkdir()
    Image.new("L", (30, 40)).save(tmp_path / "masks/picture_002.png")
    with pytest.raises(DataError, match=r"masks/picture_002.png is 30 x 40 pixels but its picture has 40 x 30"):
        load_scene(tmp_path)


def test_times_come_from_a_file_beside_the_pictures_or_a_given_one(tmp_path):
    write_scene(tmp_path)
    assert load_scene(tmp_path).times is None
    table = {f"picture_{i:03d}.png": i / 9 for i in range(10)}
    (tmp_path / "times.json").write_text(json.dumps(table))
    scene = load_scene(tmp_path)
    np.testing.assert_allclose(scene.times, np.arange(10) / 9, rtol=1e-6)
    assert scene.views[9].time == 1.0
    (tmp_path / "other.json").write_text(json.dumps({name: 0.5 for name in table}))
    assert load_scene(tmp_path, times=tmp_path / "other.json").views[9].time == 0.5


@pytest.mark.parametrize("value", [1.5, None, "now", True, float("nan")])
def test_a_time_that_is_none_is_refused_by_picture(tmp_path, value):
    table = {f"picture_{i:03d}.png": 0.0 for i in range(10)} | {"picture_005.png": value}
    (write_scene(tmp_path) / "times.json").write_text(json.dumps(table))
    with pytest.raises(DataError, match=r"times.json: the time of 'picture_005.png'.*from 0 to 1"):
        load_scene(tmp_path)


def test_one_view_is_too_few(tmp_path):
    with pytest.raises(DataError, match=r"has 1 view; training needs at least 2"):
        load_scene(write_scene(tmp_path, ring_model(1, 2)))


def test_a_split_without_training_views_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"all 10 views are test views"):
        load_scene(write_scene(tmp_path), test_every=1)


def test_a_folder_that_is_no_scene_is_refused_with_what_was_looked_for(tmp_path):
    with pytest.raises(DataError, match=r"no COLMAP model in sparse/0, .*transforms.json"):
        load_scene(tmp_path)
    with pytest.raises(DataError, match=r"nowhere is not a folder"):
        load_scene(tmp_path / "nowhere")


def test_a_scene_can_be_sent_to_another_process(tmp_path):
    scene = load_scene(write_scene(tmp_path))
    copy = pickle.loads(pickle.dumps(scene))
    assert copy.pictures == scene.pictures
    np.testing.assert_array_equal(copy.views[4].viewmat, scene.views[4].viewmat)


@pytest.mark.scenes
@pytest.mark.parametrize("name, n_views, size, n_points, track", [
    ("fox", 50, (337, 600), 6500, 6.98), ("sceaux_castle", 11, (640, 472), 7862, 4.72),
    ("caliterra", 75, (560, 419), 6000, 7.30), ("brighton_beach", 18, (560, 314), 4307, 4.15),
    ("shelf_hand_dynamic", 86, (512, 382), 2588, 10.26)])
def test_real_scenes_are_read_and_their_points_lie_before_the_views_that_saw_them(shared_dir, name, n_views, size,
                                                                                  n_points, track):
    scene = load_scene(shared_dir / "data" / name)
    assert len(scene.views) == n_views and (scene.views[0].width, scene.views[0].height) == size
    assert len(scene.points.positions) == n_points
    records = read_points(shared_dir / "data" / name / "sparse/0/points3D.bin")
    assert records.track_lengths.mean() == pytest.approx(track, abs=0.01)  # as published, repeated views included
    rows = np.repeat(records.ids, records.track_lengths)
    distinct = set(zip(rows.tolist(), records.track_image_ids.tolist(), strict=True))
    assert len(scene.tracks.track_view_idx) == len(distinct)
    assert (scene.times is not None) == (name == "shelf_hand_dynamic")
    tracks = scene.tracks
    point_idx = np.repeat(np.arange(n_points), np.diff(tracks.track_offsets))
    for view in scene.views[::7]:
        seen = scene.points.positions[point_idx[tracks.track_view_idx == view.index]]
        camera = seen @ view.viewmat[:3, :3].T + view.viewmat[:3, 3]
        pixels = camera @ view.K.T
        pixels = pixels[:, :2] / pixels[:, 2:]
        assert (camera[:, 2] > 0).all()
        inside = ((pixels > -20) & (pixels < np.array(size) + 20)).all(axis=1)
        assert inside.mean() > 0.99  # a few lie just outside: undistortion cropped the pictures
