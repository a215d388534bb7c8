"""The arithmetic of compressed collectives on CPUs: custom calls of ffi/xla/quantize_handlers.cc.

`jaxring.compress.portable` has functions of the same names for other platforms. All take and give float32; ``key`` is
uint32[3]: the seed, the number of the rank's random bits, and the row of the rank itself.
"""

from __future__ import annotations

import dataclasses
import enum
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


class Own(enum.IntEnum):
    """What becomes of the row of the rank itself; the numbers are those of ffi/xla/quantize_handlers.cc.

    It has codes as the others; or none, in its place in the array of codes; or that array has no place for it.
    """

    ENCODED = 0
    SKIPPED = 1
    LEFT_OUT = 2


@dataclasses.dataclass(frozen=True)
class Rows:
    """A flat array of ``count`` elements, as ``rows`` rows of ``row_elements``; zeros fill up the last ones."""

    rows: int
    row_elements: int
    count: int
    own: Own = Own.ENCODED

    @property
    def encoded(self) -> int:
        """Rows that an array of codes has a place for."""
        return self.rows - (self.own is Own.LEFT_OUT)

    def attributes(self) -> dict[str, np.int64]:
        """As the handlers read them."""
        return {field.name: np.int64(getattr(self, field.name)) for field in dataclasses.fields(self)}


def _type(shape: tuple[int, ...], dtype: Any) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]


def quantize(form: Format, x: Any, key: Any, rows: Rows, rounding: Rounding, *, feedback: bool = False) -> Any:
    """Codes, uint8[rows, bytes], of ``x``, and with ``feedback`` what they leave out, float32[count].

    The bytes of a row that is skipped can be any; what is left out of it is 0.
    """
    results = [_type((rows.encoded, form.row_bytes(rows.row_elements)), jnp.uint8)]
    if feedback:
        results.append(_type((rows.count,), jnp.float32))
    found = jax.ffi.ffi_call(QUANTIZE, results)(
        x,
        key,
        format=np.int64(form.number),
        **rows.attributes(),
        stochastic=rounding.stochastic,
        first_word=np.int64(rounding.first_word),
    )
    return tuple(found) if feedback else found[0]


def _sum(form: Format, codes: Any, key: Any, rows: Rows, x: Any, divisor: int, rounding: Rounding, results: Any) -> Any:
    call: Any = jax.ffi.ffi_call(SUM_QUANTIZED, results)
    return call(
        codes,
        key,
        *(() if rows.own is Own.ENCODED else (x,)),
        format=np.int64(form.number),
        **rows.attributes(),
        divisor=np.int64(divisor),
        stochastic=rounding.stochastic,
        first_word=np.int64(rounding.first_word),
    )


def sum_rows(form: Format, codes: Any, key: Any, rows: Rows, x: Any, divisor: int) -> Any:
    """The sum over the rows, float32[row_elements]; times 1 / ``divisor`` unless that is 0.

    Where ``rows`` has a row without codes, its values are those of ``x``, which has this rank's rows.
    """
    results = [_type((rows.row_elements,), jnp.float32)]
    return _sum(form, codes, key, rows, x, divisor, Rounding(False), results)[0]


def sum_quantized(
    form: Format,
    codes: Any,
    key: Any,
    rows: Rows,
    x: Any,
    divisor: int,
    rounding: Rounding,
    *,
    feedback: bool = False,
) -> Any:
    """The same, quantised again: uint8[bytes].

    Then float32[count] for `dequantize` to complete: the values of these codes are in this rank's row, and any others
    elsewhere. With ``feedback`` also what the codes leave out, float32[row_elements]. ``rows`` must have a row without
    codes.
    """
    results = [_type((form.row_bytes(rows.row_elements),), jnp.uint8), _type((rows.count,), jnp.float32)]
    if feedback:
        results.append(_type((rows.row_elements,), jnp.float32))
    return tuple(_sum(form, codes, key, rows, x, divisor, rounding, results))


def dequantize(form: Format, codes: Any, key: Any, rows: Rows, onto: Any = None) -> Any:
    """The values of ``codes``, float32[count].

    Where ``rows`` has a row without codes, or whose codes are not wanted, its values are those of ``onto``.
    """
    operands, aliases = ((codes, key), None) if onto is None else ((codes, key, onto), {2: 0})
    call: Any = jax.ffi.ffi_call(DEQUANTIZE, _type((rows.count,), jnp.float32), input_output_aliases=aliases)
    return call(*operands, format=np.int64(form.number), **rows.attributes())
