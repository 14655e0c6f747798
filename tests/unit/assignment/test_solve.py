"""Assignment of patches: the best there is on small units, within its bounds, the same every time."""

import itertools
import time

import numpy as np
import pytest

from gaian_hpc.assignment.solve import assign

ONE_HOST, TWO_HOSTS = np.zeros(4, int), np.array([0, 0, 1, 1])


def unit(seed, size=4, n_patches=40, spread=3.0):
    """Return random counts (R, P): most splats of a patch at one rank, some at its neighbour, few elsewhere."""
    rng = np.random.default_rng(seed)
    weights = rng.exponential(size=(size, n_patches)) ** spread
    return (1000 * weights / weights.sum(axis=0)).astype(np.int64) * rng.integers(1, 4, n_patches)


def crossing(counts, renders, hosts, factor):
    """Return the cost of an assignment, splat by splat."""
    total = 0
    for p, render in enumerate(renders):
        for owner, n in enumerate(counts[:, p]):
            if owner != render:
                total += n * (factor if hosts[owner] != hosts[render] else 1)
    return total


def received(counts, renders):
    """Return what each rank receives: splats to render and gradients of its own."""
    pairs = np.zeros((len(counts), len(counts)), np.int64)
    for p, render in enumerate(renders):
        pairs[:, render] += counts[:, p]
    np.fill_diagonal(pairs, 0)
    return pairs.sum(axis=0) + pairs.sum(axis=1)


def imbalance(work, renders, size):
    loads = np.bincount(renders, weights=work, minlength=size)
    return loads.max() / loads.mean()


@pytest.mark.parametrize("hosts", [ONE_HOST, TWO_HOSTS])
@pytest.mark.parametrize("seed", range(5))
def test_without_a_binding_bound_each_patch_is_where_it_is_cheapest(hosts, seed):
    counts = unit(seed)
    renders = assign(counts, counts.sum(axis=0).astype(float), hosts, slack=100, host_factor=4, receiver_slack=100)
    for p in range(counts.shape[1]):
        column = counts[:, p:p + 1]
        best = min(crossing(column, [r], hosts, 4) for r in range(4))
        assert crossing(column, [renders[p]], hosts, 4) == best


@pytest.mark.parametrize("seed", range(20))
def test_on_small_units_the_cost_is_within_a_tenth_of_the_least(seed):
    counts = unit(seed, size=3, n_patches=8)
    work, hosts = np.ones(8), np.array([0, 0, 1])
    allowed = [a for a in itertools.product(range(3), repeat=8) if max(np.bincount(a, minlength=3)) <= 3]
    best = min(crossing(counts, a, hosts, 4) for a in allowed)
    renders = assign(counts, work, hosts, slack=1.15, host_factor=4)
    assert np.bincount(renders, minlength=3).max() <= 3
    assert crossing(counts, renders, hosts, 4) <= 1.1 * best


@pytest.mark.parametrize("slack", [1.02, 1.15, 1.5])
@pytest.mark.parametrize("seed", range(5))
def test_no_rank_has_more_work_than_the_slack_allows(seed, slack):
    counts = unit(seed, size=8, n_patches=400)
    counts[0] *= 5  # all would like to be rendered there
    work = counts.sum(axis=0).astype(float)
    assert imbalance(work, assign(counts, work, np.zeros(8), slack=slack), 8) <= slack + 1e-9


def test_a_patch_larger_than_the_bound_is_alone_on_its_rank():
    counts = np.full((4, 9), 10)
    counts[2] = 100
    work = np.array([50.0, 1, 1, 1, 1, 1, 1, 1, 1])
    renders = assign(counts, work, ONE_HOST)
    assert (renders == renders[0]).sum() == 1


def test_splats_between_hosts_weigh_more_than_splats_within_one():
    counts = np.array([[40], [0], [30], [30]])  # rank 0 has most splats, its neighbour none; the other host has more
    work = np.ones(1)
    assert assign(counts, work, TWO_HOSTS, slack=100, host_factor=1)[0] == 0
    assert assign(counts, work, TWO_HOSTS, slack=100, host_factor=4)[0] in (2, 3)


def test_slower_ranks_get_less_work():
    counts = np.ones((3, 300), int)
    loads = np.bincount(assign(counts, np.ones(300), np.zeros(3), slack=1.05, speeds=np.array([1.0, 1.0, 2.0])))
    assert loads[2] >= 1.8 * loads[:2].max() and (loads[:2] <= 1.05 * 75).all()


def test_a_bound_on_receipt_lowers_what_the_largest_receiver_gets():
    counts = unit(3, size=6, n_patches=300, spread=1.0)
    counts[5] = counts[5] // 2 + 60  # never the best place by much, yet the best for many
    work = counts.sum(axis=0).astype(float)
    loose, tight = (received(counts, assign(counts, work, np.zeros(6), slack=3, receiver_slack=s)) for s in (100, 1.05))
    assert tight.max() < 0.95 * loose.max()


def test_contiguous_deals_patches_out_in_order_and_in_equal_numbers():
    renders = assign(np.ones((3, 12), int), np.ones(12), np.zeros(3), method="contiguous")
    assert renders.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    few = assign(np.ones((5, 3), int), np.ones(3), np.zeros(5), method="contiguous")
    assert np.bincount(few, minlength=5).max() == 1


@pytest.mark.parametrize(("size", "n_patches"), [(1, 5), (3, 0), (1, 0), (7, 2)])
def test_units_of_one_rank_of_no_patches_and_of_few_have_an_assignment(size, n_patches):
    renders = assign(np.ones((size, n_patches), int), np.ones(n_patches), np.zeros(size))
    assert len(renders) == n_patches and ((renders >= 0) & (renders < size)).all()


def test_patches_that_nobody_sees_and_that_cost_nothing_are_assigned():
    renders = assign(np.zeros((4, 6), int), np.zeros(6), TWO_HOSTS)
    assert ((renders >= 0) & (renders < 4)).all()


def test_patches_of_no_work_are_where_they_are_cheapest():
    counts = unit(2)
    assert np.array_equal(assign(counts, np.zeros(40), ONE_HOST, receiver_slack=100), counts.argmax(axis=0))


def test_patches_without_splats_but_with_pixels_are_dealt_out():
    renders = assign(np.zeros((4, 40), int), np.ones(40), ONE_HOST)
    assert np.bincount(renders, minlength=4).max() <= 1.15 * 10


def test_the_same_unit_is_assigned_alike_whatever_the_names_of_hosts():
    counts = unit(8, n_patches=200)
    work = counts.sum(axis=0).astype(float)
    first = assign(counts, work, TWO_HOSTS)
    assert np.array_equal(first, assign(counts.astype(np.int32), work, TWO_HOSTS * 7 + 3))


def test_a_small_unit_takes_less_than_a_millisecond():
    counts = unit(0, size=2, n_patches=8)
    work, hosts = counts.sum(axis=0).astype(float), np.zeros(2)
    assign(counts, work, hosts)
    seconds = []
    for _ in range(50):
        start = time.perf_counter()
        assign(counts, work, hosts)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 1e-3
