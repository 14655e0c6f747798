"""``gaian inspect``: print what a checkpoint holds, or the digest of its points and optimizer state."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gaian_hpc.checkpoint import summary as summaries
from gaian_hpc.checkpoint.summary import CheckpointSummary


def run(options: Any) -> int:
    """Run the job from parsed options: ``checkpoint``, ``digest`` and ``json``."""
    return inspect(options.checkpoint, digest=options.digest, as_json=options.json)


def inspect(path: Path | str, *, digest: bool = False, as_json: bool = False) -> int:
    """Print the summary, or with ``digest`` the digest only, of a run, a checkpoint's folder or its ``scene.h5``.

    Returns
    -------
    int
        Exit code.
    """
    if digest:
        print(_digest_text(path, as_json))
        return 0
    summary = summaries.summarize(path)
    print(json.dumps(_as_json(summary)) if as_json else _as_text(summary))
    return 0


def _digest_text(path: Path | str, as_json: bool) -> str:
    value = summaries.digest(path)
    return json.dumps({"digest": value}) if as_json else value


def _as_json(summary: CheckpointSummary) -> dict[str, Any]:
    """Return the summary with its JSON texts unpacked."""
    return {**asdict(summary), "method_options": json.loads(summary.method_options),
            "metrics_tail": [json.loads(line) for line in summary.metrics_tail]}


def _as_text(s: CheckpointSummary) -> str:
    head = [
        ("checkpoint", f"{s.path} (format version {s.format_version})"),
        ("step", f"{s.step}"),
        ("method", f"{s.method} {s.method_options}"),
        ("points", f"{s.n_points} (next id {s.next_id}), {s.bytes_per_point:.0f} bytes each"),
        ("shards", f"{s.n_shards} of {', '.join(map(str, s.points_per_shard))} points; {s.file_bytes} bytes on disk"),
        ("scene", f"{s.scene_path or '-'} (fingerprint {s.scene_fingerprint or '-'})"),
        ("views", f"{s.n_views}, of which {s.n_test_views} for tests"),
        ("seed", f"{s.seed}")]
    lines = [f"{name:<12}{value}" for name, value in head]
    lines += ["", f"{'array':<38}{'shape':<10}{'min':>13}{'mean':>13}{'max':>13}  not finite  unit"]
    for c in s.columns:
        values = "".join(f"{'-' if v is None else format(v, '.5g'):>13}" for v in (c.minimum, c.mean, c.maximum))
        shape = "x".join(["N", *map(str, c.shape)])
        lines.append(f"{c.name:<38}{shape:<10}{values}{c.n_nonfinite:>12}  {c.unit}")
    lines += ["", "settings", *(f"  {line}" for line in s.settings.splitlines())]
    if s.metrics_tail:
        lines += ["", "last metrics", *(f"  {line}" for line in s.metrics_tail)]
    return "\n".join(lines)
