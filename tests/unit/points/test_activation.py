"""Activations and their inverses."""

import numpy as np
import pytest

from gaian_hpc.arrays import Attribute, LearningRate
from gaian_hpc.points.activation import exp64, log64
from gaian_hpc.points.store import activate, deactivate


def attribute(activation):
    return Attribute("x", (2,), None, LearningRate(0.1), activation)


def test_exponentials_and_logarithms_are_those_of_float64():
    x = np.concatenate([np.linspace(-700, 700, 4001), np.linspace(-1, 1, 999), [0.0, -1e-300, 1e-17]])
    assert np.allclose([exp64(v) for v in x], np.exp(x), rtol=1e-15, atol=0)
    y = np.concatenate([np.exp(np.linspace(-80, 80, 4001)), np.linspace(0.5, 2, 1000), [1 - 1e-12, 1 + 1e-12]])
    assert np.allclose([log64(v) for v in y], np.log(y), rtol=1e-15, atol=1e-17)


def test_activations_are_the_float32_nearest_to_the_float64_value_and_keep_the_shape():
    raw = np.random.default_rng(0).normal(scale=5, size=(1000, 2)).astype(np.float32)
    wide = raw.astype(np.float64)
    assert np.array_equal(activate(attribute("exp"), raw), np.exp(wide).astype(np.float32))
    assert np.array_equal(activate(attribute("sigmoid"), raw), (1 / (1 + np.exp(-wide))).astype(np.float32))
    assert activate(attribute("identity"), raw) is raw


def test_extreme_and_undefined_stored_values_go_to_the_ends_of_the_range_and_stay_undefined():
    raw = np.array([-np.inf, -1000, 1000, np.inf, np.nan], np.float32)
    assert np.array_equal(activate(attribute("exp"), raw), [0, 0, np.inf, np.inf, np.nan], equal_nan=True)
    assert np.array_equal(activate(attribute("sigmoid"), raw), [0, 0, 1, 1, np.nan], equal_nan=True)


@pytest.mark.parametrize("activation", ["identity", "exp", "sigmoid"])
def test_deactivated_values_activate_to_themselves(activation):
    value = np.random.default_rng(0).uniform(0.001, 0.999, (500, 2))
    assert np.allclose(activate(attribute(activation), deactivate(attribute(activation), value)), value, rtol=1e-6)


def test_the_bits_of_a_value_do_not_depend_on_its_neighbours():
    raw = np.random.default_rng(0).normal(size=(997, 2)).astype(np.float32)
    for activation in ("exp", "sigmoid"):
        whole = activate(attribute(activation), raw)
        for rows in (slice(0, 1), slice(3, 14), slice(5, 900, 7)):
            assert activate(attribute(activation), raw[rows]).tobytes() == np.ascontiguousarray(whole[rows]).tobytes()
