"""Compressed collectives, composed of quantisation and of collectives on bytes.

An all-reduce is two-shot: each rank quantises the parts of its value that others own, an all-to-all brings the parts to
their owners, the owner of a part sums the others' codes and its own values in float32 and quantises the sum, and an
all-gather spreads it. Every rank decodes the same bytes, the owner its own ones, too, as it makes them, so all get the
same bits.

Two ranks exchange codes by a permutation: what a rank would send to itself is not even copied. On CPUs an all-reduce
of two ranks is one collective in place of all of this (`jaxring.compress.coded`).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp

from jaxring.compress import native, portable
from jaxring.compress.formats import BLOCK
from jaxring.compress.native import Own, Rounding, Rows
from jaxring.tracing.primitives import apply

if TYPE_CHECKING:
    from jaxring.compress.formats import Format
    from jaxring.tracing.axes import Axes
    from jaxring.tracing.options import Options


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

    @property
    def rounding(self) -> Rounding:
        """How codes are made."""
        return Rounding(self.stochastic, self.first_word)

    def without_own(self, rows: Rows) -> Rows:
        """``rows`` of an array whose part of this rank stays with it."""
        return dataclasses.replace(rows, own=Own.LEFT_OUT if self.axes.size == 2 else Own.SKIPPED)

    def move(self, name: str, codes: Any) -> Any:
        """A collective on bytes."""
        return apply(name, codes, self.axes, self.options._replace(op=None))

    def to_owners(self, codes: Any) -> Any:
        """The rows of all ranks for this one's part, of codes that are `without_own`."""
        return self._swap(codes) if self.axes.size == 2 else self.move("all_to_all", codes)

    def spread(self, total: Any) -> Any:
        """The codes of all parts, as `without_own` has them."""
        return self._swap(total) if self.axes.size == 2 else self.move("all_gather", total)

    def _swap(self, codes: Any) -> Any:
        """What the other of two ranks has."""
        groups = self.axes.groups or ((0, 1),)
        pairs = tuple(pair for first, second in groups for pair in ((first, second), (second, first)))
        whole = self.axes.over(self.axes.names)
        return apply("permute", codes, whole, self.options._replace(op=None, perm=pairs))


def _parts(call: Call, elements: int) -> Rows:
    """A part for each rank to own, in whole blocks, of which it needs no codes itself."""
    ranks = call.axes.size
    blocks = -(-elements // (ranks * BLOCK))
    return call.without_own(Rows(ranks, blocks * BLOCK, elements))


def all_reduce(call: Call, x: Any, key: Any) -> Any:
    """The reduction of ``x``, float32 of any shape, on all ranks."""
    flat = x.reshape(-1)
    rows = _parts(call, flat.size)
    parts = call.to_owners(call.arithmetic.quantize(call.form, flat, key, rows, call.rounding))
    total, mine = call.arithmetic.sum_quantized(call.form, parts, key, rows, flat, call.divisor, call.rounding)
    return call.arithmetic.dequantize(call.form, call.spread(total), key, rows, mine).reshape(x.shape)


def all_reduce_with_error(call: Call, x: Any, key: Any) -> tuple[Any, Any]:
    """The reduction, and what this rank should add to its next value to make up for what was left out of this one.

    That is what its codes left out of the parts of others, and what the codes of the sum left out of its own.
    """
    flat = x.reshape(-1)
    rows = _parts(call, flat.size)
    codes, error = call.arithmetic.quantize(call.form, flat, key, rows, call.rounding, feedback=True)
    total, mine, lost = call.arithmetic.sum_quantized(
        call.form, call.to_owners(codes), key, rows, flat, call.divisor, call.rounding, feedback=True
    )
    error = jnp.pad(error, (0, rows.rows * rows.row_elements - rows.count)).reshape(rows.rows, rows.row_elements)
    lost = lost * call.axes.size if call.divisor else lost
    owned = jnp.arange(rows.rows, dtype=jnp.uint32)[:, None] == key[2]
    error = jnp.where(owned, lost, error).reshape(-1)[: rows.count]
    whole = call.arithmetic.dequantize(call.form, call.spread(total), key, rows, mine)
    return whole.reshape(x.shape), error.reshape(x.shape)


def _encoded(call: Call, x: Any, key: Any, rows: Rows) -> Any:
    return call.arithmetic.quantize(call.form, x.reshape(-1), key, rows, call.rounding)


def all_gather(call: Call, x: Any, key: Any) -> Any:
    """(ranks, *shape): the values of all ranks."""
    codes = _encoded(call, x, key, Rows(1, x.size, x.size))
    ranks = call.axes.size
    gathered = call.move("all_gather", codes[0])
    rows = Rows(ranks, x.size, ranks * x.size)
    return call.arithmetic.dequantize(call.form, gathered, key, rows).reshape(ranks, *x.shape)


def _blocks(call: Call, x: Any) -> Rows:
    return Rows(call.axes.size, x.size // call.axes.size, x.size)


def all_to_all(call: Call, x: Any, key: Any) -> Any:
    """``x`` has a block for each rank, and so has the result."""
    rows = _blocks(call, x)
    moved = call.move("all_to_all", _encoded(call, x, key, rows))
    return call.arithmetic.dequantize(call.form, moved, key, rows).reshape(x.shape)


def reduce_scatter(call: Call, x: Any, key: Any) -> Any:
    """``x`` has a block for each rank; the result is the sum of the ranks' blocks for this one."""
    rows = call.without_own(_blocks(call, x))
    parts = call.to_owners(_encoded(call, x, key, rows))
    return call.arithmetic.sum_rows(call.form, parts, key, rows, x.reshape(-1), call.divisor).reshape(x.shape[1:])


STEPS = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "all_to_all": all_to_all,
    "reduce_scatter": reduce_scatter,
}
