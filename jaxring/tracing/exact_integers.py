"""Exact sums as integers in JAX's own operations: what the CPU engine's handlers compute (ffi/reduce/fixed_point.h).

A sum is an integer in units of the least subnormal number, in two's complement, in digits of `WIDTH` bits, with two
words of counts behind. Words of several sums may be added, fewer than 2^16 of them. All operations are on integers,
since XLA may flush subnormal floats to zero.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

WIDTH = 16
_MASK = 0xFFFF
# Terms whose digits fit an int32: larger counts are added in parts.
_MOST_TERMS = 1 << 14


@dataclasses.dataclass(frozen=True)
class _Format:
    """An IEEE 754 format: bits of the mantissa and the exponent, and the unsigned integers of elements and sums."""

    mantissa: int
    exponent: int
    bits: Any
    wide: Any

    @property
    def digits(self) -> int:
        """As many as 32-bit digits cover all values, the number of terms, and the sign."""
        return 2 * (((1 << self.exponent) + self.mantissa - 2 + 64 + 31) // 32)

    @property
    def lowest(self) -> int:
        """The exponent of the unit."""
        return 2 - (1 << (self.exponent - 1)) - self.mantissa


_FORMATS = {
    "float16": _Format(10, 5, jnp.uint16, jnp.uint32),
    "bfloat16": _Format(7, 8, jnp.uint16, jnp.uint32),
    "float32": _Format(23, 8, jnp.uint32, jnp.uint32),
    "float64": _Format(52, 11, jnp.uint64, jnp.uint64),
}


def give(terms: Any) -> Any:
    """The words ``[outer, words, inner]`` of the sums over the middle dimension of ``[outer, count, inner]`` terms."""
    outer, count, inner = terms.shape
    if count > _MOST_TERMS:
        # -0 changes no sum, not even one of zeros.
        parts = -(-count // _MOST_TERMS)
        filled = jnp.pad(terms, ((0, 0), (0, parts * _MOST_TERMS - count), (0, 0)), constant_values=-0.0)
        words = give(filled.reshape(outer * parts, _MOST_TERMS, inner))
        return _added(words.reshape(outer, parts, -1, inner))
    form = _FORMATS[terms.dtype.name]
    bits = jax.lax.bitcast_convert_type(terms, form.bits).astype(form.wide)
    top = (1 << form.exponent) - 1
    negative = (bits >> (form.mantissa + form.exponent)) > 0
    exponent = ((bits >> form.mantissa) & top).astype(jnp.int32)
    fraction = bits & ((1 << form.mantissa) - 1)
    special = exponent == top
    implicit = jnp.where(exponent > 0, form.wide(1 << form.mantissa), form.wide(0))
    mantissa = jnp.where(special, form.wide(0), fraction | implicit)
    place = jnp.maximum(exponent, 1) - 1

    def digit(number: Any) -> Any:
        """The 16 bits that all terms have at this place, with the sign."""
        shift = place - WIDTH * number
        up = mantissa << jnp.clip(shift, 0, WIDTH - 1).astype(form.wide)
        down = mantissa >> jnp.clip(-shift, 0, form.mantissa + 1).astype(form.wide)
        found = jnp.where(shift >= WIDTH, form.wide(0), jnp.where(shift >= 0, up, down) & _MASK).astype(jnp.int32)
        return jnp.sum(jnp.where(negative, -found, found), axis=1, dtype=jnp.int32)

    sums = jax.lax.map(digit, jnp.arange(form.digits, dtype=jnp.int32))

    def carry(carried: Any, number: Any) -> tuple[Any, Any]:
        number = number + carried
        return number >> WIDTH, (number & _MASK).astype(jnp.uint32)

    words = jax.lax.scan(carry, jnp.zeros((outer, inner), jnp.int32), sums)[1]

    def some(here: Any) -> Any:
        return jnp.any(here, axis=1).astype(jnp.uint32)

    infinite = special & (fraction == 0)
    first = some(special & (fraction != 0)) | some(infinite & ~negative) << 16
    # The upper half counts anything but -0, specials left out.
    second = some(infinite & negative) | some(~special & (~negative | (exponent != 0) | (fraction != 0))) << 16
    return jnp.moveaxis(jnp.concatenate([words, first[None], second[None]]), 0, 1)


def _added(words: Any) -> Any:
    """``[outer, parts, words, inner]`` of several sums as the words ``[outer, words, inner]`` of one."""
    outer, parts, _, inner = words.shape
    if parts > _MOST_TERMS:
        groups = -(-parts // _MOST_TERMS)
        filled = jnp.pad(words, ((0, 0), (0, groups * _MOST_TERMS - parts), (0, 0), (0, 0)))
        several = _added(filled.reshape(outer * groups, _MOST_TERMS, -1, inner))
        return _added(several.reshape(outer, groups, -1, inner))
    total = jnp.sum(words, 1, dtype=jnp.uint32)
    digits, _ = _carried(total[:, :-2])
    counts = total[:, -2:]
    ones = (counts & _MASK > 0).astype(jnp.uint32) | (counts >> 16 > 0).astype(jnp.uint32) << 16
    return jnp.concatenate([digits, ones], axis=1)


def _carried(digits: Any, first: Any = 0) -> tuple[Any, Any]:
    """``[outer, digits, inner]`` with all digits below 2^16, where ``first`` is added to the lowest; and the carry."""

    def carry(carried: Any, digit: Any) -> tuple[Any, Any]:
        digit = digit + carried
        return digit >> WIDTH, digit & _MASK

    begin = jnp.zeros_like(digits[:, 0]) + jnp.asarray(first, jnp.uint32)
    carried, settled = jax.lax.scan(carry, begin, jnp.moveaxis(digits, 1, 0))
    return jnp.moveaxis(settled, 0, 1), carried


def rounded(words: Any, dtype: Any) -> Any:
    """The sums ``[outer, inner]`` of words, rounded to nearest even."""
    form = _FORMATS[jnp.dtype(dtype).name]
    digits, _ = _carried(words[:, :-2])
    negative = digits[:, -1] >> (WIDTH - 1) > 0
    flipped, _ = _carried(digits ^ _MASK, 1)
    digits = jnp.where(negative[:, None], flipped, digits)
    place = jnp.arange(form.digits, dtype=jnp.int32)[:, None]
    last = jnp.max(jnp.where(digits > 0, place, -1), axis=1)
    zero = last < 0

    def at(number: Any) -> Any:
        found = jnp.take_along_axis(digits, jnp.maximum(number, 0)[:, None], axis=1)[:, 0]
        return jnp.where(number < 0, jnp.uint32(0), found).astype(form.wide)

    size = 8 * jnp.dtype(form.wide).itemsize
    count = size // WIDTH  # digits in a window, whose leading bit is then shifted to the front
    window = form.wide(0)
    for i in range(count):
        window = window << WIDTH | at(last - i)
    zeros = jax.lax.clz(jnp.maximum(window, form.wide(1)))
    shift = jnp.minimum(zeros, form.wide(WIDTH - 1))
    next_digit = at(last - count)
    top = window << shift | next_digit >> (form.wide(WIDTH) - shift)
    left = (next_digit << shift) & _MASK
    more = (left > 0) | jnp.any((place[None] < (last - count)[:, None]) & (digits > 0), axis=1)
    exponent = form.lowest + WIDTH * last + WIDTH - 1 - shift.astype(jnp.int32)
    bias = (1 << (form.exponent - 1)) - 1
    leading = jnp.maximum(exponent, 1 - bias)
    drop = jnp.clip(size - 1 - form.mantissa + leading - exponent, 1, size - 1).astype(form.wide)
    kept, half = top >> drop, form.wide(1) << (drop - form.wide(1))
    rest = top & (half + (half - form.wide(1)))
    up = (rest > half) | ((rest == half) & (more | (kept & 1 > 0)))
    infinity = form.wide(((1 << form.exponent) - 1) << form.mantissa)
    sign = form.wide(1 << (form.mantissa + form.exponent))
    bits = ((leading + bias - 1).astype(form.wide) << form.mantissa) + kept + up.astype(form.wide)
    bits = jnp.where(exponent > bias, infinity, bits) | jnp.where(negative, sign, form.wide(0))
    first, second = words[:, -2], words[:, -1]
    bits = jnp.where(zero, jnp.where(second >> 16 > 0, form.wide(0), sign), bits)
    nan, plus, minus = first & _MASK > 0, first >> 16 > 0, second & _MASK > 0
    bits = jnp.where(plus, infinity, jnp.where(minus, infinity | sign, bits))
    bits = jnp.where(nan | (plus & minus), infinity | form.wide(1 << (form.mantissa - 1)), bits)
    return jax.lax.bitcast_convert_type(bits.astype(form.bits), dtype)
