"""PLY files: bit-exact Gaussians, plain points, and whatever else people call a PLY file."""

import logging

import numpy as np
import pytest
from plyfile import PlyData, PlyElement

from gaian_hpc.checkpoint.ply import (
    GaussianStart,
    PointStart,
    export_points,
    load_start,
    read_gaussian_ply,
    read_point_ply,
    write_gaussian_ply,
)
from gaian_hpc.errors import DataError, FormatError, GaianError


@pytest.fixture
def warnings():
    """Collect the warnings of the PLY readers, whoever has set up logging before."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("gaian_hpc.checkpoint.ply")
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def gaussians(n=20, degree=3):
    rng = np.random.default_rng(2)
    shapes = {"means": (3,), "quats": (4,), "scales": (3,), "opacities": (), "sh": ((degree + 1) ** 2, 3)}
    return {name: rng.standard_normal((n, *shape), np.float32) for name, shape in shapes.items()}


def vertices(path, columns, **options):
    """Write a PLY file with the given columns."""
    data = np.empty(len(next(iter(columns.values()))), [(k, np.asarray(v).dtype) for k, v in columns.items()])
    for name, column in columns.items():
        data[name] = column
    PlyData([PlyElement.describe(data, "vertex")], **options).write(str(path))
    return path


def body(path):
    data = path.read_bytes()
    return data[data.index(b"end_header\n") + 11:]


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_gaussians_of_any_degree_come_back_bit_for_bit(tmp_path, degree):
    raw = gaussians(degree=degree)
    raw["means"][0, 0] = -0.0
    write_gaussian_ply(tmp_path / "a.ply", raw)
    found = read_gaussian_ply(tmp_path / "a.ply")
    assert found.keys() == raw.keys()
    for name in raw:
        assert found[name].dtype == np.float32 and found[name].shape == raw[name].shape
        assert found[name].tobytes() == raw[name].tobytes(), name
    assert [p.name for p in tmp_path.iterdir()] == ["a.ply"]


def test_the_file_has_the_order_of_3dgs_with_channel_major_harmonics(tmp_path):
    raw = gaussians(1, degree=1)
    raw["sh"][0] = [[1, 2, 3], [10, 20, 30], [11, 21, 31], [12, 22, 32]]
    write_gaussian_ply(tmp_path / "a.ply", raw)
    header = (tmp_path / "a.ply").read_bytes().split(b"end_header\n")[0].decode()
    names = "x y z nx ny nz f_dc_0 f_dc_1 f_dc_2 " + " ".join(f"f_rest_{i}" for i in range(9))
    names += " opacity scale_0 scale_1 scale_2 rot_0 rot_1 rot_2 rot_3"
    assert header.splitlines() == ["ply", "format binary_little_endian 1.0", "element vertex 1",
                                   *(f"property float {name}" for name in names.split())]
    row = np.frombuffer(body(tmp_path / "a.ply"), "<f4")
    assert row.tolist() == [*raw["means"][0], 0, 0, 0, 1, 2, 3, 10, 11, 12, 20, 21, 22, 30, 31, 32, raw["opacities"][0],
                            *raw["scales"][0], *raw["quats"][0]]


def test_a_trained_file_is_written_as_it_was_read(tmp_path, shared_dir):
    source = shared_dir / "data" / "trained_3dgs_ply" / "point_cloud.ply"
    if not source.exists():
        pytest.skip(f"there is no {source}")
    raw = read_gaussian_ply(source)
    assert raw["means"].shape == (9080, 3) and raw["sh"].shape == (9080, 16, 3)
    write_gaussian_ply(tmp_path / "a.ply", raw)
    assert body(tmp_path / "a.ply") == body(source)
    assert isinstance(load_start(source), GaussianStart)


def gaussian_columns(n=3):
    names = ["rot_3", "x", "y", "z", "f_dc_0", "f_dc_1", "f_dc_2", "opacity", "scale_0", "scale_1", "scale_2", "rot_0",
             "rot_1", "rot_2"]
    return {name: np.arange(n) + np.float32(10 * i + 1) for i, name in enumerate(names)}


@pytest.mark.parametrize("options", [{"text": True}, {"byte_order": ">"}, {"byte_order": "<"}])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_columns_are_found_by_name_without_normals_in_any_order_and_encoding(tmp_path, options, dtype):
    columns = {k: v.astype(dtype) for k, v in gaussian_columns().items()}
    found = read_gaussian_ply(vertices(tmp_path / "a.ply", columns, **options))
    assert found["sh"].shape == (3, 1, 3)
    assert found["quats"][1].tolist() == [112, 122, 132, 2]
    assert found["opacities"].tolist() == [71, 72, 73]


def test_gaussians_that_no_optimizer_mends_are_dropped_with_a_warning(tmp_path, warnings):
    raw = gaussians(6)
    raw["means"][1, 2] = np.nan
    raw["opacities"][2] = -np.inf
    raw["sh"][3, 15, 2] = np.nan
    raw["quats"][4] = 0.0
    write_gaussian_ply(tmp_path / "a.ply", raw)
    found = read_gaussian_ply(tmp_path / "a.ply")
    assert np.array_equal(found["means"], raw["means"][[0, 5]]) and np.array_equal(found["sh"], raw["sh"][[0, 5]])
    assert len(warnings) == 1 and "dropped 4 of 6 points" in warnings[0]
    raw["means"][:] = np.nan
    write_gaussian_ply(tmp_path / "a.ply", raw)
    with pytest.raises(DataError, match="holds no usable point"):
        read_gaussian_ply(tmp_path / "a.ply")
    write_gaussian_ply(tmp_path / "a.ply", gaussians(0))
    with pytest.raises(DataError, match="holds no usable point"):
        read_gaussian_ply(tmp_path / "a.ply")


@pytest.mark.parametrize("dtype, top", [("u1", 255), ("u2", 65535), ("f4", 1.0), ("f8", 1.0)])
def test_points_bring_their_colours_in_0_to_1(tmp_path, dtype, top):
    columns = {"x": np.float64([1, 2]), "y": np.float64([3, 4]), "z": np.float64([5, 6]),
               **{c: np.array(v, dtype) for c, v in (("red", [0, top]), ("green", [top, 0]), ("blue", [top, top]))}}
    start = load_start(vertices(tmp_path / "a.ply", columns))
    assert isinstance(start, PointStart)
    assert start.positions.dtype == start.colors.dtype == np.float32
    assert start.positions.tolist() == [[1, 3, 5], [2, 4, 6]] and start.colors.tolist() == [[0, 1, 1], [1, 0, 1]]


def test_points_without_colours_are_grey_and_bad_ones_are_dropped(tmp_path, warnings):
    positions, colors = read_point_ply(vertices(tmp_path / "a.ply", {
        "x": np.float64([1, np.nan, 1e300]), "y": np.float64([3, 4, 0]), "z": np.float64([5, 6, 0])}))
    assert positions.tolist() == [[1, 3, 5]] and colors.tolist() == [[0.5] * 3]
    assert "dropped 2 of 3" in warnings[0]


def without(name):
    return {k: v for k, v in gaussian_columns().items() if k != name}


@pytest.mark.parametrize("columns, message", [
    (without("rot_2"), "lack the property rot_2"),
    (without("y"), "lack the property y"),
    (without("scale_1"), "lack the property scale_1"),
    ({**gaussian_columns(), "f_rest_0": np.zeros(3, "f4")}, r"has 1 properties f_rest_\* .0, 9, 24 or 45"),
    ({**gaussian_columns(), **{f"f_rest_{i + 1}": np.zeros(3, "f4") for i in range(9)}}, "lack the property f_rest_0"),
    ({"packed_position": np.zeros(3, "u4")}, "a compressed PLY"),
    ({"u": np.zeros(3, "f4")}, "lack the property x"),
])
def test_gaussians_of_another_kind_are_named(tmp_path, columns, message):
    with pytest.raises(FormatError, match=message):
        load_start(vertices(tmp_path / "a.ply", columns))


ASCII = b"ply\nformat ascii 1.0\n"
XYZ = b"property float x\nproperty float y\nproperty float z\n"


@pytest.mark.parametrize("content, message", [
    (b"", "not a PLY file"),
    (b"solid cube\nfacet", "not a PLY file"),
    (ASCII + b"element vertex 2\n", "not a PLY file .no header"),
    (ASCII + b"element vertex 0\nproperty float x\nend_header\n", "lack the property y"),
    (ASCII + b"element edge 0\nproperty float x\nend_header\n", "without vertices"),
    (b"ply\nformat binary_little_endian 1.0\nelement vertex 999999999999\n" + XYZ + b"end_header\n" + bytes(24),
     "the header promises at least 1200.* bytes, the file has"),
    (ASCII + b"element vertex 999999999999\nproperty float x\nend_header\n1\n", "header promises"),
    (ASCII + b"element vertex 1\n" + XYZ + b"end_header\n1 2 q\n", "cannot be read"),
    (ASCII + b"element vertex 1\nproperty real x\nend_header\n1\n", "'property real x', which is not valid"),
    (ASCII + b"element vertex -1\nproperty float x\nend_header\n1\n", "'element vertex -1', which is not valid"),
    (ASCII + b"element vertex 1\n" + XYZ + b"element face 1\nproperty list uchar int i\nend_header\n1 2 3\n3 0 0 0\n",
     "element face has lists, as meshes have"),
    (b"ply\nformat morse 1.0\nelement vertex 1\nproperty float x\nend_header\nabcdefgh", "cannot be read"),
])
def test_what_is_no_ply_file_of_points_is_one_line(tmp_path, content, message):
    path = tmp_path / "a.ply"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=message) as caught:
        load_start(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_an_absent_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"absent.ply: there is no such file"):
        load_start(tmp_path / "absent.ply")


@pytest.mark.parametrize("text", [False, True])
def test_random_cuts_and_flips_are_read_or_refused_by_name(tmp_path, text):
    columns = {k: np.float32(v) for k, v in gaussian_columns(40).items()}
    intact = vertices(tmp_path / "intact.ply", columns, text=text, byte_order="<").read_bytes()
    rng = np.random.default_rng(8)
    path = tmp_path / "a.ply"
    n_refused = 0
    for trial in range(300):
        data = bytearray(intact)
        for _ in range(rng.integers(0, 4)):
            data[rng.integers(len(data) if trial % 2 else 400)] ^= 1 << rng.integers(8)
        if trial % 3 == 0:
            del data[rng.integers(len(data)):]
        path.write_bytes(data)
        try:
            start = load_start(path)
            assert isinstance(start, GaussianStart | PointStart)
        except GaianError as error:
            n_refused += 1
            assert str(path) in str(error) and "\n" not in str(error)
    assert n_refused > 50


def test_points_without_a_known_layout_name_the_checkpoint_instead(tmp_path):
    with pytest.raises(GaianError, match="there is no PLY layout for points of corners, sh"):
        export_points(tmp_path / "a.ply", {"corners": np.zeros((1, 6, 3), "f4"), "sh": np.zeros((1, 16, 3), "f4")})
    export_points(tmp_path / "a.ply", gaussians())
    assert read_gaussian_ply(tmp_path / "a.ply")["means"].shape == (20, 3)


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path):
    with pytest.raises(GaianError, match="cannot be written"):
        write_gaussian_ply(tmp_path / "absent" / "a.ply", gaussians())
    (tmp_path / "a.ply").mkdir()
    with pytest.raises(GaianError, match="cannot be written"):
        write_gaussian_ply(tmp_path / "a.ply", gaussians())
    assert [p.name for p in tmp_path.iterdir()] == ["a.ply"]
