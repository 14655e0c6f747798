"""The access profile of a scene: which image patches read which cells of points (Gaian, "access profiling")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit

from ..arrays import ArrayTable, Patch, View
from ..data.patches import make_patches
from ..errors import PlacementError
from ..renderers.base import PointRenderer, boxes_of, make_splats, positions, rows_in_view


@dataclass(frozen=True, slots=True)
class Profile:
    """Cells × patches → points read, by rows of patches (compressed sparse rows).

    Attributes
    ----------
    cell_sizes : (G,) int64
        Points of each cell.
    cell_centers : (G, 3) float32, world units
    indptr : (P + 1,) int64
    cells : (E,) int32
        Cells that a patch reads.
    counts : (E,) int64
        Points of the cell that it reads.
    patch_view : (P,) int32, ascending
        View of each patch.
    pixels : (P,) int64
        Pixels of each patch; zero where they are not known.
    """

    cell_sizes: np.ndarray
    cell_centers: np.ndarray
    indptr: np.ndarray
    cells: np.ndarray
    counts: np.ndarray
    patch_view: np.ndarray
    pixels: np.ndarray

    @property
    def n_cells(self) -> int:
        return len(self.cell_sizes)

    @property
    def n_patches(self) -> int:
        return len(self.patch_view)

    @property
    def n_views(self) -> int:
        return int(self.patch_view[-1]) + 1 if len(self.patch_view) else 0

    def patch_of_entry(self) -> np.ndarray:
        """Return the patch of each entry, (E,) int64."""
        return np.repeat(np.arange(self.n_patches), np.diff(self.indptr))

    def render_work(self, pixel_work: float = 0.0) -> np.ndarray:
        """Return the work of rendering each patch, (P,) float64, in splats; a known pixel counts ``pixel_work``."""
        splats = np.bincount(self.patch_of_entry(), weights=self.counts, minlength=self.n_patches)
        return splats + pixel_work * self.pixels

    def read_work(self) -> np.ndarray:
        """Return how many splats of each cell are read over all patches, (G,) float64."""
        return np.bincount(self.cells, weights=self.counts, minlength=self.n_cells)

    def owned(self, owners: np.ndarray, size: int) -> np.ndarray:
        """Return the splats of each rank that each patch reads, (size, P) int64, for cells owned by ``owners`` (G,)."""
        key = owners[self.cells].astype(np.int64) * self.n_patches + self.patch_of_entry()
        return np.bincount(key, weights=self.counts, minlength=self.n_patches * size).astype(np.int64).reshape(size, -1)

    def rows(self, patches: np.ndarray) -> Profile:
        """Return the profile of the patches of these numbers, in their order."""
        n = np.diff(self.indptr)[patches]
        indptr = np.concatenate([[0], np.cumsum(n)])
        entries = np.repeat(self.indptr[patches] - indptr[:-1], n) + np.arange(indptr[-1])
        return Profile(self.cell_sizes, self.cell_centers, indptr, self.cells[entries], self.counts[entries],
                       self.patch_view[patches], self.pixels[patches])

    def coarser(self, side: int, factor: int) -> Profile:
        """Return the profile over patches of ``factor`` × ``factor`` of a ``side`` × ``side`` grid per view.

        Raises
        ------
        PlacementError
            If views do not have such a grid, or ``factor`` does not divide it.
        """
        if self.n_patches != self.n_views * side * side or side % factor:
            raise PlacementError(f"patches of {side} x {side} a view cannot be joined by {factor} x {factor}")
        number = np.arange(self.n_patches) % (side * side)
        row, column, new_side = number // side // factor, number % side // factor, side // factor
        joined = self.patch_view.astype(np.int64) * new_side**2 + row * new_side + column
        return self._regrouped(joined, self.n_views * new_side**2)

    def whole_views(self) -> Profile:
        """Return the profile over whole views; a point that several patches read counts in each."""
        return self._regrouped(self.patch_view.astype(np.int64), self.n_views)

    def _regrouped(self, group: np.ndarray, n_groups: int) -> Profile:
        keys, inverse = np.unique(group[self.patch_of_entry()] * self.n_cells + self.cells, return_inverse=True)
        counts = np.bincount(inverse, weights=self.counts).astype(np.int64)
        view = np.zeros(n_groups, np.int32)
        view[group] = self.patch_view
        pixels = np.bincount(group, weights=self.pixels, minlength=n_groups).astype(np.int64)
        return Profile(self.cell_sizes, self.cell_centers, row_starts(keys // self.n_cells, n_groups),
                       (keys % self.n_cells).astype(np.int32), counts, view, pixels)


def row_starts(rows: np.ndarray, n_rows: int) -> np.ndarray:
    """Return where each row begins in ascending ``rows``, and their end, (n_rows + 1,) int64."""
    return np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n_rows))]).astype(np.int64)


def count_access(renderer: PointRenderer, points: ArrayTable, cell_idx: np.ndarray, n_cells: int,
                 views: Sequence[View], patch_size: int, every: int = 1) -> Profile:
    """Return which patches of ``views`` read which cells, by projecting the points.

    Parameters
    ----------
    renderer : PointRenderer
    points : ArrayTable of (N, ...)
        Activated values.
    cell_idx : (N,) int32
        Cell of each point.
    n_cells : int
    views : sequence of View
    patch_size : int, pixels
    every : int
        Follow every k-th point and count it k times.

    Returns
    -------
    Profile
        ``patch_view`` counts positions in ``views``. A splat counts in every patch that its footprint reaches.
    """
    return count_patches(renderer, points, cell_idx, n_cells, [make_patches(view, patch_size) for view in views], every)


def count_patches(renderer: PointRenderer, points: ArrayTable, cell_idx: np.ndarray, n_cells: int,
                  patches: Sequence[Sequence[Patch]], every: int = 1) -> Profile:
    """Return which patches read which cells; as :func:`count_access`, for one sequence of patches a view."""
    chosen = np.arange(every // 2, len(cell_idx), every)
    sample, cells = points.take(chosen), cell_idx[chosen].astype(np.int64)
    keys, counts, n_before = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0
    for parts in patches:
        view = parts[0].view
        rows = rows_in_view(renderer, view, sample)
        boxes = boxes_of(renderer, view, make_splats(renderer, view, sample, rows))
        corners = np.array([[p.x0, p.y0, p.x1, p.y1] for p in parts], np.float32)
        key, n = np.unique(_reached(boxes, corners, cells[rows], n_cells), return_counts=True)
        keys.append(key + n_before * n_cells)
        counts.append(n * every)
        n_before += len(parts)
    key = np.concatenate(keys)
    return Profile(np.bincount(cell_idx, minlength=n_cells), centers(positions(renderer, points), cell_idx, n_cells),
                   row_starts(key // n_cells, n_before), (key % n_cells).astype(np.int32), np.concatenate(counts),
                   np.repeat(np.arange(len(patches), dtype=np.int32), [len(parts) for parts in patches]),
                   np.array([p.width * p.height for parts in patches for p in parts], np.int64))


@njit(cache=True, nogil=True, error_model="numpy")
def _reached(boxes, corners, cells, n_cells):
    """Return patch × n_cells + cell for every patch (rows of corners) that each box reaches."""
    n = 0
    for fill in range(2):
        out = np.empty(n, np.int64)
        n = 0
        for i in range(len(boxes)):
            for p in range(len(corners)):
                if (boxes[i, 0] <= corners[p, 2] and boxes[i, 2] >= corners[p, 0] and boxes[i, 1] <= corners[p, 3]
                        and boxes[i, 3] >= corners[p, 1]):
                    if fill:
                        out[n] = p * n_cells + cells[i]
                    n += 1
    return out


def centers(means: np.ndarray, cell_idx: np.ndarray, n_cells: int) -> np.ndarray:
    """Return the mean position of each cell's points, (G, 3) float32; zero where it has none."""
    n = np.maximum(np.bincount(cell_idx, minlength=n_cells), 1)
    sums = [np.bincount(cell_idx, weights=means[:, i].astype(np.float64), minlength=n_cells) for i in range(3)]
    return (np.stack(sums, axis=1) / n[:, None]).astype(np.float32)


def merge(profiles: Sequence[Profile]) -> Profile:
    """Return the profile of all points together from those of disjoint parts, over the same cells and patches."""
    first = profiles[0]
    if len(profiles) == 1:
        return first
    n_cells, n_patches = first.n_cells, first.n_patches
    key = np.concatenate([p.patch_of_entry() * n_cells + p.cells for p in profiles])
    keys, inverse = np.unique(key, return_inverse=True)
    counts = np.bincount(inverse, weights=np.concatenate([p.counts for p in profiles])).astype(np.int64)
    sizes = np.stack([p.cell_sizes for p in profiles])
    middle = sum(p.cell_centers * p.cell_sizes[:, None] for p in profiles) / np.maximum(sizes.sum(axis=0), 1)[:, None]
    return Profile(sizes.sum(axis=0), middle.astype(np.float32), row_starts(keys // n_cells, n_patches),
                   (keys % n_cells).astype(np.int32), counts, first.patch_view, first.pixels)
