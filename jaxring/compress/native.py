"""The arithmetic of compressed collectives on CPUs: custom calls of ffi/xla/quantize_handlers.cc.

`jaxring.compress.portable` has functions of the same names for other platforms. All take and give float32; ``key`` is
uint32[2], the seed and the rank.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxring.runtime.service import DEQUANTIZE, QUANTIZE, SUM_QUANTIZED

if TYPE_CHECKING:
    from jaxring.compress.formats import Format


class Rounding(NamedTuple):
    """To nearest even, or at random; the counter of the random bits of the first element."""

    stochastic: bool
    first_word: int = 0


@dataclasses.dataclass(frozen=True)
class Rows:
    """Elements [first, first + count) of a flat array, as ``rows`` rows of ``row_elements``; zeros fill up the last."""

    rows: int
    row_elements: int
    first: int
    count: int


def _type(shape: tuple[int, ...], dtype: Any) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]


def quantize(form: Format, x: Any, key: Any, rows: Rows, rounding: Rounding, *, feedback: bool = False) -> Any:
    """Codes, uint8[rows, bytes], of ``x``, and with ``feedback`` what they leave out, float32[count]."""
    results = [_type((rows.rows, form.row_bytes(rows.row_elements)), jnp.uint8)]
    if feedback:
        results.append(_type((rows.count,), jnp.float32))
    found = jax.ffi.ffi_call(QUANTIZE, results)(
        x,
        key,
        format=np.int64(form.number),
        rows=np.int64(rows.rows),
        row_elements=np.int64(rows.row_elements),
        first=np.int64(rows.first),
        count=np.int64(rows.count),
        stochastic=rounding.stochastic,
        first_word=np.int64(rounding.first_word),
    )
    return tuple(found) if feedback else found[0]


def _sum(form: Format, codes: Any, key: Any, elements: int, divisor: int, rounding: Rounding, results: Any) -> Any:
    call: Any = jax.ffi.ffi_call(SUM_QUANTIZED, results)
    return call(
        codes,
        key,
        format=np.int64(form.number),
        rows=np.int64(codes.shape[0]),
        row_elements=np.int64(elements),
        divisor=np.int64(divisor),
        stochastic=rounding.stochastic,
        first_word=np.int64(rounding.first_word),
    )


def sum_rows(form: Format, codes: Any, elements: int, divisor: int) -> Any:
    """The sum over the rows, float32[elements]; times 1 / ``divisor`` unless that is 0."""
    key = jnp.zeros(2, jnp.uint32)
    return _sum(form, codes, key, elements, divisor, Rounding(False), [_type((elements,), jnp.float32)])[0]


def sum_quantized(
    form: Format, codes: Any, key: Any, elements: int, divisor: int, rounding: Rounding, *, feedback: bool = False
) -> Any:
    """The same, quantised again: uint8[bytes], and with ``feedback`` what that leaves out, float32[elements]."""
    results = [_type((form.row_bytes(elements),), jnp.uint8)]
    if feedback:
        results.append(_type((elements,), jnp.float32))
    found = _sum(form, codes, key, elements, divisor, rounding, results)
    return tuple(found) if feedback else found[0]


def dequantize(form: Format, codes: Any, rows: Rows, elements: int, onto: Any = None) -> Any:
    """float32[elements] with the values of ``codes`` in their place, and with those of ``onto`` elsewhere."""
    operands = [codes] if onto is None else [codes, onto]
    aliases = None if onto is None else {1: 0}
    call: Any = jax.ffi.ffi_call(DEQUANTIZE, _type((elements,), jnp.float32), input_output_aliases=aliases)
    return call(
        *operands,
        format=np.int64(form.number),
        rows=np.int64(rows.rows),
        row_elements=np.int64(rows.row_elements),
        first=np.int64(rows.first),
        count=np.int64(rows.count),
    )
