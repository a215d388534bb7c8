"""Compressed collectives, composed of quantisation and of collectives on bytes.

An all-reduce is two-shot: each rank quantises its value, an all-to-all brings the parts of all ranks to the part's
owner, the owner sums them in float32 and quantises the sum, and an all-gather spreads it. Every rank decodes the same
bytes, the owner its own ones, too, so all get the same bits. A large value goes in pieces, so that the arithmetic of
one overlaps with the transfer of another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp

from jaxring.compress import native, portable
from jaxring.compress.formats import BLOCK
from jaxring.compress.native import Rounding, Rows
from jaxring.tracing.primitives import apply

if TYPE_CHECKING:
    from jaxring.compress.formats import Format
    from jaxring.tracing.axes import Axes
    from jaxring.tracing.options import Options

# Float32 bytes of a piece of an all-reduce, and the most pieces: docs/concepts/compression.md says what they cost.
PIECE_BYTES = 8 << 20
MOST_PIECES = 8


class Call(NamedTuple):
    """One compressed collective where it is lowered."""

    form: Format
    axes: Axes
    options: Options  # `op` is the whole's
    stochastic: bool
    first_word: int
    on_cpus: bool

    @property
    def arithmetic(self) -> Any:
        """The functions that compute codes."""
        return native if self.on_cpus else portable

    @property
    def divisor(self) -> int:
        """What a sum is divided by; 0: by nothing."""
        return self.axes.size if self.options.op == "mean" else 0

    def rounding(self, first_word: int = 0) -> Rounding:
        """That of the elements whose random bits begin at ``first_word``."""
        return Rounding(self.stochastic, self.first_word + first_word)

    def move(self, name: str, codes: Any) -> Any:
        """A collective on bytes."""
        return apply(name, codes, self.axes, self.options._replace(op=None))


def pieces(elements: int, ranks: int) -> list[Rows]:
    """The pieces of an all-reduce: each is a part for every rank, in whole blocks."""
    count = max(1, min(MOST_PIECES, 4 * elements // PIECE_BYTES))
    unit = ranks * BLOCK
    length = -(-elements // (count * unit)) * unit
    return [Rows(ranks, length // ranks, at, min(length, elements - at)) for at in range(0, elements, length)]


def all_reduce(call: Call, x: Any, key: Any) -> Any:
    """The reduction of ``x``, float32 of any shape, on all ranks."""
    flat = x.reshape(-1)
    result: Any = None
    for rows in pieces(flat.size, call.axes.size):
        word = rows.first // 4
        codes = call.arithmetic.quantize(call.form, flat, key, rows, call.rounding(word))
        parts = call.move("all_to_all", codes)
        total = call.arithmetic.sum_quantized(
            call.form, parts, key, rows.row_elements, call.divisor, call.rounding(word)
        )
        spread = call.move("all_gather", total)
        result = call.arithmetic.dequantize(call.form, spread, rows, flat.size, result)
    return jnp.reshape(result, x.shape)


def all_reduce_with_error(call: Call, x: Any, key: Any) -> tuple[Any, Any]:
    """The reduction, and what this rank should add to its next value to make up for what was left out of this one.

    That is what its own codes left out, and, of the part that it owns, what the codes of the sum left out.
    """
    flat, errors = x.reshape(-1), []
    result: Any = None
    for rows in pieces(flat.size, call.axes.size):
        word = rows.first // 4
        codes, error = call.arithmetic.quantize(call.form, flat, key, rows, call.rounding(word), feedback=True)
        parts = call.move("all_to_all", codes)
        total, lost = call.arithmetic.sum_quantized(
            call.form, parts, key, rows.row_elements, call.divisor, call.rounding(word), feedback=True
        )
        spread = call.move("all_gather", total)
        result = call.arithmetic.dequantize(call.form, spread, rows, flat.size, result)
        error = jnp.pad(error, (0, rows.rows * rows.row_elements - rows.count)).reshape(rows.rows, rows.row_elements)
        lost = lost * call.axes.size if call.divisor else lost
        owned = jnp.arange(rows.rows, dtype=jnp.uint32)[:, None] == key[1]
        errors.append(jnp.where(owned, error + lost, error).reshape(-1)[: rows.count])
    return jnp.reshape(result, x.shape), jnp.reshape(jnp.concatenate(errors), x.shape)


def _encoded(call: Call, x: Any, key: Any, rows: int) -> tuple[Any, Rows]:
    shape = Rows(rows, x.size // rows, 0, x.size)
    return call.arithmetic.quantize(call.form, x.reshape(-1), key, shape, call.rounding()), shape


def all_gather(call: Call, x: Any, key: Any) -> Any:
    """(ranks, *shape): the values of all ranks."""
    codes, _ = _encoded(call, x, key, 1)
    ranks = call.axes.size
    gathered = call.move("all_gather", codes[0])
    rows = Rows(ranks, x.size, 0, ranks * x.size)
    return call.arithmetic.dequantize(call.form, gathered, rows, rows.count).reshape(ranks, *x.shape)


def all_to_all(call: Call, x: Any, key: Any) -> Any:
    """``x`` has a block for each rank, and so has the result."""
    codes, rows = _encoded(call, x, key, call.axes.size)
    return call.arithmetic.dequantize(call.form, call.move("all_to_all", codes), rows, x.size).reshape(x.shape)


def reduce_scatter(call: Call, x: Any, key: Any) -> Any:
    """``x`` has a block for each rank; the result is the sum of the ranks' blocks for this one."""
    codes, rows = _encoded(call, x, key, call.axes.size)
    parts = call.move("all_to_all", codes)
    return call.arithmetic.sum_rows(call.form, parts, rows.row_elements, call.divisor).reshape(x.shape[1:])


STEPS = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "all_to_all": all_to_all,
    "reduce_scatter": reduce_scatter,
}
