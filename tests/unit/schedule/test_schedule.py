"""The graph counts what views share; scheduled epochs share less than random ones, and views stay near their places."""

import numpy as np
import pytest

from gaian_hpc.data.scene import load_scene
from gaian_hpc.schedule.compiled import ScheduleSampler
from gaian_hpc.schedule.graph import ViewTracks, conflicts, locality_graph
from gaian_hpc.schedule.order import arrange

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


@pytest.mark.parametrize("distance", [3, 10, 60])
def test_arranged_epochs_are_permutations_near_their_random_places_that_share_less(ring, distance):
    order = np.random.default_rng(0).permutation(60)
    out = arrange(order, locality_graph(ring), 2, 4, distance)
    assert sorted(out.tolist()) == list(range(60))
    home = np.argsort(order)
    assert np.abs(home[out] - np.arange(60)).max() <= distance
    assert conflicts(ring, out, 2, 4).mean() < conflicts(ring, order, 2, 4).mean()
    assert (out == arrange(order, locality_graph(ring), 2, 4, distance)).all()


def test_a_window_of_one_unit_leaves_the_random_order(ring):
    order = np.random.default_rng(0).permutation(60)
    assert (arrange(order, locality_graph(ring), 2, 1, 60) == order).all()


@pytest.mark.parametrize("views_per_step", [1, 2, 7])
def test_every_scheduled_epoch_visits_each_view_once_whatever_step_is_asked_first(ring, views_per_step):
    def sampler():
        return ScheduleSampler(np.arange(100, 160), views_per_step, 3, ring, 4)

    n = 2 * 60 // views_per_step
    units = [sampler().unit(s) for s in range(n)]
    late = sampler()
    assert late.unit(n - 1) == units[-1]
    flat = [v for unit in units for v in unit]
    assert all(len(set(unit)) == views_per_step for unit in units)
    assert sorted(flat[:60]) == list(range(100, 160)) or 60 % views_per_step
    assert sampler().predicted(0).mean() < 0.2


@pytest.mark.parametrize("scene, window, greedy", [
    ("caliterra", 2, 0.05), ("caliterra", 4, 0.24), ("fox", 2, 0.16), ("fox", 4, 0.42), ("brighton_beach", 2, 0.15),
    ("brighton_beach", 4, 0.47), ("sceaux_castle", 2, 0.40), ("sceaux_castle", 4, 0.70)])
def test_real_scenes_share_less_than_in_a_greedy_order(shared_dir, scene, window, greedy):
    loaded = load_scene(shared_dir / "data" / scene)
    n = len(loaded.views)
    tracks = ViewTracks.of(loaded.tracks.track_offsets, loaded.tracks.track_view_idx, np.arange(n))
    sampler = ScheduleSampler(np.arange(n), 2, 0, tracks, window)
    assert np.mean([sampler.predicted(e).mean() for e in range(4)]) < greedy
