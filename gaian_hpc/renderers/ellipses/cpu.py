"""Kernels of splats that are 2D Gaussians on the screen: the scalar functions of the compositor, and its table.

A splat is a mean, a conic and an opacity; whatever it was in the world has no part in this.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from numba.extending import register_jitable

from ..compositing.lanes import exp_nonpositive, fma

N_GEOMETRY = 12  # mean (2), conic (3), opacity, and six numbers of the ellipse alpha = 1/255

_ZERO = np.float32(0.0)
_HALF = np.float32(0.5)
_SLACK = np.float32(0.01)  # pixels; covers rounding, the cut at 1/255 decides per pixel


@register_jitable(error_model="numpy")
def load(table, s):
    """Read a splat: mean x, y, conic a, b, c, opacity, and the ellipse that :func:`span` needs."""
    return (table[s, 0], table[s, 1], table[s, 2], table[s, 3], table[s, 4], table[s, 5],
            table[s, 6], table[s, 7], table[s, 8], table[s, 9], table[s, 10], table[s, 11])


@register_jitable(error_model="numpy")
def span(p, x0, x1):
    """Return the lowest and highest y of the ellipse σ ≤ limit over [x0, x1]; an empty interval where they don't meet.

    At horizontal distance e from the mean, y − mean = (−b e ± √(2·limit·c − det e²))/c. The upper branch is concave
    with its top at e_top, the lower one mirrors it: each is extreme at the point of the interval nearest to that.
    """
    left, right = x0 - p[0], x1 - p[0]
    reach = p[9]
    if left > reach or right < -reach:
        return _ZERO, -_HALF
    left, right = max(left, -reach), min(right, reach)
    e = min(max(p[8], left), right)
    high = np.sqrt(max(p[7] - p[6] * e * e, _ZERO)) * p[10] - p[11] * e
    e = min(max(-p[8], left), right)
    low = np.sqrt(max(p[7] - p[6] * e * e, _ZERO)) * p[10] + p[11] * e
    return p[1] - low - _SLACK, p[1] + high + _SLACK


@register_jitable(error_model="numpy")
def alpha(p, px, py):
    """Return opacity · exp(−σ), σ = ½(a dx² + c dy²) + b dx dy; zero where rounding makes σ negative."""
    dx = p[0] - px
    dy = p[1] - py
    power = fma(fma(-_HALF * p[2], dx, -p[3] * dy), dx, -_HALF * p[4] * dy * dy)
    a = p[5] * exp_nonpositive(power)
    return a if power <= _ZERO else _ZERO


@register_jitable(error_model="numpy")
def moments(p, px, py, g):
    """Return g times 1, dx, dy, dx², dx·dy, dy²: their sums give the gradient of every parameter of a splat."""
    dx = p[0] - px
    dy = p[1] - py
    gx = g * dx
    gy = g * dy
    return g, gx, gy, gx * dx, gx * dy, gy * dy


@register_jitable(error_model="numpy")
def moments_absgrad(p, px, py, g):
    """As :func:`moments`, then the absolute pixel gradients of the mean (AbsGS, Ye et al. 2024)."""
    dx = p[0] - px
    dy = p[1] - py
    gx = g * dx
    gy = g * dy
    return (g, gx, gy, gx * dx, gx * dy, gy * dy, abs(p[2] * gx + p[3] * gy), abs(p[3] * gx + p[4] * gy))


@njit(parallel=True, error_model="numpy", nogil=True, cache=True)
def pack(means2d, conics, depths, colors, opacities, table):
    """Lay splats out for the compositor: 12 columns of geometry, the colour and the depth.

    The determinant of the rounded conic is exact in float64; where it is not positive, the ellipse is unbounded.
    """
    for s in prange(len(depths)):
        a, b, c = np.float64(conics[s, 0]), np.float64(conics[s, 1]), np.float64(conics[s, 2])
        table[s, 0], table[s, 1] = means2d[s, 0], means2d[s, 1]
        table[s, 2], table[s, 3], table[s, 4] = a, b, c
        table[s, 5] = opacities[s]
        det = max(a * c - b * b, 1e-12 * a * c)
        double_limit = 2.0 * np.log(255.0 * np.float64(opacities[s])) * 1.001 + 1e-3
        table[s, 6] = det
        table[s, 7] = double_limit * c
        table[s, 8] = -b * np.sqrt(double_limit / (a * det))
        table[s, 9] = np.sqrt(double_limit * c / det) + _SLACK if double_limit > 0.0 else -1.0
        table[s, 10] = 1.0 / c
        table[s, 11] = b / c
        for k in range(3):
            table[s, N_GEOMETRY + k] = colors[s, k]
        table[s, N_GEOMETRY + 3] = depths[s]


@njit(parallel=True, error_model="numpy", nogil=True, cache=True)
def finish(table, sums, n_moments, v_means2d, v_conics, v_opacities, v_colors, v_depths, absgrad):
    """Turn summed moments (M, ·) into gradients of the splat fields; dα/dσ = −α."""
    for s in prange(len(sums)):
        a, b, c = table[s, 2], table[s, 3], table[s, 4]
        gx, gy = sums[s, 1], sums[s, 2]
        v_means2d[s, 0], v_means2d[s, 1] = -(a * gx + b * gy), -(b * gx + c * gy)
        v_conics[s, 0], v_conics[s, 1], v_conics[s, 2] = -_HALF * sums[s, 3], -sums[s, 4], -_HALF * sums[s, 5]
        v_opacities[s] = sums[s, 0] / table[s, 5] if table[s, 5] > _ZERO else _ZERO
        for k in range(3):
            v_colors[s, k] = sums[s, n_moments + k]
        v_depths[s] = sums[s, n_moments + 3] if sums.shape[1] > n_moments + 3 else _ZERO
        if n_moments == 8:
            absgrad[s, 0], absgrad[s, 1] = sums[s, 6], sums[s, 7]
