"""The loss of a view is the same whatever its patches; its gradient is the slope of its value."""

import numpy as np
import pytest

from gaian_hpc.arrays import Patch, View
from gaian_hpc.data.patches import make_patches
from gaian_hpc.training.loss import GHOST, Region, photometric, ssim_map
from tests.golden.training import ssim_oracle

WEIGHT = 0.2
SIZES = [(64, 48), (70, 53), (33, 17), (16, 16), (5, 3), (1, 1)]
WHOLE = 512


def pictures(width, height, seed=0):
    """Return two smooth but textured pictures, (3, H, W) float32, that differ everywhere by more than 0.002."""
    rng = np.random.default_rng(seed)
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    base = 0.5 + 0.2 * np.stack([np.sin(0.3 * x + k) * np.cos(0.2 * y - k) for k in range(3)])
    target = base + rng.uniform(-0.05, 0.05, base.shape)
    image = target + rng.choice([-1, 1], base.shape) * rng.uniform(0.002, 0.1, base.shape)
    return image.astype(np.float32), target.astype(np.float32)


def view_of(image):
    return View(np.eye(4, dtype=np.float32), np.eye(3, dtype=np.float32), image.shape[2], image.shape[1])


def whole_loss(image, target, patch_size=WHOLE, weight=WEIGHT, mask=None):
    """Return the view's loss and gradient, put together from patches."""
    v_image, l1, ssim = np.full_like(image, np.nan), 0.0, 0.0
    for patch in make_patches(view_of(image), patch_size):
        part = photometric(image, target, patch, weight, mask)
        v_image[:, patch.y0:patch.y1, patch.x0:patch.x1] = part.v_image
        l1 += part.l1 / image.size
        ssim += part.ssim / image.size
    return (1 - weight) * l1 + weight * (1 - ssim), v_image


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("patch_size", [16, 32, 48])
def test_patches_give_the_loss_and_gradient_of_the_whole_picture(size, patch_size):
    image, target = pictures(*size)
    loss, gradient = whole_loss(image, target)
    loss_of_patches, gradient_of_patches = whole_loss(image, target, patch_size)
    assert loss_of_patches == pytest.approx(loss, rel=1e-7)
    np.testing.assert_allclose(gradient_of_patches, gradient, rtol=0, atol=2e-6 * np.abs(gradient).max())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("weight", [0.0, 0.2, 1.0])
def test_loss_and_gradient_are_those_of_a_float64_reference(size, weight):
    image, target = pictures(*size)
    loss, gradient = whole_loss(image, target, 32, weight)
    x, y = (a.transpose(1, 2, 0).astype(np.float64) for a in (image, target))
    ssim, v_ssim = ssim_oracle(x, y)
    expected = (1 - weight) * np.sign(x - y) / x.size - weight * v_ssim
    assert loss == pytest.approx((1 - weight) * np.abs(x - y).mean() + weight * (1 - ssim.mean()), rel=2e-5, abs=1e-6)
    np.testing.assert_allclose(gradient.transpose(1, 2, 0), expected, rtol=0, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("weight", [0.0, 0.2, 1.0])
def test_the_gradient_is_the_slope_of_the_loss(weight):
    image, target = pictures(40, 27)
    _, gradient = whole_loss(image, target, 16, weight)
    step = np.float32(5e-4) * np.sign(gradient)
    slope = whole_loss(image + step, target, 16, weight)[0] - whole_loss(image - step, target, 16, weight)[0]
    assert slope == pytest.approx(2 * float(np.sum(gradient * step, dtype=np.float64)), rel=2e-3)


@pytest.mark.parametrize("axis", [1, 2])
def test_each_pixel_of_a_patch_border_feels_its_neighbours_on_the_other_side(axis):
    image, target = pictures(48, 48)
    _, before = whole_loss(image, target, 16)
    changed = image.copy()
    at = [slice(None), slice(None), slice(None)]
    at[axis] = slice(16, 32)  # the middle patches: their outer neighbours must see the change, up to GHOST pixels away
    changed[tuple(at)] = 1 - changed[tuple(at)]
    _, after = whole_loss(changed, target, 16)
    moved = np.moveaxis(np.abs(after - before), axis, 0).max(axis=(1, 2)) > 0
    assert moved[16 - GHOST:32 + GHOST].all()
    assert not moved[:16 - GHOST].any() and not moved[32 + GHOST:].any()


def test_equal_pictures_have_no_loss_and_no_gradient():
    image, _ = pictures(37, 29)
    loss, gradient = whole_loss(image, image.copy(), 16)
    assert abs(loss) < 1e-6
    assert np.abs(gradient).max() < 1e-5 / image.size


def test_ssim_of_equal_pictures_is_one_and_of_opposite_ones_negative():
    image, _ = pictures(30, 20)
    np.testing.assert_allclose(ssim_map(image, image.copy()), 1, atol=1e-5)
    assert ssim_map(image, 1 - image).mean() < 0


def mask_of(image):
    mask = np.ones(image.shape[1:], bool)
    mask[10:30, 20:40] = False
    mask[:, 0] = False
    return mask


@pytest.mark.parametrize("patch_size", [16, 48, WHOLE])
def test_pixels_outside_the_mask_get_no_gradient_and_their_values_do_not_matter(patch_size):
    image, target = pictures(70, 53)
    mask = mask_of(image)
    loss, gradient = whole_loss(image, target, patch_size, mask=mask)
    assert not gradient[:, ~mask].any() and gradient[:, mask].any()
    image[:, ~mask], target[:, ~mask] = 0.9, 0.1
    again, gradient_again = whole_loss(image, target, patch_size, mask=mask)
    assert again == loss
    assert gradient_again.tobytes() == gradient.tobytes()


def test_a_masked_loss_is_that_of_pictures_black_outside_the_mask():
    image, target = pictures(70, 53)
    mask = mask_of(image)
    loss, gradient = whole_loss(image, target, 32, mask=mask)
    black_loss, black_gradient = whole_loss(image * mask, target * mask, 32)
    assert loss == black_loss
    assert (gradient == black_gradient * mask).all()


def test_a_region_is_its_patch_and_ten_pixels_around_it_inside_the_view():
    view = View(np.eye(4), np.eye(3), 70, 53)
    corner, inner = Region.of(Patch(view, 0, 0, 32, 32)), Region.of(Patch(view, 32, 32, 70, 53))
    assert (corner.rows, corner.columns, corner.top, corner.left) == (slice(0, 42), slice(0, 42), 0, 0)
    assert (inner.rows, inner.columns, inner.top, inner.left) == (slice(22, 53), slice(22, 70), 10, 10)
