"""The procedural city as a COLMAP scene: its tracks, its pictures, and that it is made whole or not at all."""

import numpy as np
import pytest
from PIL import Image
from scipy.spatial.transform import Rotation

from gaian_hpc.data import synthetic
from gaian_hpc.data.city import BLOCK, HALF, STREET, SUN, Buildings, build_city, in_shadow

SMALL = {"n_views": 10, "width": 96, "height": 72, "n_points": 1200, "spacing": 3.0}


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    return synthetic.write_city(tmp_path_factory.mktemp("city") / "scene", **SMALL)


def rows(path):
    return [line.split() for line in path.read_text().splitlines() if not line.startswith("#")]


def read_model(scene):
    """Return K, poses by image id, observations by image id and points by id, read as COLMAP's text says."""
    camera = rows(scene / "sparse/0/cameras.txt")[0]
    lines = rows(scene / "sparse/0/images.txt")
    images = {int(a[0]): (np.array(a[1:8], float), a[9], np.array(b, float).reshape(-1, 3))
              for a, b in zip(lines[::2], lines[1::2], strict=True)}
    points = {int(p[0]): (np.array(p[1:4], float), np.array(p[8:], int).reshape(-1, 2))
              for p in rows(scene / "sparse/0/points3D.txt")}
    return np.array(camera[4:], float), images, points


def test_every_observation_lies_where_its_point_projects(scene):
    (fx, fy, cx, cy), images, points = read_model(scene)
    errors = []
    for pose, _, observations in images.values():
        R = Rotation.from_quat(pose[[1, 2, 3, 0]]).as_matrix()
        for u, v, point in observations:
            x, y, z = R @ points[int(point)][0] + pose[4:]
            errors.append(np.hypot(fx * x / z + cx - u, fy * y / z + cy - v))
    assert len(errors) > 500
    assert np.median(errors) < 0.8
    assert np.max(errors) < 4.0


def test_tracks_and_pictures_name_each_other(scene):
    _, images, points = read_model(scene)
    n_tracked = 0
    for point, (_, track) in points.items():
        assert len(track) >= 2
        for image, place in track:
            assert int(images[image][2][place, 2]) == point
        n_tracked += len(track)
    assert n_tracked == sum(len(observations) for _, _, observations in images.values())


def test_every_picture_is_there_and_shows_only_ground_and_city(scene):
    _, images, _ = read_model(scene)
    for _, name, _ in images.values():
        pixels = np.asarray(Image.open(scene / "images" / name))
        assert pixels.shape == (72, 96, 3)
        assert (pixels.max(axis=2) > 15).mean() > 0.98
        assert pixels.std() > 10


def test_the_same_seed_writes_the_same_files_and_another_seed_does_not(scene, tmp_path):
    again = synthetic.write_city(tmp_path / "again", **SMALL)
    other = synthetic.write_city(tmp_path / "other", **SMALL, seed=1)
    for name in ("sparse/0/images.txt", "sparse/0/points3D.txt", "images/view_003.png"):
        assert (again / name).read_bytes() == (scene / name).read_bytes()
        assert (other / name).read_bytes() != (scene / name).read_bytes()


def test_an_interrupted_city_does_not_look_complete(tmp_path, monkeypatch):
    def fail(*_):
        raise KeyboardInterrupt
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(synthetic, "write_colmap", fail)
        synthetic.write_city(tmp_path / "scene", **SMALL)
    assert not (tmp_path / "scene").exists()
    assert synthetic.write_city(tmp_path / "scene", **SMALL).exists()


def test_buildings_stand_on_blocks():
    city = build_city(0, 2.0)
    upright = np.abs(city.normals[:, 2]) < 1e-9
    walls = upright & (np.ptp(city.scales, axis=1) > 0)  # leaves of trees are balls
    offset = np.mod(city.positions[walls, :2] + HALF, BLOCK + STREET) - STREET
    assert (offset > 0).all() and (offset < BLOCK).all()


def test_a_building_shades_what_lies_behind_it_as_seen_from_the_sun():
    box = Buildings(np.array([[0.0, 0.0, 0.0]]), np.array([[10.0, 10.0, 10.0]]), np.ones((1, 3)), np.ones((1, 3)))
    away = -np.array([*SUN[:2], 0.0]) / np.hypot(*SUN[:2])
    middle = np.array([5.0, 5.0, 0.0])
    reach = 10.0 * np.hypot(*SUN[:2]) / SUN[2]  # length of the shadow of a wall ten metres high
    positions = np.array([middle + away * (7.2 + 0.5 * reach), middle + away * (7.2 + 1.1 * reach),
                          middle - away * 8.0, [5.0, 5.0, 10.1]])
    assert in_shadow(positions, box).tolist() == [True, False, False, False]
