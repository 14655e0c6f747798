"""``gaian bench sync``: barrier, quality-first and throughput-first on two hosts with a slow cable, interleaved."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gaian_hpc.errors import ExchangeError
from gaian_hpc.jobs.hosts import TwoHosts, two_hosts
from gaian_hpc.jobs.scale import find_mpirun

VARIANTS = {
    "barrier": ("--sync", "barrier"),
    "quality": ("--sync", "quality"),
    "quality, nothing ahead": ("--sync", "quality", "--pipeline.render_ahead", "false"),
    "throughput": ("--sync", "throughput"),
    "no validation": ("--sync", "quality", "--pipeline.validation", "none"),
    "hogwild": ("--sync", "quality", "--pipeline.validation", "hogwild"),
}
COMPUTING = ("cull", "splat", "patches", "render", "pixels", "loss", "render_vjp", "gather", "splat_vjp", "update",
             "density")
"""Phases of a rank's own work; in all others it waits for others, or hands bytes over."""
SHARE = 0.5  # of a synchronous step that the exchange shall take


def run_bench_sync(scenes: Sequence[Path], words: Sequence[str], *, warm: int, steps: int, rounds: int, rate: str = "",
                   variants: Sequence[str] = tuple(VARIANTS), as_json: bool = False) -> int:
    """Train each scene for ``warm`` steps, then go on from there for ``steps`` steps in every way; print medians.

    Parameters
    ----------
    scenes : sequence of path
    words : sequence of str
        Settings of ``gaian train``.
    warm, steps, rounds : int
    rate : str
        Of the cable, as ``tc`` writes it; by default such that the exchange takes half of a synchronous step.
    variants : sequence of str
    """
    table = {}
    with two_hosts() as hosts, tempfile.TemporaryDirectory() as folder:
        for scene in scenes:
            bench = SceneBench(hosts, scene, Path(folder) / scene.name, words, warm, steps)
            table[scene.name] = bench.run(rounds, rate, variants)
    print(json.dumps(table) if as_json else "\n\n".join(report_text(name, rows) for name, rows in table.items()))
    return 0


class SceneBench:
    """The variants of one scene, all from the same checkpoint."""

    def __init__(self, hosts: TwoHosts, scene: Path, folder: Path, words: Sequence[str], warm: int, steps: int):
        self._hosts, self._scene, self._folder, self._warm, self._steps = hosts, scene, folder, warm, steps
        every = max(1, steps // 2)
        self._words = [*words, "--threads", "1", "--log_every", str(every), "--placement.check_every", str(every),
                       "--placement.rebalance", "0", "--data.test_every", "0", "--checkpoint.every", "1000000",
                       "--densify.start", str(warm // 4), "--densify.every", str(max(1, warm // 8)),
                       "--densify.stop", str(warm), "--densify.reset_every", "0"]

    def run(self, rounds: int, rate: str, variants: Sequence[str]) -> dict[str, Any]:
        """Return the medians of each variant."""
        self._train("start", self._warm, ())
        free = self._time("barrier")
        rate = rate or self._rate(free)
        self._hosts.shape(rate)
        results: dict[str, list[dict[str, Any]]] = {name: [] for name in variants}
        for _ in range(rounds):
            for name in variants:
                results[name].append(self._time(name))
        self._hosts.shape("")
        barrier = results[variants[0]]
        rows = {}
        for name, runs in results.items():
            ratio = float(np.median([b["ms"] / r["ms"] for b, r in zip(barrier, runs, strict=True)]))
            exposed = [r["ms"] - r["compute_ms"] for r in runs]
            hidden = float(np.median([1 - e / (b["ms"] - b["compute_ms"])
                                      for e, b in zip(exposed, barrier, strict=True)]))
            rows[name] = {**{k: float(np.median([r[k] for r in runs])) for k in runs[0]}, "throughput": ratio,
                          "hidden": hidden, "exposed_ms": float(np.median(exposed))}
        b = rows[variants[0]]
        return {"rate": rate, "bound": b["ms"] / b["compute_ms"], "exchange_share": 1 - b["compute_ms"] / b["ms"],
                "variants": rows}

    def _rate(self, free: dict[str, Any]) -> str:
        """Return the rate with which sending takes ``SHARE`` of a step that computes as long as without limit."""
        seconds = free["compute_ms"] / 1e3 * SHARE / (1 - SHARE)
        return f"{max(1, round(8 * free['bytes'] / 2 / seconds / 1e6))}mbit"

    def _time(self, name: str) -> dict[str, Any]:
        """Run a variant from the common start; return times and bytes of a step after its first half."""
        shutil.rmtree(self._folder / "run", ignore_errors=True)
        shutil.copytree(self._folder / "start", self._folder / "run")
        self._train("run", self._warm + self._steps, ("--resume", *VARIANTS[name]))
        lines = [json.loads(line) for line in (self._folder / "run" / "timings.jsonl").read_text().splitlines()]
        lines = [line for line in lines if line["step"] > self._warm]
        first, last = lines[0], lines[-1]
        n = last["step"] - first["step"]

        def spent(names: Sequence[str]) -> float:
            return sum(last["phases"].get(p, [0] * 3)[1] - first["phases"].get(p, [0] * 3)[1] for p in names) / n

        reads = {k: last["reads"][k] - first["reads"][k] for k in last.get("reads", {})}
        total = max(sum(reads.values()), 1)
        sent = [json.loads(line) for line in (self._folder / "run" / "metrics.jsonl").read_text().splitlines()
                if '"exchange"' in line]
        return {"ms": 1e3 * (last["seconds"] - first["seconds"]) / n, "compute_ms": 1e3 * spent(COMPUTING),
                "bytes": sum(phase["other_host"] for phase in sent[-1]["exchange"].values()) / n,
                **{k: reads.get(k, 0) / total for k in ("accepted", "delayed", "fallback")}}

    def _train(self, run: str, steps: int, more: Sequence[str]) -> None:
        command = [*self._hosts.mpich(find_mpirun(), 1), sys.executable, "-m", "gaian_hpc.cli", "train",
                   str(self._scene), "-o", str(self._folder / run), "--steps", str(steps), *self._words, *more]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
        if done.returncode:
            raise ExchangeError(f"training on two hosts ended with code {done.returncode}: "
                                f"{' '.join((done.stderr or done.stdout).strip().splitlines()[-2:])}")


def report_text(scene: str, result: dict[str, Any]) -> str:
    """Return a scene's results as a table."""
    lines = [f"{scene}: two ranks on two hosts at {result['rate']}; exchange takes {result['exchange_share']:.0%} of a "
             f"synchronous step; bound (step / compute) {result['bound']:.2f}",
             f"{'':<24}{'ms a step':>10}{'throughput':>12}{'exposed ms':>12}{'hidden':>8}{'conflict':>10}"
             f"{'delayed':>9}"]
    lines += [f"{name:<24}{r['ms']:>10.1f}{r['throughput']:>12.2f}{r['exposed_ms']:>12.1f}{r['hidden']:>8.0%}"
              f"{r['fallback'] + r['delayed']:>10.1%}{r['delayed']:>9.1%}" for name, r in result["variants"].items()]
    return "\n".join(lines)
