"""One golden file against one backend: what was compared, with which verdict, and what was not provided."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from gaian_hpc.backends.cuda import Device, open_device

from . import convex, gaussian2d, gaussian3d, gaussian4d, training
from .cases import Case, CaseError, load_case
from .compare import NO_COSTS, Comparison

INPUTS = re.compile(r"v_.*|f32relerr__.*|means|points|delta|sigma|times|quats(_[lr])?|scales(_t)?|timestamp|"
                    r"time_duration|"
                    r"sh_degree_t|prefilter_var|rot_4d|opacities|sh|viewmat|K|background|case_labels|width|height|"
                    r"sh_degree|seed|near|far|eps2d|fragile|radii_fragile|tile_sensitive|isect_before_near|dirs|coeffs|target|window|lambda_dssim|"
                    r"param0|grads|visible|[a-z]_(lr|beta1|beta2|eps)|sched_(steps|lr_init|lr_final|max_steps)")
# What measures a kind of case, and how many float32 runs of the oracle say what float32 costs there.
MEASURES = {"gaussian3d scene": (gaussian3d.measure_scene, 3),
            "gaussian3d projection": (gaussian3d.measure_projection, 12), "sh": (gaussian3d.measure_sh, 3)}
# What compares a scene of a method that has no float64 oracle here, and the method.
SCENES = {"convex3d": (convex.compare_scene, convex.Convex3D), "gaussian2d": (gaussian2d.compare_scene,
                                                                              gaussian2d.Gaussian2D),
          "gaussian4d": (gaussian4d.compare_scene, gaussian4d.Gaussian4D)}


@dataclass(frozen=True)
class Report:
    """The verdicts on one file, in the file's order, and the names of outputs that the package does not give."""

    path: Path
    kind: str
    comparisons: list[Comparison]
    not_provided: list[str]

    @property
    def ok(self) -> bool:
        """Whether all that was compared is near enough, and something was."""
        return bool(self.comparisons) and all(c.ok for c in self.comparisons)

    def lines(self) -> list[str]:
        """Return the table to print."""
        rows = [f"{self.path.name}: {self.kind}"]
        for c in self.comparisons:
            typical = "" if np.isnan(c.typical) else f"   typical row {c.typical:.1e} (≤ {c.typical_tolerance:.1e})"
            note = f"   {c.note}" if c.note else ""
            rows.append(f"  {'ok  ' if c.ok else 'MISS'} {c.name:<24} {c.error:.1e}   "
                        f"{c.share:6.1%} of {c.tolerance:.1e}{typical}{note}")
        if self.not_provided:
            rows.append(f"  not provided: {', '.join(self.not_provided)}")
        n_missed = sum(not c.ok for c in self.comparisons)
        rows.append(f"  {len(self.comparisons)} arrays compared, {n_missed} missed")
        return rows


def implementation_of(backend: str) -> gaussian3d.Implementation:
    """Return the ``gaussian3d`` of a backend; ``reference`` is the float64 oracle itself.

    Raises
    ------
    CaseError
        If the package has no such method yet.
    """
    if backend == "reference":
        return gaussian3d.Implementation.reference()
    if find_spec("gaian_hpc.renderers.gaussian3d") is None:
        raise CaseError("method gaussian3d is not available")
    from gaian_hpc.renderers.gaussian3d import Gaussian3D

    device = device_of(backend)

    def build(degree: int, antialiased: bool, eps2d: float) -> Gaussian3D:
        options = Gaussian3D.Options(sh_degree=degree, antialiased=antialiased, eps2d=eps2d, depth=True)
        if device is not None:
            return Gaussian3D.on_device(options, device, absgrad=True)
        return Gaussian3D(options, backend, absgrad=True)

    return gaussian3d.Implementation(build, np.float32)


def device_of(backend: str) -> Device | None:
    """Return the device of a backend: a GPU, or the CPU running the GPU's kernels (``emulated``); None for others."""
    if backend == "cuda":
        return open_device()
    if backend == "emulated":
        from tests.cuda.emulation.device import emulated_device

        return emulated_device()
    return None


def _compare(case: Case, backend: str) -> list[Comparison]:
    exact = backend == "reference"
    if case.kind in MEASURES:
        measure, n_singles = MEASURES[case.kind]
        if "means" in case:
            gaussian3d.expect_inputs(case)
        got = measure(case, implementation_of(backend))
        costs = NO_COSTS if exact else gaussian3d.costs_of(case, measure, n_singles)
        if exact and "v_covars" in case:
            got |= gaussian3d.covariance_arrays(case)
        return gaussian3d.compare_all(case, got, costs, exact)
    if case.kind in SCENES and not exact:
        compare_scene, method = SCENES[case.kind]
        device = device_of(backend)
        return compare_scene(case, method if device is None else lambda options: method.on_device(options, device))
    if case.kind == "ssim":
        return training.compare_ssim(case, exact, device_of(backend))
    if case.kind == "adam" and not exact:
        return training.compare_adam(case, device_of(backend))
    what = f"reference of {case.kind}" if exact else f"method {case.kind}"
    raise CaseError(f"{case.path}: {what} is not available")


def check(path: str | Path, backend: str = "cpu") -> Report:
    """Compare everything a golden file holds with what the package computes from its inputs.

    Raises
    ------
    CaseError
        If the file cannot be read or tests what is not available.
    """
    case = load_case(path)
    comparisons = _compare(case, backend)
    compared = {c.name for c in comparisons}
    missing = [name for name in case if name not in compared and not INPUTS.fullmatch(name)]
    if case.kind == "ssim":
        missing.remove("image")
    return Report(case.path, case.kind, comparisons, missing)
