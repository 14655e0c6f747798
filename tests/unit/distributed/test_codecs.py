"""Codecs: fp32 is exact, the others lose what their digits say and no more, and feedback gives it back in time."""

import numpy as np
import pytest

from gaian_hpc.arrays import Field
from gaian_hpc.distributed.codecs import (
    BLOCK,
    CODECS,
    Feedback,
    codec_of,
    decode,
    encode,
    encoded_bytes,
    parse_overrides,
)
from gaian_hpc.errors import ExchangeError, SettingsError

RELATIVE = {"fp32": 0.0, "fp16": 2.0**-11, "bf16": 2.0**-8}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("n, shape", [(0, (3,)), (1, ()), (7, (2,)), (200, (3,))])
def test_as_many_bytes_are_sent_as_announced_and_the_shape_returns(codec, n, shape):
    values = np.random.default_rng(0).standard_normal((n, *shape)).astype(np.float32)
    data = encode(values, codec)
    assert data.dtype == np.uint8 and len(data) == encoded_bytes(values.size, codec)
    back = decode(data, n, shape, codec)
    assert back.shape == values.shape and back.dtype == np.float32


@pytest.mark.parametrize("codec", RELATIVE)
@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_floats_keep_the_digits_of_their_form_at_any_scale(codec, scale):
    values = (scale * np.random.default_rng(1).uniform(0.1, 1, 1000)).astype(np.float32)
    back = decode(encode(values, codec), 1000, (), codec)
    assert (np.abs(back - values) <= RELATIVE[codec] * values).all()


def test_fp32_keeps_every_bit():
    values = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3.4e38], np.float32)
    assert decode(encode(values, "fp32"), 7, (), "fp32").tobytes() == values.tobytes()


def test_bf16_rounds_ties_to_even_and_keeps_the_sign_of_zero():
    bits = np.array([0x3F800000, 0x3F808000, 0x3F818000, 0x3F808001, 0x80000000], np.uint32)
    back = decode(encode(bits.view(np.float32), "bf16"), 5, (), "bf16").view(np.uint32)
    assert [hex(b) for b in back] == ["0x3f800000", "0x3f800000", "0x3f820000", "0x3f810000", "0x80000000"]


def test_int8_errs_by_half_a_step_of_its_block():
    values = np.random.default_rng(2).standard_normal(10 * BLOCK + 5).astype(np.float32)
    values[:BLOCK] *= 1000
    back = decode(encode(values, "int8"), len(values), (), "int8")
    for first in range(0, len(values), BLOCK):
        block = values[first:first + BLOCK]
        assert np.abs(back[first:first + BLOCK] - block).max() <= 0.501 * np.abs(block).max() / 127
    assert not decode(encode(np.zeros(5, np.float32), "int8"), 5, (), "int8").any()


@pytest.mark.parametrize("codec", ["fp16", "bf16", "int8"])
def test_values_that_are_not_finite_are_not_shortened(codec):
    with pytest.raises(ExchangeError, match=f"sent as {codec} is nan"):
        encode(np.array([1, np.nan], np.float32), codec)


def test_a_field_is_sent_no_shorter_than_its_method_allows():
    wanted = {t: [codec_of(Field("x", (), t), c) for c in CODECS] for t in CODECS}
    assert wanted == {"fp32": ["fp32"] * 4, "fp16": ["fp32", "fp16", "bf16", "fp16"],
                      "bf16": ["fp32", "fp16", "bf16", "bf16"], "int8": list(CODECS)}


def test_feedback_makes_the_sum_of_many_messages_exact_to_one_rounding():
    rng, feedback = np.random.default_rng(3), Feedback((3,))
    ids = np.arange(40) * 3
    truth, plain, fed = (np.zeros((40, 3)) for _ in range(3))
    for _ in range(50):
        chosen = np.sort(rng.permutation(40)[:20])
        values = rng.standard_normal((20, 3)).astype(np.float32) + np.float32(0.013)
        truth[chosen] += values
        plain[chosen] += decode(encode(values, "int8"), 20, (3,), "int8")
        given = feedback.add(ids[chosen], values)
        sent = decode(encode(given, "int8"), 20, (3,), "int8")
        feedback.keep(ids[chosen], given - sent)
        fed[chosen] += sent
    step = 5.0 / 127
    assert np.abs(fed - truth).max() < step < np.abs(plain - truth).max() * 2
    assert np.abs(fed - truth).mean() < 0.5 * np.abs(plain - truth).mean()


def test_feedback_of_an_id_sent_twice_adds_up_and_is_given_once():
    feedback = Feedback(())
    feedback.keep(np.array([7, 2, 7]), np.array([1, 5, 2], np.float32))
    assert feedback.ids.tolist() == [2, 7] and feedback.residuals.tolist() == [5, 3]
    assert feedback.add(np.array([7, 7, 9]), np.zeros(3, np.float32)).tolist() == [3, 0, 0]
    assert feedback.ids.tolist() == [2]


def test_overrides_name_fields_and_codecs():
    assert parse_overrides("colors=int8, means2d=fp32") == {"colors": "int8", "means2d": "fp32"}
    with pytest.raises(SettingsError, match=r"exchange\.fields has 'colors=int4'; it must be FIELD=CODEC"):
        parse_overrides("colors=int4")
