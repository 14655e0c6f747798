"""A small made-up scene with every corner of the format in it, and its checkpoint on one or more shards."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from gaian_hpc.arrays import Attribute, LearningRate, View
from gaian_hpc.checkpoint.schema import Camera, CheckpointState, RngState
from gaian_hpc.checkpoint.writer import begin_checkpoint, finish_checkpoint, write_shard
from gaian_hpc.points.store import PointStore


def _no_start(cloud):
    raise NotImplementedError


def attribute(name, shape, activation="identity", raw_name="", unit="1"):
    return Attribute(name, shape, _no_start, LearningRate(0.1), activation, raw_name, unit=unit)


GAUSSIAN = (attribute("means", (3,), unit="world unit"), attribute("quats", (4,)),
            attribute("scales", (3,), "exp", "log_scales", "log world unit"),
            attribute("opacities", (), "sigmoid", "logit_opacities"), attribute("sh", (16, 3)))


def make_store(n=50, seed=1, attributes=GAUSSIAN):
    """Return ``n`` points with gaps between their ids and no two values alike."""
    rng = np.random.default_rng(seed)
    ids = np.sort(rng.choice(10 * n + 1, n, replace=False))
    raw = {a.name: rng.standard_normal((n, *a.shape), np.float32) for a in attributes}
    store = PointStore(attributes, raw, ids, next_id=10 * n + 7)
    for a in attributes:
        store.first_moments[a.name] = rng.standard_normal((n, *a.shape), np.float32)
        store.second_moments[a.name] = rng.random((n, *a.shape), np.float32)
    store.statistics = {"grad_sum": rng.random(n, np.float32), "n_seen": rng.integers(0, 9, n, np.int32)}
    return store


def make_state(store=None, step=300):
    views = [View(np.eye(4, dtype=np.float32) * (i + 1), np.diag(np.float32([500 + i, 501, 1])), 64 + i, 48,
                  f"left/bild_ü{i}.jpg", i, 0.01, 1e10, i / 3) for i in range(4)]
    return CheckpointState(
        step=step, settings='steps = 300\nmethod = "gaussian3d"\n', method="gaussian3d",
        store=make_store() if store is None else store, method_options='{"sh_degree": 3}', scene_path="/data/fox",
        scene_fingerprint="ab12", cameras=tuple(Camera(v, i % 3 == 0) for i, v in enumerate(views)),
        rng=RngState(7, counters={"order": 12}), trainer={"extent": 0.1 + 0.2},
        metrics=('{"step": 100, "loss": 0.5}', '{"step": 200, "loss": 0.25}', '{"step": 300, "loss": 0.2}',
                 '{"step": 300, "psnr": 21.5}'))


def take(store, rows):
    """Return a store of some rows."""
    part = PointStore(store.attributes, {k: x[rows] for k, x in store.raw.items()}, store.ids[rows], store.next_id)
    part.first_moments = {k: x[rows] for k, x in store.first_moments.items()}
    part.second_moments = {k: x[rows] for k, x in store.second_moments.items()}
    part.statistics = {k: x[rows] for k, x in store.statistics.items()}
    return part


def write_sharded(run: Path, state: CheckpointState, owners: np.ndarray, size: int, compress=False) -> Path:
    """Write as ``size`` ranks would, rank r holding the rows where ``owners`` is r."""
    parts = [replace(state, store=take(state.store, np.flatnonzero(owners == r))) for r in range(size)]
    begin_checkpoint(run, state.step)
    records = [write_shard(run, part, r, compress=compress) for r, part in enumerate(parts)]
    return finish_checkpoint(run, parts[0], records)


def assert_same_store(a: PointStore, b: PointStore):
    """Fail unless two stores hold the same bits, types and names."""
    assert a.next_id == b.next_id
    assert a.ids.dtype == b.ids.dtype and np.array_equal(a.ids, b.ids)
    for x, y in ((a.raw, b.raw), (a.first_moments, b.first_moments), (a.second_moments, b.second_moments),
                 (a.statistics, b.statistics), (dict(a.values), dict(b.values))):
        assert x.keys() == y.keys()
        for name in x:
            assert x[name].dtype == y[name].dtype and x[name].shape == y[name].shape, name
            assert x[name].tobytes() == y[name].tobytes(), name


def assert_same_state(a: CheckpointState, b: CheckpointState):
    """Fail unless two states say the same, but for their placement."""
    for name in ("step", "settings", "method", "method_options", "scene_path", "scene_fingerprint", "rng", "trainer",
                 "metrics"):
        assert getattr(a, name) == getattr(b, name), name
    assert len(a.cameras) == len(b.cameras)
    for c, d in zip(a.cameras, b.cameras, strict=True):
        assert c.is_test == d.is_test
        for name in ("name", "index", "width", "height", "near", "far", "time"):
            assert getattr(c.view, name) == getattr(d.view, name), name
        assert c.view.viewmat.tobytes() == d.view.viewmat.tobytes() and c.view.K.tobytes() == d.view.K.tobytes()
    assert_same_store(a.store, b.store)
