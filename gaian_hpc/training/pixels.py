"""Target pixels of a view in float32, and the background that both pictures share."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from ..arrays import View
from ..data.images import Picture
from ..errors import DataError
from ..rng import uniform

_BACKGROUNDS = {"black": 0.0, "white": 1.0}


def background_color(mode: str, seed: int, step: int, view: View) -> np.ndarray:
    """Return the background of a view at a step, (3,) float32; ``random`` is keyed by (seed, step, view)."""
    if mode == "random":
        return uniform(seed, "background", step, np.array([view.index]), (3,))[0]
    return np.full(3, _BACKGROUNDS[mode], np.float32)


def shown_background(mode: str) -> np.ndarray:
    """Return the background a run is rendered and measured on, (3,) float32: its own, or black where it is random."""
    return np.full(3, _BACKGROUNDS.get(mode, 0.0), np.float32)


def check_size(picture: Picture, view: View) -> None:
    """Raise DataError if the decoded picture has another size than its view."""
    if picture.rgb.shape[1:] != (view.height, view.width):
        raise DataError(f"{view.name}: the picture is {picture.rgb.shape[2]} x {picture.rgb.shape[1]} pixels, its view "
                        f"{view.width} x {view.height}; restore the picture that the camera was solved for")


WHOLE = (slice(None), slice(None))


def target_pixels(picture: Picture, view: View, background: np.ndarray,
                  part: tuple[slice, slice] = WHOLE) -> np.ndarray:
    """Return the picture over the background, (3, h, w) float32 in [0, 1].

    Parameters
    ----------
    picture : Picture
    view : View
    background : (3,) float32
    part : (slice, slice)
        Rows and columns of the picture that are wanted; all by default.

    Raises
    ------
    DataError
        If the decoded picture has another size than its view.
    """
    check_size(picture, view)
    target = np.multiply(picture.rgb[:, *part], np.float32(1 / 255), dtype=np.float32)
    if picture.alpha is not None:
        alpha = np.multiply(picture.alpha[part], np.float32(1 / 255), dtype=np.float32)
        target *= alpha
        target += background[:, None, None] * (1 - alpha)
    return target


@njit(parallel=True, error_model="numpy", nogil=True, cache=True)
def over_background(color, alpha, background, out):
    """Write colour + (1 − alpha)·background, (3, h, w), into ``out``."""
    for y in prange(alpha.shape[0]):
        for c in range(color.shape[0]):
            for x in range(alpha.shape[1]):
                out[c, y, x] = color[c, y, x] + (np.float32(1) - alpha[y, x]) * background[c]


def alpha_gradient(v_image: np.ndarray, background: np.ndarray) -> np.ndarray | None:
    """Return dL/d(alpha) of :func:`over_background`, (h, w); None where it is zero everywhere."""
    if not background.any():
        return None
    v_alpha = np.empty(v_image.shape[1:], np.float32)
    _alpha_gradient(v_image, background, v_alpha)
    return v_alpha


@njit(parallel=True, error_model="numpy", nogil=True, cache=True)
def _alpha_gradient(v_image, background, v_alpha):
    for y in prange(v_alpha.shape[0]):
        for x in range(v_alpha.shape[1]):
            v_alpha[y, x] = -(v_image[0, y, x] * background[0] + v_image[1, y, x] * background[1]
                              + v_image[2, y, x] * background[2])
