"""The renderer API: what a method supplies so that the runtime can shard, exchange, train and store it.

A method is cull → splat → render and the two vector–Jacobian products (Gaian §"unified API"). Arrays are the backend's;
``points`` are *activated* values (the attribute table says how they follow from the stored ones), so that a
method contains its maths only.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from importlib.metadata import entry_points
from inspect import signature
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from ..arrays import ArrayTable, Attribute, Cloud, Field, Patch, View
from ..errors import BackendError, GaianError, SettingsError

if TYPE_CHECKING:
    from ..backends.cuda import Device

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

    color: np.ndarray | None
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


class RendererHooks(Protocol):
    """What a method may supply besides :class:`PointRenderer`; it is looked for by name.

    ``needs_time`` (bool): views must have times. ``centers(points) -> (N, 3)``: where points are, for methods without
    an attribute ``means``. ``n_split_draws``, ``split_scales``, ``sizes`` and ``split_offsets``: how large a point is
    that is no Gaussian of means, quats and scales, and how density control splits it. ``at_time(points, time)``: 3D
    Gaussians at a time, for export.

    ``loss_maps`` (tuple of :class:`~gaian_hpc.arrays.Field`): outputs (``alpha`` or maps) that a loss of the method's
    own reads; with it comes ``map_loss(patch, outputs, planes, origin, mask) -> (total, OutputGradients)``, the sum of
    that loss over a patch's pixels and the gradient, by the patch's outputs (``color`` zero or ``None``), of its sum
    over the whole view. ``planes`` (c, h, w) float32 are the fields one after another on the patch and a margin of
    up to 10 pixels around it that its neighbours rendered, ``origin`` the pixel (x, y) of the view where they begin,
    and ``mask`` (h, w) bool, or ``None``, tells which of them count. The runtime divides by the view's pixels.
    ``with_maps()``: the method with all its maps, for pictures of them.
    """


def loss_planes(renderer: PointRenderer) -> int:
    """Return how many planes of a patch the loss reads: the picture's three, and those of the method's own loss."""
    return 3 + sum(f.width for f in getattr(renderer, "loss_maps", ()))


def positions(renderer: PointRenderer, points: ArrayTable) -> np.ndarray:
    """Return where points are, (N, 3) float32: the method's ``centers``, or its attribute ``means``."""
    return renderer.centers(points) if hasattr(renderer, "centers") else points["means"]


def check_method(renderer: PointRenderer) -> None:
    """Check what can be checked of a method before anything runs.

    Raises
    ------
    SettingsError
        Names the method and the field.
    """
    def refuse(what: str) -> None:
        raise SettingsError(f"method {renderer.name!r}: {what}")

    for table in ("attributes", "splat_fields", "gradient_fields"):
        names = [entry.name for entry in getattr(renderer, table)]
        if not names:
            refuse(f"{table} is empty")
        for name in names:
            if names.count(name) > 1:
                refuse(f"{table} has {name!r} more than once")
    for a in renderer.attributes:
        if a.activation not in ("identity", "exp", "sigmoid"):
            refuse(f"attribute {a.name!r} has activation {a.activation!r}; known are identity, exp and sigmoid")
        if a.lr_scale is not None and len(a.lr_scale) != a.width:
            refuse(f"attribute {a.name!r} has {len(a.lr_scale)} values of lr_scale for {a.width} columns")
    means = next((a for a in renderer.attributes if a.name == "means"), None)
    if not hasattr(renderer, "centers") and (means is None or means.shape != (3,) or means.activation != "identity"):
        refuse("it must have an attribute 'means' of shape (3,), stored as it is, or a method centers(points)")


def initial_values(method: str, attribute: Attribute, cloud: Cloud) -> np.ndarray:
    """Return the stored values (N, *shape) float32 of start points.

    Raises
    ------
    SettingsError
        If they are of another shape or not finite; names the method and the attribute.
    """
    raw, n = np.asarray(attribute.init(cloud)), len(cloud.positions)
    if raw.shape != (n, *attribute.shape):
        raise SettingsError(f"method {method!r}: init of attribute {attribute.name!r} returns shape {raw.shape} where "
                            f"{(n, *attribute.shape)} is expected")
    if not np.isfinite(raw).all():
        raise SettingsError(f"method {method!r}: init of attribute {attribute.name!r} returns values that are not "
                            "finite")
    return np.ascontiguousarray(raw, np.float32)


def rows_in_view(renderer: PointRenderer, view: View, points: ArrayTable) -> np.ndarray:
    """Return what ``cull`` returns, checked.

    Raises
    ------
    GaianError
        If it is no ascending list of rows; names the method.
    """
    rows = renderer.cull(view, points)
    if not isinstance(rows, np.ndarray) or rows.ndim != 1 or rows.dtype != np.int64:
        raise GaianError(f"method {renderer.name!r}: cull returns {_kind(rows)} where an int64 array (M,) is expected")
    if len(rows) and not (rows[0] >= 0 and rows[-1] < points.n_rows and (rows[1:] > rows[:-1]).all()):
        raise GaianError(f"method {renderer.name!r}: cull returns rows that do not ascend within 0 … "
                         f"{points.n_rows - 1}")
    return rows


def make_splats(renderer: PointRenderer, view: View, points: ArrayTable, ids: np.ndarray) -> ArrayTable:
    """Return what ``splat`` returns, checked.

    Raises
    ------
    GaianError
        If a field is missing, of another shape or no float32; names the method and the field.
    """
    splats = renderer.splat(view, points, ids)
    for f in renderer.splat_fields:
        _expect(renderer, "splat", splats, f.name, (len(ids), *f.shape))
        if splats[f.name].dtype != np.float32:
            raise GaianError(f"method {renderer.name!r}: splat returns {f.name!r} as {splats[f.name].dtype} where "
                             "float32 is expected")
    return splats


def boxes_of(renderer: PointRenderer, view: View, splats: ArrayTable) -> np.ndarray:
    """Return what ``footprints`` returns, (M, 4) float32, checked.

    Raises
    ------
    GaianError
        If it is of another shape; names the method.
    """
    boxes = np.ascontiguousarray(renderer.footprints(view, splats), np.float32)
    if boxes.shape != (splats.n_rows, 4):
        raise GaianError(f"method {renderer.name!r}: footprints returns {_kind(boxes)} where shape "
                         f"{(splats.n_rows, 4)} is expected")
    return boxes


def splat_gradients(renderer: PointRenderer, patch: Patch, splats: ArrayTable, outputs: Outputs,
                    v_outputs: OutputGradients) -> ArrayTable:
    """Return what ``render_vjp`` returns, checked.

    Raises
    ------
    GaianError
        If a field is missing, of another shape, or not finite although pixels are, or if what ``render`` returned is
        of another shape, or not finite although splats are; names the method and the field.
    """
    pixels_stray = _strays(v_outputs.color)
    for name, found, shape in (("color", outputs.color, (3, patch.height, patch.width)),
                               ("alpha", outputs.alpha, (patch.height, patch.width))):
        if found.shape != shape:
            raise GaianError(f"method {renderer.name!r}: render returns {name!r} of shape {found.shape} where {shape} "
                             "is expected")
        if pixels_stray and _strays(found) and not any(_strays(x) for x in splats.values()):
            raise GaianError(f"method {renderer.name!r}: render returns values of {name!r} that are not finite")
    v = renderer.render_vjp(patch, splats, outputs, v_outputs)
    for f in renderer.gradient_fields:
        _expect(renderer, "render_vjp", v, f.name, (splats.n_rows, *f.shape))
        if _strays(v[f.name]) and not pixels_stray:
            raise GaianError(f"method {renderer.name!r}: render_vjp returns a gradient of {f.name!r} that is not "
                             "finite")
    return v


def point_gradients(renderer: PointRenderer, view: View, points: ArrayTable, ids: np.ndarray, splats: ArrayTable,
                    v_splats: ArrayTable) -> ArrayTable:
    """Return what ``splat_vjp`` returns, checked; arguments as there.

    Raises
    ------
    GaianError
        If the gradient of an attribute is missing, of another shape, or not finite although those of splats are;
        names the method and the attribute.
    """
    v = renderer.splat_vjp(view, points, ids, splats, v_splats)
    for a in renderer.attributes:
        whole = (len(ids), *a.shape)
        _expect(renderer, "splat_vjp", v, a.name, whole, fewer=bool(a.shape))
        if _strays(v[a.name]) and not any(_strays(x) for x in v_splats.values()):
            bad = np.flatnonzero(~np.isfinite(v[a.name].reshape(len(ids), -1)).all(axis=1))
            raise GaianError(f"method {renderer.name!r}: splat_vjp returns a gradient of {a.name!r} that is not "
                             f"finite, for row {int(ids[bad[0]])} in view {view.name or view.index!r}")
    return v


def _kind(x: Any) -> str:
    return f"{x.dtype} of shape {x.shape}" if isinstance(x, np.ndarray) else type(x).__name__


def _strays(x: np.ndarray) -> bool:
    """Tell whether any value is not finite. Their sum shows it, at a fraction of the cost of looking at each."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.add.reduce(x, axis=None)
    return not np.isfinite(total) and not np.isfinite(x).all()


def _expect(renderer: PointRenderer, where: str, v: ArrayTable, name: str, shape: tuple[int, ...],
            fewer: bool = False) -> None:
    """Raise unless ``v`` has ``name`` of ``shape``; with ``fewer``, the second dimension may be shorter."""
    if name not in v:
        raise GaianError(f"method {renderer.name!r}: {where} returns no {name!r}, only {', '.join(v)}")
    found = v[name].shape
    if found != shape and not (fewer and len(found) == len(shape) and found[0] == shape[0] and found[1] <= shape[1]
                               and found[2:] == shape[2:]):
        raise GaianError(f"method {renderer.name!r}: {where} returns {name!r} of shape {found} where {shape} is "
                         "expected")


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


def build_renderer(method: str, options: Any, backend: str, *, absgrad: bool = False,
                   device: Device | None = None) -> PointRenderer:
    """Return method ``method`` on a backend; ``absgrad`` asks ``render_vjp`` for absolute pixel gradients.

    ``device`` is the GPU to use on backend ``cuda``, by default the first.

    Raises
    ------
    BackendError
        If the backend cannot run here.
    """
    cls = renderer_class(method)
    if backend == "cuda" and not hasattr(cls, "on_device"):
        raise BackendError(f"method {method} has no kernels for backend cuda; use --backend cpu")
    build = cls.on_device if backend == "cuda" else cls
    if absgrad and "absgrad" not in signature(build).parameters:
        raise SettingsError(f"method {method!r} has no absolute gradients; set densify.absgrad to false")
    place: Any = "cpu"
    if backend == "cuda":
        from ..backends import cuda

        place = device or cuda.open_device()
    return build(options, place, absgrad=True) if absgrad else build(options, place)
