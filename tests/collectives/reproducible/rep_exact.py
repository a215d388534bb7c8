"""The exactly rounded sum by Python's fractions, and terms whose sums are hard to get right."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np

# The dtypes of reproducible sums: the unsigned integer of their bits, those of the mantissa, and those of the exponent.
FORMATS = {
    "float64": (np.uint64, 52, 11),
    "float32": (np.uint32, 23, 8),
    "bfloat16": (np.uint16, 7, 8),
    "float16": (np.uint16, 10, 5),
}


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name, name))


def bits(x):
    """The bits of an array, so that NaN equals NaN and -0 is not +0."""
    return np.ascontiguousarray(x).view(FORMATS[x.dtype.name][0])


def rounded(exact, name):
    """A fraction's bits in the format, rounded to nearest even; zero is +0."""
    _, mantissa, exponent = FORMATS[name]
    bias = 2 ** (exponent - 1) - 1
    sign = (exact < 0) << (mantissa + exponent)
    exact = abs(exact)
    if exact == 0:
        return 0
    place = exact.numerator.bit_length() - exact.denominator.bit_length()
    place -= Fraction(2) ** place > exact
    place = max(place, 1 - bias)
    count = round(exact / Fraction(2) ** (place - mantissa))  # to nearest even
    return sign | min(((place + bias - 1) << mantissa) + count, (2**exponent - 1) << mantissa)


def exact_sum(terms, name):
    """The bits of the sum of an array of terms, as docs/concepts/reproducible.md defines it."""
    _, mantissa, exponent = FORMATS[name]
    infinity = (2**exponent - 1) << mantissa
    values = [float(term) for term in terms]
    infinities = {value for value in values if math.isinf(value)}
    if any(math.isnan(value) for value in values) or len(infinities) == 2:
        return infinity | 1 << (mantissa - 1)
    if infinities:
        return infinity | (infinities.pop() < 0) << (mantissa + exponent)
    total = sum(map(Fraction, values))
    negative_zero = total == 0 and values and all(math.copysign(1, v) < 0 and v == 0 for v in values)
    return 1 << (mantissa + exponent) if negative_zero else rounded(total, name)


def terms(rng, name, count, cases):
    """``(count, cases)`` terms of a dtype. Each column is drawn in one of several ways."""
    unsigned, mantissa, exponent = FORMATS[name]
    top = 2**exponent - 1
    columns = [_column(rng, unsigned, mantissa, top, count, rng.integers(9)) for _ in range(cases)]
    return np.stack(columns, 1).view(dtype_of(name))


def _column(rng, unsigned, mantissa, top, count, kind):
    """The bits of one case's terms."""
    exponent = {
        0: lambda: rng.integers(0, top, count),  # everything that is finite
        1: lambda: np.full(count, rng.integers(1, top)),  # alike
        2: lambda: np.zeros(count, int),  # subnormal numbers
        3: lambda: rng.integers(top - 3, top, count),  # sums that overflow on the way, or in the end
        4: lambda: np.clip(rng.integers(1, top) + rng.integers(-mantissa - 2, mantissa + 3, count), 0, top - 1),
        5: lambda: rng.integers(0, 3, count),
    }.get(kind, lambda: rng.integers(0, top, count))()
    fraction = rng.integers(0, 2**mantissa, count)
    if kind in (4, 5):
        fraction &= rng.integers(0, 2**mantissa, count) & rng.integers(0, 2**mantissa, count)  # ties
    sign = rng.integers(0, 2, count)
    code = ((sign << (len_of(unsigned) - 1)) | (exponent << mantissa) | fraction).astype(np.int64).view(np.uint64)
    if kind == 6:  # zeros of either sign or of both
        code = (sign if rng.integers(2) else np.ones(count, int)).astype(np.uint64) << np.uint64(len_of(unsigned) - 1)
    if kind == 7:  # all cancels but one term
        half = count // 2
        code[half : 2 * half] = code[:half] ^ (np.uint64(1) << np.uint64(len_of(unsigned) - 1))
        rng.shuffle(code)
    if kind == 8:  # infinities, sometimes NaN
        where = rng.integers(0, count, 2)
        code[where] = (sign[where].astype(np.uint64) << np.uint64(len_of(unsigned) - 1)) | np.uint64(top << mantissa)
        code[where[0]] |= np.uint64(rng.integers(0, 4) == 0)
    return code.astype(unsigned)


def len_of(unsigned):
    """The bits of an unsigned type."""
    return 8 * np.dtype(unsigned).itemsize
