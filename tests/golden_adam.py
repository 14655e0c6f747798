"""Check the optimizer against golden Adam trajectories (``adam*.npz``)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gaian_hpc.arrays import ArrayTable, Attribute, LearningRate
from gaian_hpc.backends.cuda import Device
from gaian_hpc.backends.host import HOST
from gaian_hpc.points.store import PointStore
from gaian_hpc.settings import OptimizerSettings
from gaian_hpc.training.cuda import DeviceAdam
from gaian_hpc.training.optimizer import Adam

TOLERANCE = 2e-6


def check_adam(npz: Mapping[str, np.ndarray], device: Device | None = None) -> dict[str, float]:
    """Return the largest error of every golden array relative to that array's largest entry.

    Parameters
    ----------
    npz : mapping
        ``param0`` (N, K), ``grads`` (steps, N, K), ``visible`` (steps, N), per setting ``x_lr x_beta1 x_beta2 x_eps``
        with ``x_params``, ``x_selective_params`` and last moments, and ``sched_*``.
    device : Device, optional
        Where the points lie; on the host by default.
    """
    errors = {}
    for prefix in sorted(name[:-len("_beta1")] for name in npz if name.endswith("_beta1")):
        dense, store = _run(npz, prefix, "dense", device)
        golden = {"params": dense, "exp_avg_last": store.first_moments["x"],
                  "exp_avg_sq_last": store.second_moments["x"],
                  "selective_params": _run(npz, prefix, "selective", device)[0]}
        errors |= {f"{prefix}_{name}": _relative(found, npz[f"{prefix}_{name}"])
                   for name, found in golden.items() if f"{prefix}_{name}" in npz}
    if "sched_lr" in npz:
        schedule = LearningRate(float(npz["sched_lr_init"]), float(npz["sched_lr_final"]))
        found = [schedule.at(step / float(npz["sched_max_steps"]), 1.0) for step in npz["sched_steps"]]
        errors["sched_lr"] = _relative(np.array(found), npz["sched_lr"])
    return errors


def _run(npz: Mapping[str, np.ndarray], prefix: str, kind: str,
         device: Device | None) -> tuple[np.ndarray, PointStore]:
    """Return the parameters after every step, and the store after the last."""
    start, grads = npz["param0"], npz["grads"]
    n, width = start.shape
    attribute = Attribute("x", (width,), lambda cloud: start, LearningRate(float(npz[f"{prefix}_lr"])))
    settings = OptimizerSettings(kind=kind, beta1=float(npz[f"{prefix}_beta1"]),
                                 beta2=float(npz[f"{prefix}_beta2"]), eps=float(npz[f"{prefix}_eps"]))
    store = PointStore((attribute,), {"x": start.copy()}, np.arange(n), n)
    adam, place = Adam((attribute,), settings, 1.0, len(grads)), device or HOST
    if device is not None:
        adam = DeviceAdam(device, (attribute,), settings, 1.0, len(grads))
    store.move(place)
    history = []
    for step, gradient in enumerate(grads, 1):
        rows = np.flatnonzero(npz["visible"][step - 1]) if kind == "selective" else np.arange(n)
        adam.update(store, place.array(rows), ArrayTable({"x": place.array(gradient[rows])}, len(rows)), step)
        history.append(place.host(store.raw["x"]).copy())
    store.move(HOST)
    return np.array(history), store


def _relative(found: np.ndarray, golden: np.ndarray) -> float:
    return float(np.abs(found - golden).max() / np.abs(golden).max())
