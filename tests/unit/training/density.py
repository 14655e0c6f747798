"""Small stores and a two-rank gather for the tests of density control."""

import threading

import numpy as np

from gaian_hpc.arrays import Attribute, LearningRate, View
from gaian_hpc.points.store import PointStore, deactivate

VIEW = View(np.eye(4, dtype=np.float32), np.eye(3, dtype=np.float32), 100, 80)


def attributes(scale_axes=3):
    def make(name, shape, activation="identity"):
        return Attribute(name, shape, None, LearningRate(0.01), activation)
    return (make("means", (3,)), make("quats", (4,)), make("scales", (scale_axes,), "exp"),
            make("opacities", (), "sigmoid"), make("sh", (4, 3)))


def new_store(scales, opacities, ids=None, scale_axes=3, seed=0):
    """Return a store with isotropic ``scales`` and the given opacities; everything else is random, moments are ones."""
    rng = np.random.default_rng(seed)
    n = len(scales)
    table = attributes(scale_axes)
    raw = {a.name: rng.normal(size=(n, *a.shape)).astype(np.float32) for a in table}
    raw["scales"] = deactivate(table[2], np.repeat(np.asarray(scales, float)[:, None], scale_axes, 1))
    raw["opacities"] = deactivate(table[3], np.asarray(opacities, float))
    ids = np.arange(n) if ids is None else np.asarray(ids)
    store = PointStore(table, raw, ids, int(ids.max()) + 1)
    for group in (store.first_moments, store.second_moments):
        for x in group.values():
            x[:] = 1.0
    return store


def random_store(n, seed=0):
    rng = np.random.default_rng(seed)
    return new_store(np.exp(rng.uniform(-7, 0, n)), rng.uniform(0.001, 0.9, n), seed=seed)


def part(store, mask):
    """Return a store of the masked points, moments and statistics included."""
    shard = PointStore(store.attributes, {name: x[mask] for name, x in store.raw.items()}, store.ids[mask],
                       store.next_id)
    shard.statistics = {name: x[mask] for name, x in store.statistics.items()}
    for mine, whole in ((shard.first_moments, store.first_moments), (shard.second_moments, store.second_moments)):
        for name, x in whole.items():
            mine[name] = x[mask]
    return shard


def state(*shards):
    """Return ids and every per-point array of all shards, in the order of ids."""
    order = np.argsort(np.concatenate([s.ids for s in shards]))
    arrays = {"ids": np.concatenate([s.ids for s in shards])[order]}
    for i in range(len(shards[0].columns())):
        for name in shards[0].columns()[i]:
            arrays[f"{i}/{name}"] = np.concatenate([s.columns()[i][name] for s in shards])[order]
    return arrays


def same_bits(first, second):
    return first.keys() == second.keys() and all(
        x.shape == second[name].shape and x.tobytes() == second[name].tobytes() for name, x in first.items())


class TwoRanks:
    """Runs ``work(rank, gather)`` for two ranks in two threads, whose gather concatenates in rank order."""

    def __init__(self):
        self._barrier = threading.Barrier(2, timeout=60)
        self._rows = [None, None]
        self._results = [None, None]

    def run(self, work):
        threads = [threading.Thread(target=self._work, args=(work, rank)) for rank in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for result in self._results:
            if isinstance(result, BaseException):
                raise result
        return self._results

    def _work(self, work, rank):
        def gather(rows):
            self._rows[rank] = rows
            self._barrier.wait()
            joined = np.concatenate(self._rows)
            self._barrier.wait()
            return joined
        try:
            self._results[rank] = work(rank, gather)
        except BaseException as error:
            self._results[rank] = error
            self._barrier.abort()
