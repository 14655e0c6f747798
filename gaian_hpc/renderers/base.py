"""The renderer API: what a method supplies so that the runtime can shard, exchange, train and store it.

A method is cull → splat → render and the two vector–Jacobian products (Gaian §"unified API"). Arrays are the backend's;
``points`` are *activated* values (the attribute table says how they follow from the stored ones), so that a
method contains its maths only.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..arrays import ArrayTable, Attribute, Field, Patch, View
from ..errors import BackendError, SettingsError

ENTRY_POINT_GROUP = "gaian_hpc.renderers"


@dataclass(slots=True)
class Outputs:
    """What a patch renders to, before the background.

    Attributes
    ----------
    color : (3, h, w) float32
        Sum of weight × colour, front to back.
    alpha : (h, w) float32
        One minus the final transmittance.
    maps : dict of str to array
        Further maps of the method (``depth`` …), (h, w) or (c, h, w).
    saved : object
        Whatever the method's ``render_vjp`` needs.
    """

    color: np.ndarray
    alpha: np.ndarray
    maps: dict[str, np.ndarray]
    saved: Any = None


@dataclass(slots=True)
class OutputGradients:
    """Gradients of a scalar with respect to :class:`Outputs`; ``None`` means zero."""

    color: np.ndarray
    alpha: np.ndarray | None = None
    maps: dict[str, np.ndarray] | None = None


@runtime_checkable
class PointRenderer(Protocol):
    """A point-based differentiable renderer.

    ``attributes`` are the trainable arrays of a point, ``splat_fields`` what a splat carries and ``gradient_fields``
    what ``render_vjp`` returns of it; both cross ranks. Row order is the caller's: splats of a patch arrive sorted by
    global point id.
    """

    name: str
    attributes: tuple[Attribute, ...]
    splat_fields: tuple[Field, ...]
    gradient_fields: tuple[Field, ...]

    def at_step(self, step: int) -> PointRenderer:
        """Return the renderer to use at ``step`` (progressive detail such as the SH degree)."""

    def cull(self, view: View, points: ArrayTable) -> np.ndarray:
        """Return the ascending int64 local rows of the points that ``view`` reads."""

    def splat(self, view: View, points: ArrayTable, ids: np.ndarray) -> ArrayTable:
        """Project rows ``ids``, each independently of all others; returns one splat per row of ``ids``."""

    def splat_vjp(self, view: View, points: ArrayTable, ids: np.ndarray, splats: ArrayTable,
                  v_splats: ArrayTable) -> ArrayTable:
        """Return dL/d(activated attribute) for rows ``ids``; trailing columns left out are zero."""

    def footprints(self, view: View, splats: ArrayTable) -> np.ndarray:
        """Return (M, 4) float32 boxes x0, y0, x1, y1 in pixels outside of which a splat adds nothing."""

    def render(self, patch: Patch, splats: ArrayTable) -> Outputs:
        """Composite ``splats`` (sorted by point id) over ``patch``."""

    def render_vjp(self, patch: Patch, splats: ArrayTable, outputs: Outputs, v_outputs: OutputGradients) -> ArrayTable:
        """Return ``gradient_fields``: dL/d(splat field) per splat, plus fields for density statistics."""


def available_renderers() -> tuple[str, ...]:
    """Return the names of all installed methods, sorted."""
    return tuple(sorted({e.name for e in entry_points(group=ENTRY_POINT_GROUP)}))


def renderer_class(name: str) -> type:
    """Return the class of method ``name``; it has ``Options`` (a dataclass) and is built as ``cls(options, backend)``.

    Raises
    ------
    SettingsError
        If no installed package provides the method; near names are suggested.
    """
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        if entry.name == name:
            return entry.load()
    known = available_renderers()
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise SettingsError(f"method {name!r} is unknown; {hint}installed methods: {', '.join(known) or 'none'}")


def build_renderer(method: str, options: Any, backend: str, *, absgrad: bool = False) -> PointRenderer:
    """Return method ``method`` on a backend; ``absgrad`` asks ``render_vjp`` for absolute pixel gradients.

    Raises
    ------
    BackendError
        If the backend cannot run here.
    """
    cls = renderer_class(method)
    if backend == "cuda":
        from ..backends import cuda

        if not hasattr(cls, "on_device"):
            raise BackendError(f"method {method} has no kernels for backend cuda; use --backend cpu")
        return cls.on_device(options, cuda.open_device(), absgrad=absgrad)
    return cls(options, "cpu", absgrad=True) if absgrad else cls(options, "cpu")
