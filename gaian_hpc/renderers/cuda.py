"""What renderers with their kernels on a GPU have in common, whatever the method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..arrays import ArrayTable, View
from ..backends.cuda import Device
from .projection import pack_camera


class OnDevice:
    """Mixin of renderers that have an active ``degree``: tables come from, and go back to, host or device.

    A result lies where its points or splats do.

    Attributes
    ----------
    device : Device
    source : str
        Kernel file with ``visible``, ``project<degree>`` and ``project_vjp<degree>``.
    camera_type : type
        Float type of the cameras that these take.
    splat_source : str
        Kernel file with ``footprints``.
    footprint_fields : tuple of str
        Splat fields that this takes.
    """

    device: Device
    degree: int
    source: str
    camera_type: type = np.float32
    splat_source: str
    footprint_fields: tuple[str, ...]

    def footprints(self, view: View, splats: ArrayTable) -> Any:
        """Return (M, 4) float32 boxes x0, y0, x1, y1 in pixels that hold every alpha ≥ 1/255."""
        fields = [splats[name] for name in self.footprint_fields]
        if type(fields[0]) is np.ndarray:
            return super().footprints(view, splats)
        boxes = self.device.empty((splats.n_rows, 4))
        self.device.kernels(self.splat_source).over("footprints", splats.n_rows, *fields, boxes)
        return boxes

    def _project(self, kernel: str, n: int, *arguments: Any) -> None:
        """Launch ``visible``, ``project`` or ``project_vjp`` over ``n`` rows."""
        kernels = self.device.kernels(self.source)
        kernels.prepare(f"project<{self.degree}>", f"project_vjp<{self.degree}>")
        kernels.over(kernel if kernel == "visible" else f"{kernel}<{self.degree}>", n, *arguments)

    def _camera(self, view: View) -> Any:
        return self.device.array(pack_camera(view), self.camera_type)

    def _values(self, table: ArrayTable, *names: str) -> list[Any]:
        """Return arrays of a table on the device, float32."""
        return [self.device.array(table[name], np.float32) for name in names]

    def _placer(self, like: Any) -> Callable[[Any], Any]:
        """Return what moves results to where ``like`` is."""
        return self.device.host if type(like) is np.ndarray else lambda x: x

    def _table(self, columns: Mapping[str, Any], like: Any) -> ArrayTable:
        """Return a table of device arrays, where ``like`` is."""
        place = self._placer(like)
        return ArrayTable({name: place(x) for name, x in columns.items()})
