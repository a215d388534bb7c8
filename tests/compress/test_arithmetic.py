"""Quantisation itself: the error bounds, NaN and infinity, and that both implementations give the same bits."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxring.compress import native, portable
from jaxring.compress.formats import FORMATS
from jaxring.compress.native import Own, Rounding, Rows
from tests.compress.bounds import NAMES, data, once, with_others

ROUNDINGS = {"nearest": Rounding(False), "stochastic": Rounding(True, 5)}
# XLA's code flushes these to zero on CPUs.
FLUSHED = ("subnormal", "least", "mixed")
KEY = np.array([7, 3, 1], np.uint32)


@functools.cache
def _functions(name, rows, rounding, of):
    form = FORMATS[name]
    return (
        jax.jit(lambda x, key: of.quantize(form, x, key, rows, rounding)),
        jax.jit(lambda codes: of.dequantize(form, codes, KEY, rows)),
    )


def there_and_back(name, x, rounding, of=native):
    rows = Rows(1, x.size, x.size)
    quantize, dequantize = _functions(name, rows, rounding, of)
    return np.asarray(dequantize(quantize(x, KEY)))


@pytest.mark.parametrize("rounding", ROUNDINGS.values(), ids=ROUNDINGS)
@pytest.mark.parametrize("name", NAMES)
def test_the_error_stays_within_the_bound(name, rounding):
    for kind, x in data(1000).items():
        if name == "bf16" and kind == "largest":
            continue  # rounds to infinity, as a cast does
        y = there_and_back(name, x, rounding)
        error = np.abs(y.astype(np.float64) - x)
        assert np.all(error <= once(name, x, rounding.stochastic)), kind


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(2)
@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=130, max_size=130))
def test_the_error_stays_within_the_bound_for_any_floats(name, values):
    x = np.array(values, np.float32)
    y = there_and_back(name, x, ROUNDINGS["nearest"])
    fine = np.isfinite(y)  # bfloat16's largest is less than float32's
    assert np.all(fine) or name == "bf16"
    assert np.all((np.abs(y.astype(np.float64) - x) <= once(name, x, False))[fine])


@pytest.mark.parametrize("rounding", ROUNDINGS.values(), ids=ROUNDINGS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["normal", "heavy", "sparse", "zeros"])
def test_nan_and_infinity_stay_where_they_are(name, rounding, kind):
    x = with_others(data(1000)[kind])
    y = there_and_back(name, x, rounding)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(x))
    np.testing.assert_array_equal(np.isposinf(y), np.isposinf(x))
    np.testing.assert_array_equal(np.isneginf(y), np.isneginf(x))
    fine = np.isfinite(x)
    bound = once(name, x, rounding.stochastic)
    assert np.all(np.abs(y[fine].astype(np.float64) - x[fine]) <= bound[fine])


@pytest.mark.parametrize("rounding", ROUNDINGS.values(), ids=ROUNDINGS)
@pytest.mark.parametrize("own", Own)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(5)
def test_both_implementations_give_the_same_bits(name, own, rounding):
    rows = Rows(3, 2000, 5500, own)  # the last row is short, and so are the last blocks
    # By a mean over 4: with others XLA computes a mean and what its codes leave out with one rounding.
    form = FORMATS[name]

    def everything(of, x):
        codes, left = of.quantize(form, x, KEY, rows, rounding, feedback=True)
        total = of.sum_rows(form, codes, KEY, rows, x, 0)
        if own is Own.ENCODED:
            return codes, left, total, of.dequantize(form, codes, KEY, rows)
        again, mine, lost = of.sum_quantized(form, codes, KEY, rows, x, 4, rounding, feedback=True)
        whole = of.dequantize(form, codes, KEY, rows, mine)
        if own is Own.SKIPPED:  # its bytes can be any
            codes = codes.at[KEY[2]].set(0)
        return codes, left, total, again, lost, whole

    both = [jax.jit(functools.partial(everything, of)) for of in (native, portable)]
    for kind, x in data(5500).items():
        if kind in FLUSHED:
            continue
        for values in (x, with_others(x)):
            for ours, theirs in zip(*(f(values) for f in both), strict=True):
                assert ours.dtype == theirs.dtype
                # A NaN may have either sign.
                np.testing.assert_array_equal(ours, theirs, err_msg=kind)


@pytest.mark.parametrize("name", NAMES)
def test_random_rounding_is_right_on_average_and_repeats(name):
    x = np.linspace(-1, 1, 128, dtype=np.float32) * 0.77
    x[0] = 1
    many = np.tile(x, 4096)
    y = there_and_back(name, many, Rounding(True)).reshape(-1, 128)
    assert len(np.unique(y[:, 7])) == 2
    step = once(name, x, True)
    # The mean of 4096 values that differ by at most a step.
    assert np.all(np.abs(y.astype(np.float64).mean(axis=0) - x) < 5 * step / 64)
    np.testing.assert_array_equal(y, there_and_back(name, many, Rounding(True)).reshape(-1, 128))
    assert np.any(y != there_and_back(name, many, Rounding(True, 1 << 32)).reshape(-1, 128))


def test_what_is_left_out_is_the_difference():
    x = data(300)["normal"]
    rows = Rows(1, 300, 300)
    codes, left = native.quantize(FORMATS["int4"], x, KEY, rows, Rounding(False), feedback=True)
    np.testing.assert_array_equal(
        np.asarray(left), x - np.asarray(native.dequantize(FORMATS["int4"], codes, KEY, rows))
    )


@pytest.mark.parametrize("own", [-1, 3])
def test_what_another_version_says_of_the_own_row_is_refused(own):
    x = np.zeros(128, np.float32)
    with pytest.raises(jax.errors.JaxRuntimeError, match="lowered by another version"):
        native.quantize(FORMATS["int8"], x, KEY, Rows(2, 64, 128, own), ROUNDINGS["nearest"])
