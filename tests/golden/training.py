"""Golden cases of the loss and of the optimizer."""

from __future__ import annotations

import numpy as np

from gaian_hpc.arrays import Patch, View
from gaian_hpc.backends.cuda import Device
from gaian_hpc.training.cuda import region_loss
from gaian_hpc.training.loss import photometric, ssim_map
from tests.golden_adam import TOLERANCE, check_adam

from .cases import Case
from .compare import EXACT, FLOOR_FORWARD, NO_COSTS, Comparison, Costs, compare, uniform
from .gaussian3d import host

RADIUS, SIGMA = 5, 1.5
C1, C2 = 0.01**2, 0.03**2
N_SINGLES = 8


def compare_adam(case: Case, device: Device | None = None) -> list[Comparison]:
    """Compare trajectories, last moments and the learning-rate schedule with the golden ones."""
    # float32 parameters lose half a unit in the last place at every step.
    tolerance = TOLERANCE * max(1.0, np.sqrt(len(case["grads"]) / 12))
    return [uniform(name, error, tolerance) for name, error in check_adam(case, device).items()]


def _filtered(x: np.ndarray) -> np.ndarray:
    """Return the 11×11 Gaussian window means of (H, W, C), zero outside of the picture, in the precision of ``x``."""
    at = np.arange(-RADIUS, RADIUS + 1)
    window = np.exp(-(at**2) / (2 * SIGMA**2))
    window = (window / window.sum()).astype(x.dtype)
    for axis in (0, 1):
        length = x.shape[axis]
        padded = np.pad(x, [(RADIUS, RADIUS) if a == axis else (0, 0) for a in range(3)])
        x = sum(w * np.take(padded, np.arange(k, k + length), axis) for k, w in enumerate(window))
    return x


def ssim_oracle(image: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return SSIM per pixel and channel and the gradient of its mean by ``image``, in the precision of ``image``."""
    x, y = image, target
    mean_x, mean_y = _filtered(x), _filtered(y)
    a1, a2 = 2 * mean_x * mean_y + C1, 2 * (_filtered(x * y) - mean_x * mean_y) + C2
    b1 = mean_x**2 + mean_y**2 + C1
    b2 = _filtered(x * x) - mean_x**2 + _filtered(y * y) - mean_y**2 + C2
    values = a1 * a2 / (b1 * b2)
    by_square, by_product = -values / b2, 2 * a1 / (b1 * b2)
    by_mean = 2 * mean_y * a2 / (b1 * b2) - 2 * mean_x * values / b1 - 2 * mean_x * by_square - mean_y * by_product
    gradient = _filtered(by_mean) + 2 * x * _filtered(by_square) + y * _filtered(by_product)
    return values, gradient / x.dtype.type(x.size)


def measure_ssim_oracle(case: Case, image: np.ndarray, target: np.ndarray) -> dict[str, np.ndarray]:
    """Return everything an SSIM file holds from the oracle, in the precision of ``image``."""
    values, gradient = ssim_oracle(image, target)
    weight = case.scalar("lambda_dssim")
    l1, ssim = np.mean(np.abs(image - target)), np.mean(values)
    inner = values[RADIUS:-RADIUS, RADIUS:-RADIUS]
    v_l1 = np.sign(image - target) / image.dtype.type(image.size)
    return {"l1": l1, "ssim": ssim, "ssim_map": values, "loss": (1 - weight) * l1 + weight * (1 - ssim),
            "g_image_ssim": gradient, "g_image_loss": (1 - weight) * v_l1 - weight * gradient,
            "ssim_valid_mean": np.mean(inner), "psnr": -10 * np.log10(np.mean((image - target) ** 2))}


def measure_ssim(case: Case, device: Device | None = None) -> dict[str, np.ndarray]:
    """Return everything an SSIM file holds that the package gives, the whole picture taken as one patch.

    On a ``device`` there are no maps of SSIM.
    """
    image, target = (np.ascontiguousarray(case[name].transpose(2, 0, 1), np.float32) for name in ("image", "target"))
    _, height, width = image.shape
    patch = Patch(View(np.eye(4, dtype=np.float32), np.eye(3, dtype=np.float32), width, height), 0, 0, width, height)
    weight = case.scalar("lambda_dssim")
    if device is None:
        found, alone = (photometric(image, target, patch, w) for w in (weight, 1.0))
    else:
        found, alone = (region_loss(device, device.array(image), device.array(target), patch, w) for w in (weight, 1.0))
    l1, ssim = found.l1 / image.size, found.ssim / image.size
    result = {"l1": l1, "ssim": ssim, "loss": (1 - weight) * l1 + weight * (1 - ssim),
              "g_image_ssim": -host(alone.v_image).transpose(1, 2, 0),
              "g_image_loss": host(found.v_image).transpose(1, 2, 0)}
    if device is None:
        values = ssim_map(image, target).transpose(1, 2, 0).astype(np.float64)
        result |= {"ssim_map": values, "ssim_valid_mean": values[RADIUS:-RADIUS, RADIUS:-RADIUS].mean()}
    return result


def compare_ssim(case: Case, exact: bool = False, device: Device | None = None) -> list[Comparison]:
    """Compare loss, SSIM and their gradients with the golden ones, ours of ``device`` where there is one."""
    case.expect_shapes(target=case["image"].shape, image=(*case["image"].shape[:2], 3))
    double = measure_ssim_oracle(case, case.double("image"), case.double("target"))
    if exact:
        got, costs = double, NO_COSTS
    else:
        rng = np.random.default_rng(0)
        # One factor for both pictures, so that where they are equal they remain so.
        factors = (1 + np.float32(2**-23) * rng.integers(-1, 2, (N_SINGLES, *case["image"].shape))).astype(np.float32)
        got = measure_ssim(case, device)
        costs = Costs(double, [measure_ssim_oracle(case, case["image"] * f, case["target"] * f) for f in factors])
    verdicts = []
    for name in (n for n in case if n in got):
        if case[name].ndim:
            verdicts.append(compare(case, name, got[name], costs, exact))
        else:
            verdicts.append(uniform(name, abs(float(got[name]) - case.scalar(name)), EXACT if exact else FLOOR_FORWARD))
    return verdicts
