"""Golden cases of the loss and of the optimizer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.golden_adam import TOLERANCE, check_adam

from .cases import Case
from .compare import Comparison, uniform


def compare_adam(case: Case) -> list[Comparison]:
    """Compare trajectories, last moments and the learning-rate schedule with the golden ones."""
    # float32 parameters lose half a unit in the last place at every step.
    tolerance = TOLERANCE * max(1.0, np.sqrt(len(case["grads"]) / 12))
    return [uniform(name, error, tolerance) for name, error in check_adam(case).items()]


COMPARES: dict[str, Callable[[Case], list[Comparison]]] = {"adam": compare_adam}
