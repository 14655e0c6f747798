"""Decoding of every kind of picture, and the cache: its bound, its order and its errors."""

import threading
import time

import numpy as np
import pytest
from PIL import Image

from gaian_hpc.data import images
from gaian_hpc.data.images import PictureCache, PictureSource, load_picture, read_header
from gaian_hpc.data.scene import load_scene
from gaian_hpc.errors import DataError
from tests.unit.data.colmap_files import ring_model, write_scene

COLORS = np.random.default_rng(0).integers(0, 256, (6, 8, 3)).astype(np.uint8)


def source_of(path, scaled=None, mask=None):
    header = read_header(path)
    size = (header.width, header.height)
    return PictureSource(path, size, scaled or size, mask_path=mask, has_alpha=header.has_alpha)


def saved(tmp_path, image, name="a.png", **options):
    image.save(tmp_path / name, **options)
    return tmp_path / name


def test_colours_are_planar_contiguous_bytes(tmp_path):
    picture = load_picture(source_of(saved(tmp_path, Image.fromarray(COLORS))))
    np.testing.assert_array_equal(picture.rgb, COLORS.transpose(2, 0, 1))
    assert picture.rgb.dtype == np.uint8 and picture.rgb.flags.c_contiguous
    assert picture.alpha is None and picture.mask is None and picture.nbytes == 6 * 8 * 3


def test_sixteen_bit_grey_keeps_its_high_byte(tmp_path):
    grey = np.array([[0, 255, 256, 65535]], np.uint16)
    picture = load_picture(source_of(saved(tmp_path, Image.fromarray(grey))))
    assert picture.rgb[:, 0].tolist() == [[0, 0, 1, 255]] * 3


@pytest.mark.parametrize("mode", ["L", "1"])
def test_grey_pictures_have_three_equal_channels(tmp_path, mode):
    picture = load_picture(source_of(saved(tmp_path, Image.new(mode, (3, 2), 255))))
    assert picture.rgb.shape == (3, 2, 3) and (picture.rgb == 255).all()


def test_palette_pictures_are_looked_up_and_their_transparency_is_alpha(tmp_path):
    image = Image.new("P", (4, 1))
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putdata([0, 1, 0, 1])
    opaque = load_picture(source_of(saved(tmp_path, image)))
    assert opaque.rgb[:, 0, :2].T.tolist() == [[10, 20, 30], [200, 100, 50]] and opaque.alpha is None
    clear = load_picture(source_of(saved(tmp_path, image, "b.png", transparency=1)))
    assert clear.alpha.tolist() == [[255, 0, 255, 0]]


@pytest.mark.parametrize("mode, color, expected", [("RGBA", (9, 8, 7, 66), (9, 8, 7)), ("LA", (9, 66), (9, 9, 9))])
def test_alpha_is_kept_beside_colours_that_are_not_multiplied_with_it(tmp_path, mode, color, expected):
    picture = load_picture(source_of(saved(tmp_path, Image.new(mode, (3, 2), color))))
    assert (picture.alpha == 66).all() and picture.rgb[:, 0, 0].tolist() == list(expected)


def test_resizing_does_not_let_the_colour_of_clear_pixels_bleed(tmp_path):
    rgba = np.zeros((8, 8, 4), np.uint8)
    rgba[:, :3] = (200, 100, 50, 255)
    rgba[:, 3:] = (0, 255, 0, 0)
    picture = load_picture(source_of(saved(tmp_path, Image.fromarray(rgba)), scaled=(4, 4)))
    half = (picture.alpha > 30) & (picture.alpha < 225)
    assert half.any() and (np.abs(picture.rgb[1][half].astype(int) - 100) < 12).all()


def test_exif_orientation_is_not_applied(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    path = saved(tmp_path, Image.fromarray(COLORS), "a.jpg", exif=exif)
    assert load_picture(source_of(path)).rgb.shape == (3, 6, 8)


@pytest.mark.parametrize("extension", ["webp", "tif", "bmp", "ppm"])
def test_other_lossless_formats_are_read(tmp_path, extension):
    options = {"lossless": True} if extension == "webp" else {}
    path = saved(tmp_path, Image.fromarray(COLORS), f"a.{extension}", **options)
    np.testing.assert_array_equal(load_picture(source_of(path)).rgb, COLORS.transpose(2, 0, 1))


def test_jpegs_with_several_pictures_as_phones_write_them_are_read(tmp_path):
    other = Image.new("RGB", (8, 6))
    path = saved(tmp_path, Image.new("RGB", (8, 6), (200, 100, 50)), "a.mpo", save_all=True, append_images=[other])
    path = path.rename(tmp_path / "a.jpg")
    assert np.abs(load_picture(source_of(path)).rgb[:, 2, 2].astype(int) - (200, 100, 50)).max() <= 3


def test_a_scaled_mask_counts_only_pixels_whose_sources_all_count(tmp_path):
    mask = np.full((6, 8), 255, np.uint8)
    mask[2, 3] = 0
    mask_path = saved(tmp_path, Image.fromarray(mask), "m.png")
    picture = load_picture(source_of(saved(tmp_path, Image.fromarray(COLORS)), (4, 3), mask_path))
    assert (~picture.mask).sum() == 1 and not picture.mask[1, 1]


def test_a_float_picture_is_refused_with_what_to_do(tmp_path):
    path = saved(tmp_path, Image.fromarray(np.zeros((6, 8), np.float32)), "a.tif")
    with pytest.raises(DataError, match=r"a.tif has pixels of kind 'F'; convert"):
        load_picture(source_of(path))


def test_a_picture_that_changed_its_size_is_refused(tmp_path):
    path = saved(tmp_path, Image.fromarray(COLORS))
    source = source_of(path)
    saved(tmp_path, Image.fromarray(COLORS[:5]))
    with pytest.raises(DataError, match="is 8 x 5 but was 8 x 6"):
        load_picture(source)


@pytest.mark.parametrize("name", ["a.jpg", "a.png"])
def test_every_truncation_of_a_picture_is_whole_or_refused_by_name(tmp_path, name):
    path = saved(tmp_path, Image.fromarray(np.tile(COLORS, (4, 4, 1))), name)
    source, whole = source_of(path), path.read_bytes()
    refused = 0
    for length in range(0, len(whole), max(1, len(whole) // 150)):
        path.write_bytes(whole[:length])
        try:
            assert load_picture(source).rgb.shape == (3, 24, 32)
        except DataError as error:
            refused += 1
            assert str(path) in str(error) and "\n" not in str(error)
    assert refused > 100
    path.unlink()
    with pytest.raises(DataError, match="does not exist"):
        load_picture(source)


@pytest.mark.filterwarnings("ignore")  # Pillow warns of damage that it then refuses
@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.tif"])
def test_flipped_bytes_in_a_picture_give_a_picture_or_a_named_error(tmp_path, name):
    path = saved(tmp_path, Image.fromarray(np.tile(COLORS, (4, 4, 1))), name)
    source, whole = source_of(path), path.read_bytes()
    random = np.random.default_rng(3)
    for _ in range(300):
        data = bytearray(whole)
        for at in random.integers(0, len(data), random.integers(1, 4)):
            data[at] ^= 1 << random.integers(0, 8)
        path.write_bytes(data)
        try:
            assert load_picture(source).rgb.shape == (3, 24, 32)
        except DataError as error:
            assert str(path) in str(error)


@pytest.fixture
def scene(tmp_path):
    return load_scene(write_scene(tmp_path, ring_model(10, 2)))


ONE = 40 * 30 * 3


def first_red(picture):
    return int(picture.rgb[0, 0, 0])


@pytest.fixture
def decoded(monkeypatch):
    """The numbers of the pictures decoded, in order, with the thread's name."""
    log, real = [], images.load_picture

    def load(source, maps=None):
        log.append((int(source.path.stem[-3:]), threading.current_thread().name))
        return real(source, maps)

    monkeypatch.setattr(images, "load_picture", load)
    return log


def wait_until(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "nothing happened for ten seconds"
        time.sleep(0.002)


@pytest.mark.parametrize("max_bytes", [0, ONE - 1, ONE, 3 * ONE, 100 * ONE])
@pytest.mark.parametrize("prefetch", [0, 1, 4, 20])
def test_a_set_of_any_size_trains_within_the_bound(scene, max_bytes, prefetch):
    order = np.random.default_rng(2).integers(0, 10, 60)
    with PictureCache(scene, max_bytes, prefetch) as cache:
        cache.schedule(order)
        for i in order:
            assert first_red(cache.get(i)) == i + 1
            assert cache.nbytes <= max_bytes


def test_a_picture_that_is_kept_is_not_decoded_again(scene, decoded):
    with PictureCache(scene, 2 * ONE, prefetch=0) as cache:
        for i in (0, 1, 0, 2, 0, 1):  # 2 drops 1, which was used before 0
            cache.get(i)
    assert [i for i, _ in decoded] == [0, 1, 2, 1]


def test_scheduled_pictures_are_decoded_ahead_in_order_and_not_farther(scene, decoded):
    with PictureCache(scene, 100 * ONE, prefetch=3) as cache:
        cache.schedule([5, 2, 7, 1, 3])
        wait_until(lambda: len(decoded) == 3)
        time.sleep(0.05)
        assert [i for i, _ in decoded] == [5, 2, 7]
        cache.get(5)
        wait_until(lambda: len(decoded) == 4)
        assert decoded[3][0] == 1
        for i in (2, 7, 1, 3):
            cache.get(i)
    assert sorted(i for i, _ in decoded) == [1, 2, 3, 5, 7]
    assert all(name.startswith("pictures-") for _, name in decoded[:4])


def test_prefetching_stops_at_the_bound_and_drops_nothing_that_is_scheduled(scene, decoded):
    with PictureCache(scene, 2 * ONE, prefetch=6) as cache:
        cache.schedule([0, 1, 2, 3])
        wait_until(lambda: len(decoded) == 2)
        time.sleep(0.05)
        assert [i for i, _ in decoded] == [0, 1]
        for i in range(4):
            assert first_red(cache.get(i)) == i + 1
    assert sorted(i for i, _ in decoded) == [0, 1, 2, 3]


def test_an_endless_schedule_is_read_only_as_far_as_needed(scene):
    taken = []

    def endless():
        while True:
            for i in range(10):
                taken.append(i)
                yield i

    with PictureCache(scene, 100 * ONE, prefetch=4) as cache:
        cache.schedule(endless())
        for i in range(3):
            cache.get(i)
    assert len(taken) == 7


def test_asking_twice_for_a_view_counts_as_one_entry_and_other_views_leave_the_schedule_alone(scene, decoded):
    with PictureCache(scene, 100 * ONE, prefetch=2) as cache:
        cache.schedule([0, 1, 0, 2, 3])
        wait_until(lambda: len(decoded) == 2)
        for i in (0, 0, 9):
            cache.get(i)
        time.sleep(0.05)
        assert {i for i, _ in decoded} == {0, 1, 9}
        cache.get(1)
        cache.get(0)
        wait_until(lambda: {i for i, _ in decoded} == {0, 1, 9, 2, 3})


def test_an_error_ahead_is_raised_where_the_picture_is_asked_for(scene):
    scene.pictures[4].path.write_bytes(b"\xff\xd8 broken")
    with PictureCache(scene, 100 * ONE, prefetch=5) as cache:
        cache.schedule(range(10))
        for i in range(4):
            cache.get(i)
        for _ in range(2):
            with pytest.raises(DataError, match=r"picture_004.png cannot be decoded"):
                cache.get(4)
        assert first_red(cache.get(5)) == 6


def test_many_threads_get_the_right_pictures(scene):
    wrong = []
    with PictureCache(scene, 3 * ONE, prefetch=2, n_threads=2) as cache:
        cache.schedule(np.arange(200) % 10)

        def ask(seed):
            for i in np.random.default_rng(seed).integers(0, 10, 60):
                if first_red(cache.get(i)) != i + 1 or cache.nbytes > 3 * ONE:
                    wrong.append(i)

        threads = [threading.Thread(target=ask, args=(s,)) for s in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
    assert not wrong


def test_closing_ends_the_threads(scene):
    cache = PictureCache(scene, 100 * ONE, prefetch=3, n_threads=2)
    cache.schedule(range(10))
    cache.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("pictures-")]
