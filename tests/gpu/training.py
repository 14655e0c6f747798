"""A short run on a GPU against the same on the cpu: ``python -m tests.gpu.training``; exit code 1 if they differ."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from gaian_hpc.data.synthetic import write_city
from tests.unit.runs import metrics_of, train

STEPS = 50
TOLERANCE = 2e-3


def main() -> int:
    """Train on both, print the last losses and how far they are apart at most; train twice to the same bits."""
    with tempfile.TemporaryDirectory() as folder:
        city = write_city(Path(folder) / "scene", n_views=10, width=64, height=48, n_points=600, spacing=4.0)
        losses, stores = {}, []
        for backend in ("cpu", "cuda"):
            changes = {"backend": backend, "steps": STEPS, "horizon": STEPS, "densify.strategy": "none"}
            train(city, Path(folder) / backend, changes)
            losses[backend] = np.array([line["loss"] for line in metrics_of(Path(folder) / backend) if "loss" in line])
        for k in range(2):
            changes = {"backend": "cuda", "steps": STEPS, "horizon": STEPS, "deterministic": True, "patch_size": 32}
            stores.append(train(city, Path(folder) / f"deterministic{k}", changes).store)
        same = all(np.array_equal(stores[0].raw[name], stores[1].raw[name]) for name in stores[0].raw)
    apart = float(np.max(np.abs(losses["cuda"] / losses["cpu"] - 1)))
    print(f"{STEPS} steps: last loss cpu {losses['cpu'][-1]:.5f}, cuda {losses['cuda'][-1]:.5f}; apart at most "
          f"{apart:.1e} (≤ {TOLERANCE:.0e})")
    print(f"two deterministic runs with densification: {'the same bits' if same else 'DIFFERENT bits'}")
    return 0 if apart <= TOLERANCE and same else 1


if __name__ == "__main__":
    sys.exit(main())
