"""The graph counts what views share; scheduled epochs share less than random ones, and views stay near their places."""

from itertools import permutations

import numpy as np
import pytest

from gaian_hpc.data.sampler import EpochSampler
from gaian_hpc.data.scene import load_scene
from gaian_hpc.errors import DataError
from gaian_hpc.schedule.compiled import ScheduleSampler
from gaian_hpc.schedule.graph import ViewTracks, conflicts, locality_graph
from gaian_hpc.schedule.order import Strip, arrange
from gaian_hpc.schedule.unions import MOST_VIEWS, bitsets, greedy

SETS = [{0, 1, 2, 3}, {2, 3, 4}, {9}, {0, 1, 2, 3, 4, 5}]


def tracks_of(sets):
    rows = [np.array(sorted(s), np.int32) for s in sets]
    return ViewTracks(np.cumsum([0, *map(len, rows)]), np.concatenate(rows), 10)


@pytest.fixture
def ring():
    """Return the tracks of 60 views around a ring, each sharing with the two nearest on either side."""
    return ViewTracks(np.arange(0, 60 * 5 + 1, 5),
                      np.concatenate([np.sort((v + np.arange(5)) % 60) for v in range(60)]).astype(np.int32), 60)


def test_weights_are_jaccard_and_shares():
    graph = locality_graph(tracks_of(SETS))
    for i, a in enumerate(SETS):
        for k, j in enumerate(graph.neighbours[i].tolist()):
            if j >= 0:
                assert graph.jaccard[i, k] == pytest.approx(len(a & SETS[j]) / len(a | SETS[j]))
                assert graph.overlap[i, k] == pytest.approx(len(a & SETS[j]) / len(a))
        found = {j for j in graph.neighbours[i].tolist() if j >= 0}
        assert found == {j for j, b in enumerate(SETS) if j != i and a & b}


def test_the_heaviest_neighbours_are_kept(ring):
    graph = locality_graph(ring, n_neighbours=4)
    assert all(set(graph.neighbours[v].tolist()) == {(v + d) % 60 for d in (-2, -1, 1, 2)} for v in range(60))


def test_tracks_of_some_views_are_those_of_these_views():
    offsets, view_idx = np.array([0, 2, 3, 5]), np.array([0, 2, 1, 1, 2])
    chosen = ViewTracks.of(offsets, view_idx, np.array([1, 2]))
    assert [part.tolist() for part in np.split(chosen.tracks, chosen.indptr[1:-1])] == [[1, 2], [0, 2]]


def test_conflict_is_the_share_of_a_units_tracks_that_its_window_holds():
    views = tracks_of(SETS)
    assert conflicts(views, np.arange(4), 1, 2).tolist() == pytest.approx([0, 2 / 3, 0, 0])
    assert conflicts(views, np.arange(4), 1, 4).tolist() == pytest.approx([0, 2 / 3, 0, 5 / 6])
    assert conflicts(views, np.array([0, 2, 1, 3]), 2, 2).tolist() == pytest.approx([0, 4 / 6])


def arranged(order, tracks, views_per_step, window, distance, exact):
    strip = Strip(order, 0, len(order))
    return arrange(strip, locality_graph(tracks), views_per_step, window, distance, bitsets(tracks) if exact else None)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("distance", [1, 3, 10, 60])
def test_arranged_epochs_are_permutations_near_their_random_places_that_share_less(ring, distance, exact):
    order = np.random.default_rng(0).permutation(60)
    out = arranged(order, ring, 2, 4, distance, exact)
    assert sorted(out.tolist()) == list(range(60))
    home = np.argsort(order)
    assert np.abs(home[out] - np.arange(60)).max() <= distance
    assert conflicts(ring, out, 2, 4).mean() < conflicts(ring, order, 2, 4).mean()
    assert (out == arranged(order, ring, 2, 4, distance, exact)).all()


@pytest.mark.parametrize("exact", [True, False])
def test_what_does_not_move_stays_and_is_counted(ring, exact):
    views = np.random.default_rng(1).permutation(60)
    strip = Strip(views, 6, 54)
    out = arrange(strip, locality_graph(ring), 2, 4, 60, bitsets(ring) if exact else None)
    assert sorted(out.tolist()) == sorted(views[6:54].tolist())
    run = np.concatenate([views[:6], out, views[54:]])
    assert conflicts(ring, run, 2, 4)[3:].mean() < 0.05  # over both seams; at random it is 0.28


def test_bits_are_the_tracks():
    bits = bitsets(tracks_of([{0, 1, 9}, set(), {3}]))
    assert bits[:, 0].tolist() == [0b1000000011, 0, 0b1000]
    wide = ViewTracks(np.array([0, 3]), np.array([0, 63, 64], np.int32), 65)
    assert bitsets(wide).tolist() == [[1 | 1 << 63, 1]]


def test_many_tracks_are_sampled_and_many_views_have_no_bits():
    tracks = ViewTracks(np.array([0, 100_000]), np.arange(100_000, dtype=np.int32), 100_000)
    found = sum(int(word).bit_count() for word in bitsets(tracks)[0])
    assert 100_000 // 7 <= found <= 100_000 // 7 + 1
    empty = ViewTracks(np.zeros(MOST_VIEWS + 2, np.int64), np.zeros(0, np.int32), 1)
    assert bitsets(empty) is None


def test_a_greedy_order_takes_the_view_that_shares_the_least_with_what_has_run():
    sets = bitsets(tracks_of([{0, 1}, {0, 1}, {1, 2}, {8}]))
    order = np.arange(4)
    greedy(order, 0, sets, 1, 2)
    assert order.tolist() == [0, 3, 1, 2]
    order = np.array([0, 1, 2, 3])
    greedy(order, 1, sets, 1, 2)
    assert order.tolist() == [0, 3, 1, 2]
    again = np.array([3, 0, 0, 1, 2])  # the second unit is begun: view 0 cannot be its other half
    greedy(again, 3, sets, 2, 2)
    assert again.tolist() == [3, 0, 0, 2, 1]


@pytest.mark.parametrize("seed", range(3))
def test_few_views_are_ordered_as_well_as_can_be(seed):
    rng = np.random.default_rng(seed)
    tracks = tracks_of([set(rng.choice(10, 4, replace=False).tolist()) for _ in range(7)])
    out = arranged(np.arange(7), tracks, 1, 3, 7, True)
    best = min(conflicts(tracks, np.array(order), 1, 3).sum() for order in permutations(range(7)))
    assert conflicts(tracks, out, 1, 3).sum() == pytest.approx(best)


def test_a_window_of_one_unit_leaves_the_random_order(ring):
    order = np.random.default_rng(0).permutation(60)
    assert (arranged(order, ring, 2, 1, 60, True) == order).all()


@pytest.mark.parametrize("views_per_step", [1, 2, 7, 11, 20, 29, 60])
def test_every_scheduled_epoch_visits_each_view_once_whatever_step_is_asked_first(ring, views_per_step):
    def sampler():
        return ScheduleSampler(np.arange(100, 160), views_per_step, 3, ring, 4)

    n = 4 * 60 // views_per_step
    run = sampler()
    units = [run.unit(s) for s in range(n)]
    for step in (n - 1, 0, n // 2):
        assert sampler().unit(step) == units[step]
    flat = [v for unit in units for v in unit]
    assert all(len(set(unit)) == views_per_step for unit in units)
    for first in range(0, len(flat) - 59, 60):
        assert sorted(flat[first:first + 60]) == list(range(100, 160))


@pytest.mark.parametrize("n, views_per_step", [(11, 2), (75, 2), (59, 4), (31, 10)])
def test_views_stay_near_their_places_in_epochs_that_begin_within_a_unit(n, views_per_step):
    tracks = ViewTracks(np.arange(0, 5 * n + 1, 5),
                        np.concatenate([np.sort((v + np.arange(5)) % n) for v in range(n)]).astype(np.int32), n)
    sampler = ScheduleSampler(np.arange(n), views_per_step, 0, tracks, 3, distance=4)
    flat = np.array([v for s in range(6 * n // views_per_step) for v in sampler.unit(s)])
    for epoch in range(5):
        mine = flat[epoch * n:(epoch + 1) * n]
        assert sorted(mine.tolist()) == list(range(n))
        home = np.argsort(EpochSampler._shuffled(sampler, epoch))
        far = np.abs(home[mine] - np.arange(n)) > 4
        assert far.sum() <= 4 * views_per_step  # those that a unit over a seam already held


def test_epochs_that_begin_within_a_unit_share_as_little_as_the_first():
    # 75 views at two a unit: every other epoch begins with the second view of a unit.
    n = 75
    tracks = ViewTracks(np.arange(0, 5 * n + 1, 5),
                        np.concatenate([np.sort((v + np.arange(5)) % n) for v in range(n)]).astype(np.int32), n)
    sampler = ScheduleSampler(np.arange(n), 2, 0, tracks, 2)
    assert all(sampler.predicted(epoch).mean() < 0.015 for epoch in range(6))


def test_predictions_are_those_of_the_units_that_run(ring):
    sampler = ScheduleSampler(np.arange(60), 7, 0, ring, 3)
    run = np.array([v for step in range(30) for v in sampler.unit(step)])
    counted = conflicts(ring, run, 7, 3)
    told = np.concatenate([sampler.predicted(epoch) for epoch in range(3)])
    assert told.tolist() == counted[:len(told)].tolist()
    assert len(told) == -(-180 // 7)


def test_a_schedule_of_another_scene_or_other_settings_is_refused_in_one_line(ring):
    record = ScheduleSampler(np.arange(60), 2, 0, ring, 4).record()
    ScheduleSampler(np.arange(60), 2, 0, ring, 4).check_record(record, "run")
    with pytest.raises(DataError, match=r"^run: its schedule is one with window 4, not 2; go on with"):
        ScheduleSampler(np.arange(60), 2, 0, ring, 2).check_record(record, "run")
    other = ViewTracks(ring.indptr, np.roll(ring.tracks, 5), 60)
    with pytest.raises(DataError, match=r"^run: its schedule is one of another scene; go on with"):
        ScheduleSampler(np.arange(60), 2, 0, other, 4).check_record(record, "run")
    with pytest.raises(DataError, match=r"^run: its schedule is one with version None, not 1"):
        ScheduleSampler(np.arange(60), 2, 0, ring, 4).check_record({}, "run")


# What a greedy order shares of all views' tracks, of units with another before them.
@pytest.mark.parametrize("scene, window, greedy_share", [
    ("caliterra", 2, 0.05), ("caliterra", 4, 0.24), ("fox", 2, 0.16), ("fox", 4, 0.42), ("brighton_beach", 2, 0.15),
    ("brighton_beach", 4, 0.47), ("sceaux_castle", 2, 0.40), ("sceaux_castle", 4, 0.70)])
def test_real_scenes_share_less_than_in_a_greedy_order(shared_dir, scene, window, greedy_share):
    loaded = load_scene(shared_dir / "data" / scene)
    n = len(loaded.views)
    tracks = ViewTracks.of(loaded.tracks.track_offsets, loaded.tracks.track_view_idx, np.arange(n))
    found = [ScheduleSampler(np.arange(n), 2, seed, tracks, window) for seed in range(3)]
    alone = [conflicts(tracks, sampler._order(0), 2, window)[1:].mean() for sampler in found]
    assert np.mean(alone) < greedy_share


def test_real_scenes_share_as_little_over_many_epochs_as_in_one(shared_dir):
    loaded = load_scene(shared_dir / "data" / "caliterra")
    tracks = ViewTracks.of(loaded.tracks.track_offsets, loaded.tracks.track_view_idx, np.arange(75))
    sampler = ScheduleSampler(np.arange(75), 2, 0, tracks, 2)
    assert np.mean([sampler.predicted(epoch).mean() for epoch in range(1, 5)]) < 0.03
