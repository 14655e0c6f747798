"""``gaian bench scale``: a step on ranks and threads, all combinations interleaved in one run, as ratios."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gaian_hpc.errors import BackendError, ExchangeError, SettingsError

BOOKKEEPING = ("patches", "assign", "sums")
"""Phases there would not be on one rank: what each patch reads, who renders it, and the sums over ranks."""


def run_bench_scale(words: Sequence[str], combinations: str, rounds: int, *, mpirun: str = "",
                    as_json: bool = False) -> int:
    """Time ``gaian bench step`` on ranks × threads and print medians over rounds, and ratios.

    Parameters
    ----------
    words : sequence of str
        Arguments of ``gaian bench step`` without ``--threads`` and ``--json``.
    combinations : str
        ``1x1,2x1,1x2``: ranks × threads, the first one being what the others are held against.
    rounds : int
        How often each is run, one after the other.
    mpirun : str
        Launcher; the one beside this Python, else the one on the path, by default.
    """
    pairs = parse_combinations(combinations)
    launcher = mpirun or find_mpirun()
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in pairs}
    for _ in range(rounds):
        for name, (ranks, threads) in pairs.items():
            results[name].append(time_once(launcher, ranks, threads, words))
    table = {name: summary(rows) for name, rows in results.items()}
    first = next(iter(table.values()))["ms"]
    for row in table.values():
        row["ratio"] = row["ms"] / first
    print(json.dumps(table) if as_json else report_text(table, rounds))
    return 0


def parse_combinations(text: str) -> dict[str, tuple[int, int]]:
    """Return ranks and threads by name.

    Raises
    ------
    SettingsError
    """
    pairs = {}
    for name in text.split(","):
        ranks, _, threads = name.partition("x")
        if not (ranks.isdigit() and threads.isdigit() and int(ranks) and int(threads)):
            raise SettingsError(f"argument --combinations has {name!r}; it must be RANKSxTHREADS, as 2x1")
        pairs[name] = (int(ranks), int(threads))
    return pairs


def find_mpirun() -> str:
    """Return the launcher beside this Python, or on the path.

    Raises
    ------
    BackendError
        If there is none.
    """
    beside = Path(sys.executable).parent / "mpirun"
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        raise BackendError(f"no mpirun beside {sys.executable} and none on the path; pip install mpich, or name one "
                           "with --mpirun")
    return found


def time_once(launcher: str, ranks: int, threads: int, words: Sequence[str]) -> dict[str, Any]:
    """Return the result of one ``gaian bench step``."""
    command = [sys.executable, "-m", "gaian_hpc.cli", "bench", "step", *words, "--threads", str(threads), "--json"]
    if ranks > 1:
        command = [*launcher.split(), "-n", str(ranks), *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ExchangeError(f"{ranks} ranks of {threads} threads ended with code {done.returncode}: "
                            f"{(done.stderr or done.stdout).strip().splitlines()[-1:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return medians over rounds."""
    ms = float(np.median([row["ms"] for row in rows]))
    share = float(np.median([sum(row["phases_ms"].get(p, 0.0) for p in BOOKKEEPING) / row["ms"] for row in rows]))
    return {"ms": ms, "bookkeeping_share": share, "bytes_sent": rows[0]["bytes_sent"],
            "phases_ms": {p: float(np.median([row["phases_ms"][p] for row in rows])) for p in rows[0]["phases_ms"]}}


def report_text(table: dict[str, dict[str, Any]], rounds: int) -> str:
    """Return the results as a table."""
    lines = [f"ranks x threads, medians of {rounds} interleaved rounds",
             f"{'':<8}{'ms a step':>12}{'ratio':>8}{'bookkeeping':>13}{'MB sent a step':>16}"]
    lines += [f"{name:<8}{row['ms']:>12.1f}{row['ratio']:>8.2f}{row['bookkeeping_share']:>12.1%} "
              f"{row['bytes_sent'] / 1e6:>15.2f}" for name, row in table.items()]
    return "\n".join(lines)
