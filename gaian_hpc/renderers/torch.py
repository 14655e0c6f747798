"""Methods written in PyTorch: autograd supplies both vector–Jacobian products (``pip install gaian_hpc[torch]``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ..arrays import ArrayTable, Attribute, Field, Patch, View
from .base import OutputGradients, Outputs

Tensors = dict[str, torch.Tensor]


class TorchRenderer(ABC):
    """Base of methods whose forward pass is PyTorch code; see :class:`gaian_hpc.renderers.base.PointRenderer`.

    A method gives ``name``, ``Options``, ``attributes``, ``splat_fields``, ``gradient_fields`` (fields of splats),
    :meth:`visible`, :meth:`splat_tensors`, :meth:`boxes` and :meth:`render_tensors`. Arrays become tensors without a
    copy (DLPack) on the cpu. Bits are the same from run to run as far as the method's torch code keeps them so.
    """

    name: str
    attributes: tuple[Attribute, ...]
    splat_fields: tuple[Field, ...]
    gradient_fields: tuple[Field, ...]

    def at_step(self, step: int) -> TorchRenderer:
        """Return the renderer to use at ``step``."""
        return self

    @abstractmethod
    def visible(self, view: View, points: Tensors) -> torch.Tensor:
        """Return (N,) bool: the points that ``view`` reads."""

    @abstractmethod
    def splat_tensors(self, view: View, points: Tensors) -> Tensors:
        """Return ``splat_fields`` of the given points, (M, …), each independently of all others."""

    @abstractmethod
    def boxes(self, view: View, splats: Tensors) -> torch.Tensor:
        """Return (M, 4) x0, y0, x1, y1 in pixels outside of which a splat adds nothing."""

    @abstractmethod
    def render_tensors(self, patch: Patch, splats: Tensors) -> tuple[torch.Tensor, torch.Tensor, Tensors]:
        """Return colour (3, h, w) before the background, alpha (h, w) and further maps of ``splats`` over ``patch``."""

    def cull(self, view: View, points: ArrayTable) -> np.ndarray:
        """Return the ascending int64 rows of the points that ``view`` reads."""
        with torch.no_grad():
            return np.flatnonzero(self.visible(view, _tensors(points)).numpy()).astype(np.int64)

    def splat(self, view: View, points: ArrayTable, ids: np.ndarray) -> ArrayTable:
        """Project rows ``ids``."""
        with torch.no_grad():
            return _arrays(self.splat_tensors(view, _tensors(points.take(ids))), len(ids))

    def splat_vjp(self, view: View, points: ArrayTable, ids: np.ndarray, splats: ArrayTable,
                  v_splats: ArrayTable) -> ArrayTable:
        """Return dL/d(activated attribute) for rows ``ids``, by autograd."""
        leaves = _leaves(points.take(ids))
        out = self.splat_tensors(view, leaves)
        names = [f.name for f in self.gradient_fields if out[f.name].requires_grad]
        return _arrays(_gradients([out[n] for n in names], [_tensor(v_splats[n]) for n in names], leaves), len(ids))

    def footprints(self, view: View, splats: ArrayTable) -> np.ndarray:
        """Return (M, 4) float32 boxes."""
        with torch.no_grad():
            return self.boxes(view, _tensors(splats)).numpy().astype(np.float32, copy=False)

    def render(self, patch: Patch, splats: ArrayTable) -> Outputs:
        """Composite ``splats`` over ``patch`` and keep the graph for the way back."""
        leaves = _leaves(splats)
        color, alpha, maps = self.render_tensors(patch, leaves)
        return Outputs(_array(color), _array(alpha), {name: _array(x) for name, x in maps.items()},
                       (leaves, color, alpha, maps))

    def render_vjp(self, patch: Patch, splats: ArrayTable, outputs: Outputs, v_outputs: OutputGradients) -> ArrayTable:
        """Return ``gradient_fields``, by autograd."""
        leaves, color, alpha, maps = outputs.saved
        pairs = [(color, v_outputs.color), (alpha, v_outputs.alpha)]
        pairs += [(maps[name], v) for name, v in (v_outputs.maps or {}).items()]
        pairs = [(x, _tensor(v)) for x, v in pairs if v is not None and x.requires_grad]
        wanted = {f.name: leaves[f.name] for f in self.gradient_fields}
        return _arrays(_gradients([x for x, _ in pairs], [v for _, v in pairs], wanted), splats.n_rows)


def _tensor(array: np.ndarray) -> torch.Tensor:
    """Return an array as a tensor, without a copy where DLPack allows it."""
    array = np.ascontiguousarray(array)
    return torch.from_dlpack(array if array.flags.writeable else array.copy())


def _array(tensor: torch.Tensor) -> np.ndarray:
    return np.from_dlpack(tensor.detach().contiguous())


def _tensors(table: Mapping[str, np.ndarray]) -> Tensors:
    return {name: _tensor(x) for name, x in table.items()}


def _leaves(table: Mapping[str, np.ndarray]) -> Tensors:
    return {name: _tensor(x).requires_grad_(x.dtype.kind == "f") for name, x in table.items()}


def _arrays(tensors: Tensors, n: int) -> ArrayTable:
    return ArrayTable({name: _array(x.to(torch.float32)) for name, x in tensors.items()}, n)


def _gradients(outputs: list[Any], v: list[torch.Tensor], inputs: Tensors) -> Tensors:
    """Return the gradient of Σ v · outputs with respect to each input, zero where it plays no part."""
    if not outputs:
        return {name: torch.zeros_like(x) for name, x in inputs.items()}
    found = torch.autograd.grad(outputs, list(inputs.values()), v, allow_unused=True)
    return {name: torch.zeros_like(x) if g is None else g for (name, x), g in zip(inputs.items(), found, strict=True)}
