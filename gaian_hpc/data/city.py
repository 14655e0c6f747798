"""A small procedural city as Gaussians: streets, blocks of buildings, parks and trees, under one sun.

Metres, z up, the origin at street level in the middle of the city.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

N_BLOCKS = 3
BLOCK = 44.0
STREET = 14.0
PITCH = BLOCK + STREET
HALF = (N_BLOCKS * PITCH + STREET) / 2
OUTSKIRTS = 330.0
LOT = BLOCK / 2
STOREY = 3.4
SUN = np.array([0.45, 0.3, 0.84]) / np.linalg.norm([0.45, 0.3, 0.84])
WALLS = np.array([[0.72, 0.66, 0.58], [0.62, 0.36, 0.28], [0.78, 0.76, 0.72], [0.45, 0.50, 0.56], [0.80, 0.68, 0.48]])
ROOFS = np.array([[0.42, 0.40, 0.40], [0.55, 0.30, 0.24], [0.60, 0.60, 0.58], [0.30, 0.34, 0.36]])


@dataclass(frozen=True, slots=True)
class Surfels:
    """Gaussians along the axes of the world.

    Attributes
    ----------
    positions : (N, 3) float64, metres
    normals : (N, 3) float64
    colors : (N, 3) float64 in [0, 1]
    scales : (N, 3) float64, metres
    """

    positions: np.ndarray
    normals: np.ndarray
    colors: np.ndarray
    scales: np.ndarray

    def select(self, rows: np.ndarray) -> Surfels:
        """Return the given rows (indices or a mask)."""
        return Surfels(self.positions[rows], self.normals[rows], self.colors[rows], self.scales[rows])


@dataclass(frozen=True, slots=True)
class Buildings:
    """Boxes on the ground.

    Attributes
    ----------
    low, high : (B, 3) float64, metres
    walls, roofs : (B, 3) float64
        Colours.
    """

    low: np.ndarray
    high: np.ndarray
    walls: np.ndarray
    roofs: np.ndarray


def build_city(seed: int = 0, spacing: float = 1.0) -> Surfels:
    """Return the lit Gaussians of a city.

    Parameters
    ----------
    seed : int
        Which city.
    spacing : float
        Distance between neighbouring Gaussians of one surface, metres.
    """
    rng = np.random.Generator(np.random.Philox(key=seed))
    parks = rng.permutation(N_BLOCKS**2) < 2
    buildings = _buildings(rng, parks)
    parts = [_ground(rng, parks, spacing), _outskirts(rng, 5 * spacing)]
    for i in range(len(buildings.low)):
        parts += _building(rng, buildings, i, 0.9 * spacing)
    parts.append(_trees(rng, parks))
    return _lit(_join(parts), buildings)


def in_shadow(positions: np.ndarray, buildings: Buildings) -> np.ndarray:
    """Tell which positions a building hides from the sun (slab test of the ray towards it), (N,) bool."""
    hidden = np.zeros(len(positions), bool)
    for low, high in zip(buildings.low, buildings.high, strict=True):
        a, b = (low - positions) / SUN, (high - positions) / SUN
        enter, leave = np.minimum(a, b).max(axis=1), np.maximum(a, b).min(axis=1)
        hidden |= (leave > np.maximum(enter, 0.0) + 1e-3)
    return hidden


def _buildings(rng: np.random.Generator, parks: np.ndarray) -> Buildings:
    """Place up to four buildings on every block that isn't a park."""
    low, high = [], []
    for block in np.flatnonzero(~parks):
        corner = np.array(divmod(block, N_BLOCKS)) * PITCH + STREET - HALF
        for lot in range(4):
            base = corner + np.array(divmod(lot, 2)) * LOT
            height = STOREY * rng.integers(2, 11)
            low.append([*(base + rng.uniform(2.5, 4.5, 2)), 0.0])
            high.append([*(base + LOT - rng.uniform(2.5, 4.5, 2)), height])
    n = len(low)
    shade = rng.uniform(0.85, 1.1, (n, 1))
    return Buildings(np.array(low), np.array(high), WALLS[rng.integers(0, len(WALLS), n)] * shade,
                     ROOFS[rng.integers(0, len(ROOFS), n)])


def _ground(rng: np.random.Generator, parks: np.ndarray, spacing: float) -> Surfels:
    xy = _grid((-HALF, -HALF), (HALF, HALF), spacing)
    offset, block = np.modf((xy + HALF) / PITCH)
    offset = offset * PITCH - STREET  # below 0: on the street before the block
    street = (offset < 0).any(axis=1)
    number = np.minimum(block, N_BLOCKS - 1).astype(int) @ [N_BLOCKS, 1]
    edge = np.minimum(offset, BLOCK - offset).min(axis=1)
    color = np.where(parks[number][:, None], [0.30, 0.46, 0.20], [0.58, 0.55, 0.50])
    color[edge < 2.5] = [0.66, 0.64, 0.62]
    color[street] = [0.27, 0.27, 0.29]
    middle = np.abs(offset + STREET / 2) < 0.6 * spacing
    dash = np.mod(xy, 6.0) < 3.0
    lane = street & ((middle[:, 0] & dash[:, 1]) ^ (middle[:, 1] & dash[:, 0]))
    color[lane] = [0.88, 0.86, 0.78]
    color *= 1 + 0.12 * _noise(rng, xy, 0.5)[:, None] + 0.05 * rng.standard_normal((len(xy), 1))
    return _flat(xy, 0.0, color, spacing)


def _outskirts(rng: np.random.Generator, spacing: float) -> Surfels:
    """Fields around the city, so that no view looks past the ground."""
    xy = _grid((-OUTSKIRTS, -OUTSKIRTS), (OUTSKIRTS, OUTSKIRTS), spacing)
    xy = xy[np.abs(xy).max(axis=1) > HALF + 0.5 * spacing]
    field = np.floor(xy / 60.0) @ [7.0, 13.0]
    tone = np.mod(np.sin(field) * 43.7, 1.0)[:, None]
    color = (1 - tone) * [0.36, 0.44, 0.22] + tone * [0.56, 0.50, 0.32]
    return _flat(xy, -0.05, color * (1 + 0.15 * _noise(rng, xy, 0.15)[:, None]), spacing)


def _building(rng: np.random.Generator, buildings: Buildings, i: int, spacing: float) -> list[Surfels]:
    low, high = buildings.low[i], buildings.high[i]
    lit = rng.random(4096)
    sides = []
    for axis in (0, 1):
        along = 1 - axis
        uz = _grid((low[along], 0.0), (high[along], high[2]), spacing)
        window = (np.mod(uz[:, 0] - low[along], 3.2) > 1.1) & (np.mod(uz[:, 1], STOREY) > 1.3)
        index = (uz // [3.2, STOREY]).astype(int) @ [61, 1]
        for level, sign in ((low[axis], -1.0), (high[axis], 1.0)):
            color = np.tile(buildings.walls[i], (len(uz), 1))
            glow = lit[(index * 2 + int(sign)) % len(lit)] > 0.85
            color[window] = [0.16, 0.22, 0.30]
            color[window & glow] = [0.85, 0.76, 0.50]
            color *= 1 + 0.04 * rng.standard_normal((len(uz), 1))
            position, normal = np.empty((len(uz), 3)), np.zeros((len(uz), 3))
            position[:, axis], position[:, along], position[:, 2] = level, uz[:, 0], uz[:, 1]
            normal[:, axis] = sign
            sides.append(_surface(position, normal, color, spacing))
    xy = _grid(low[:2], high[:2], spacing)
    rim = np.minimum(xy - low[:2], high[:2] - xy).min(axis=1) < 1.0
    vent = (np.abs(xy - rng.uniform(low[:2] + 3, high[:2] - 3)) < 1.8).all(axis=1)
    color = buildings.roofs[i] * (1 + 0.15 * _noise(rng, xy, 1.5)[:, None] + 0.04 * rng.standard_normal((len(xy), 1)))
    color[rim] = buildings.walls[i] * 1.05
    color[vent] = [0.82, 0.83, 0.85]
    return [*sides, _flat(xy, high[2], color, spacing)]


def _trees(rng: np.random.Generator, parks: np.ndarray, leaves: int = 60) -> Surfels:
    """Trees along the pavements and all over the parks, each a ball of leaves."""
    roots = []
    for block in range(N_BLOCKS**2):
        corner = np.array(divmod(block, N_BLOCKS)) * PITCH + STREET - HALF
        side = np.arange(5.5, BLOCK, 11.0)
        ring = [(1.2, s) for s in side] + [(BLOCK - 1.2, s) for s in side]
        roots += [corner + p for p in (rng.uniform(3, BLOCK - 3, (26, 2)) if parks[block] else ring)]
    roots = np.repeat(np.array(roots), leaves, axis=0)
    size = np.repeat(rng.uniform(1.3, 2.6, len(roots) // leaves), leaves)[:, None]
    way = rng.standard_normal((len(roots), 3))
    way /= np.linalg.norm(way, axis=1, keepdims=True)
    position = np.column_stack([roots, 1.9 * size[:, 0]]) + way * size * rng.random((len(roots), 1)) ** (1 / 3)
    color = np.array([0.20, 0.38, 0.14]) * (0.8 + 0.4 * rng.random((len(roots), 1)))
    return Surfels(position, way, color, np.repeat(0.30 * size, 3, axis=1))


def _lit(city: Surfels, buildings: Buildings) -> Surfels:
    """Shade by the sun's angle, the buildings' shadows and the narrowness near the ground."""
    sun = np.clip(city.normals @ SUN, 0.0, None) * ~in_shadow(city.positions + 0.1 * city.normals, buildings)
    sky = 0.42 + 0.10 * city.normals[:, 2] + 0.08 * np.clip(city.positions[:, 2] / 20.0, 0.0, 1.0)
    light = sky[:, None] * [0.92, 0.97, 1.08]
    colors = city.colors * (light + 0.62 * sun[:, None] * [1.06, 1.0, 0.90])
    return Surfels(city.positions, city.normals, np.clip(colors, 0.01, 0.99), city.scales)


def _grid(low: np.ndarray, high: np.ndarray, spacing: float) -> np.ndarray:
    """Return points (N, 2) at the centres of cells of about ``spacing`` that tile a rectangle."""
    axes = []
    for a, b in zip(low, high, strict=True):
        n = max(round((b - a) / spacing), 1)
        axes.append(a + (np.arange(n) + 0.5) * (b - a) / n)
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)


def _noise(rng: np.random.Generator, xy: np.ndarray, frequency: float) -> np.ndarray:
    """Return smooth noise of about unit range: a few waves in random directions, (N,)."""
    angle, phase = rng.uniform(0, 2 * np.pi, (2, 8))
    scale = frequency * 2.0 ** np.linspace(-1, 1, 8)
    waves = np.sin(xy @ (scale * np.array([np.cos(angle), np.sin(angle)])) + phase)
    return waves.sum(axis=1) / 2.5


def _flat(xy: np.ndarray, z: float, colors: np.ndarray, spacing: float) -> Surfels:
    position = np.column_stack([xy, np.full(len(xy), z)])
    return _surface(position, np.tile([0.0, 0.0, 1.0], (len(xy), 1)), colors, spacing)


def _surface(positions: np.ndarray, normals: np.ndarray, colors: np.ndarray, spacing: float) -> Surfels:
    """Return discs that overlap enough to close a surface sampled at ``spacing``."""
    return Surfels(positions, normals, colors, np.where(np.abs(normals) > 0.5, 0.04, 0.6 * spacing))


def _join(parts: list[Surfels]) -> Surfels:
    return Surfels(*(np.concatenate([getattr(p, name) for p in parts]) for name in Surfels.__slots__))
