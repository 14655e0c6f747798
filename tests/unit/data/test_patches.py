"""The patch grid covers each pixel once, along tiles."""

import numpy as np
import pytest

from gaian_hpc.arrays import View
from gaian_hpc.data.patches import make_patches
from gaian_hpc.errors import SettingsError


def view(width, height):
    return View(np.eye(4, dtype=np.float32), np.eye(3, dtype=np.float32), width, height)


@pytest.mark.parametrize("width, height, size", [
    (640, 480, 512), (640, 480, 64), (337, 600, 128), (16, 16, 16), (1, 1, 512), (17, 5, 16), (1000, 33, 100),
    (640, 480, 5), (4000, 3000, 512)])
def test_patches_cover_each_pixel_once_along_tiles_and_keep_the_size(width, height, size):
    count = np.zeros((height, width), int)
    patches = make_patches(view(width, height), size)
    for i, patch in enumerate(patches):
        count[patch.y0:patch.y1, patch.x0:patch.x1] += 1
        assert patch.index == i and patch.x0 % 16 == patch.y0 % 16 == 0
        assert patch.x1 % 16 == 0 or patch.x1 == width
        assert patch.y1 % 16 == 0 or patch.y1 == height
        assert 0 < patch.width <= max(16, size) and 0 < patch.height <= max(16, size)
    assert (count == 1).all()


def test_patches_go_row_by_row_in_near_equal_parts():
    patches = make_patches(view(640, 480), 512)
    assert [(p.x0, p.y0, p.x1, p.y1) for p in patches] == [(0, 0, 320, 480), (320, 0, 640, 480)]
    assert [(p.x0, p.y0) for p in make_patches(view(64, 64), 32)] == [(0, 0), (32, 0), (0, 32), (32, 32)]


def test_a_patch_size_of_zero_is_refused():
    with pytest.raises(SettingsError, match="patch_size is 0"):
        make_patches(view(64, 64), 0)
