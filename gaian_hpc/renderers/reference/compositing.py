"""Front-to-back compositing of every splat over every pixel, and its derivative."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .projection import ALPHA_MIN

ALPHA_MAX = 0.99
TRANSMITTANCE_MIN = 1e-4


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one splat adds: its row, the flat indices of its pixels, and per pixel alpha and transmittance before it."""

    row: int
    pixels: np.ndarray
    alphas: np.ndarray
    transmittances: np.ndarray


@dataclass(slots=True)
class Composite:
    """Accumulated picture of ``width`` × ``height`` pixels whose first pixel is (``x0``, ``y0``).

    Attributes
    ----------
    color : (h, w, 3), alpha, depth : (h, w)
        Sums of weight × colour and weight × depth, and one minus the final transmittance.
    n_contrib : (h, w) int32
        Number of splats added per pixel.
    contributions : list of Contribution
        Front to back.
    """

    x0: int
    y0: int
    color: np.ndarray
    alpha: np.ndarray
    depth: np.ndarray
    n_contrib: np.ndarray
    contributions: list[Contribution] = field(default_factory=list)


def _pixel_centres(x0: int, y0: int, width: int, height: int, dtype: type) -> np.ndarray:
    y, x = np.mgrid[y0 : y0 + height, x0 : x0 + width]
    return np.stack([x.ravel(), y.ravel()], axis=1).astype(dtype) + dtype(0.5)


def _falloff(pixels: np.ndarray, mean2d: np.ndarray, conic: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean − pixel and the exponent ½ dᵀ C d of every pixel."""
    d = mean2d - pixels
    sigma = (conic[0] * d[:, 0] ** 2 + conic[2] * d[:, 1] ** 2) / 2 + conic[1] * d[:, 0] * d[:, 1]
    return d, sigma


def composite(rect: tuple[int, int, int, int], means2d: np.ndarray, conics: np.ndarray, depths: np.ndarray,
              colors: np.ndarray, opacities: np.ndarray) -> Composite:
    """Composite M splats over the pixels x0 ≤ x < x1, y0 ≤ y < y1 of ``rect`` = (x0, y0, x1, y1).

    Splats are taken by depth, equal depths by row. An alpha is limited to 0.99 and dropped below 1/255; the splat
    that would bring the transmittance to 1e-4 or below is left out and ends its pixel.

    Parameters
    ----------
    means2d, conics, depths, colors, opacities : (M, 2), (M, 3), (M,), (M, 3), (M,)
    """
    x0, y0, x1, y1 = rect
    width, height, dtype = x1 - x0, y1 - y0, means2d.dtype.type
    pixels = _pixel_centres(x0, y0, width, height, dtype)
    transmittance, live = np.ones(len(pixels), dtype), np.ones(len(pixels), bool)
    color, depth = np.zeros((len(pixels), 3), dtype), np.zeros(len(pixels), dtype)
    n_contrib = np.zeros(len(pixels), np.int32)
    contributions = []
    for row in np.argsort(depths, kind="stable"):
        if opacities[row] < ALPHA_MIN:
            continue
        _, sigma = _falloff(pixels, means2d[row], conics[row])
        alpha = np.minimum(dtype(ALPHA_MAX), opacities[row] * np.exp(-np.maximum(sigma, 0)))
        hit = np.flatnonzero(live & (sigma >= 0) & (alpha >= dtype(ALPHA_MIN)))
        after = transmittance[hit] * (1 - alpha[hit])
        live[hit[after <= dtype(TRANSMITTANCE_MIN)]] = False
        hit = hit[after > dtype(TRANSMITTANCE_MIN)]
        if not len(hit):
            continue
        weight = transmittance[hit] * alpha[hit]
        contributions.append(Contribution(int(row), hit, alpha[hit], transmittance[hit]))
        color[hit] += weight[:, None] * colors[row]
        depth[hit] += weight * depths[row]
        transmittance[hit] *= 1 - alpha[hit]
        n_contrib[hit] += 1
    shape = (height, width)
    return Composite(x0, y0, color.reshape(*shape, 3), 1 - transmittance.reshape(shape), depth.reshape(shape),
                     n_contrib.reshape(shape), contributions)


def composite_vjp(picture: Composite, means2d: np.ndarray, conics: np.ndarray, depths: np.ndarray,
                  colors: np.ndarray, opacities: np.ndarray, v_color: np.ndarray, v_alpha: np.ndarray,
                  v_depth: np.ndarray) -> dict[str, np.ndarray]:
    """Return dL/d(each splat array), and ``absgrad`` (M, 2), the sum over pixels of the absolute dL/d(means2d).

    ``v_color`` is (h, w, 3), ``v_alpha`` and ``v_depth`` are (h, w). No gradient passes an alpha held at 0.99.
    """
    (height, width), dtype = picture.alpha.shape, means2d.dtype.type
    pixels = _pixel_centres(picture.x0, picture.y0, width, height, dtype)
    v_color, v_alpha, v_depth = v_color.reshape(-1, 3), v_alpha.ravel(), v_depth.ravel()
    v = {"means2d": np.zeros_like(means2d), "conics": np.zeros_like(conics), "depths": np.zeros_like(depths),
         "colors": np.zeros_like(colors), "opacities": np.zeros_like(opacities), "absgrad": np.zeros_like(means2d)}
    # Loss per unit of weight behind the current splat: starts with the transmittance that is left over.
    behind = -v_alpha * (1 - picture.alpha.ravel())
    for c in reversed(picture.contributions):
        row, hit = c.row, c.pixels
        weight = c.transmittances * c.alphas
        gain = v_color[hit] @ colors[row] + v_depth[hit] * depths[row]
        v["colors"][row] = weight @ v_color[hit]
        v["depths"][row] = weight @ v_depth[hit]
        v_a = c.transmittances * gain - behind[hit] / (1 - c.alphas)
        behind[hit] += weight * gain
        d, sigma = _falloff(pixels[hit], means2d[row], conics[row])
        v_a = np.where(opacities[row] * np.exp(-sigma) < dtype(ALPHA_MAX), v_a, dtype(0))
        v["opacities"][row] = v_a @ np.exp(-sigma)
        v_sigma = -v_a * c.alphas
        v["conics"][row] = [v_sigma @ d[:, 0] ** 2 / 2, v_sigma @ (d[:, 0] * d[:, 1]), v_sigma @ d[:, 1] ** 2 / 2]
        slope = np.stack([conics[row, 0] * d[:, 0] + conics[row, 1] * d[:, 1],
                          conics[row, 1] * d[:, 0] + conics[row, 2] * d[:, 1]], axis=1)
        v["means2d"][row] = v_sigma @ slope
        v["absgrad"][row] = np.abs(v_sigma[:, None] * slope).sum(axis=0)
    return v
