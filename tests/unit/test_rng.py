"""Random numbers by key."""

import numpy as np
import pytest

from gaian_hpc.rng import normal, philox4x32, random_bits, uniform

IDS = np.array([0, 1, 7, 2**31, 2**32, 2**40 + 3, 2**62], np.int64)


@pytest.mark.parametrize(("counter", "key", "expected"), [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
     (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
])
def test_philox_gives_the_published_answers(counter, key, expected):
    words = philox4x32(np.array([counter, counter], np.uint32), key)
    assert words.tolist() == [list(expected)] * 2


@pytest.mark.parametrize("draw", [
    lambda ids: random_bits(3, "a", 5, ids, 6),
    lambda ids: uniform(3, "a", 5, ids, (2, 3)),
    lambda ids: uniform(3, "a", 5, ids, (3,), np.float64),
    lambda ids: normal(3, "a", 5, ids, (3,)),
])
def test_the_value_of_an_id_does_not_depend_on_the_other_ids_asked_for(draw):
    many = np.concatenate([np.arange(10_000), IDS])
    together = draw(many)
    for rows in (np.arange(len(many))[::-1], np.arange(3, len(many), 7), np.array([9_999]), np.array([], np.int64)):
        alone = draw(many[rows])
        assert alone.tobytes() == np.ascontiguousarray(together[rows]).tobytes()


def test_every_part_of_the_key_changes_every_word():
    base = random_bits(1, "a", 2, IDS, 8)
    others = [random_bits(2, "a", 2, IDS, 8), random_bits(1 + 2**40, "a", 2, IDS, 8), random_bits(1, "b", 2, IDS, 8),
              random_bits(1, 17, 2, IDS, 8), random_bits(1, "a", 3, IDS, 8), random_bits(1, "a", 2, IDS + 2**33, 8)]
    for other in others:
        assert (other != base).all()
    assert len(np.unique(base)) == base.size


def test_fewer_words_are_the_first_of_more_words():
    assert np.array_equal(random_bits(1, "a", 2, IDS, 3), random_bits(1, "a", 2, IDS, 9)[:, :3])


def test_a_step_that_does_not_fit_its_counter_word_is_refused():
    with pytest.raises(ValueError, match="step -1 is outside"):
        random_bits(1, "a", -1, IDS, 1)
    with pytest.raises(ValueError, match="float16"):
        uniform(1, "a", 1, IDS, (), np.float16)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_uniform_numbers_fill_the_half_open_unit_interval_evenly(dtype):
    x = uniform(11, "u", 0, np.arange(200_000), (), dtype)
    assert x.dtype == dtype and x.shape == (200_000,)
    assert 0 <= x.min() < 1e-4 and 1 - 1e-4 < x.max() < 1
    counts = np.histogram(x, bins=20, range=(0, 1))[0]
    assert ((counts - 10_000.0) ** 2 / 10_000).sum() < 43.8  # chi-square, 19 degrees of freedom, p = 0.001


def test_normal_numbers_have_the_moments_and_tails_of_the_normal_law():
    x = normal(12, "n", 0, np.arange(100_000), (3,)).astype(np.float64)
    assert x.shape == (100_000, 3)
    moments = [(x**k).mean() for k in (1, 2, 3, 4)]
    errors = np.abs(np.array(moments) - [0, 1, 0, 3])
    assert (errors < 3.5 * np.sqrt(np.array([1, 2, 15, 96]) / x.size)).all()  # each moment's own standard error
    assert np.allclose(np.corrcoef(x.T), np.eye(3), atol=0.015)
    assert abs((np.abs(x) > 1.959964).mean() - 0.05) < 0.002
    assert np.abs(x).max() > 4


def test_normal_numbers_follow_from_box_and_muller_in_float64():
    words = random_bits(5, "n", 9, IDS, 4).astype(np.float64)
    radius = np.sqrt(-2 * np.log((words[:, 0::2] + 0.5) / 2**32))
    turn = random_bits(5, "n", 9, IDS, 4)[:, 1::2]
    angle = (turn >> 30) * (np.pi / 2) + ((turn & 0x3FFFFFFF) / 2**30 - 0.5) * (np.pi / 2)
    expected = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=2).reshape(len(IDS), 4)
    assert np.allclose(normal(5, "n", 9, IDS, (4,)), expected, rtol=2e-7, atol=2e-7)
