"""The transpose of ragged_all_to_all: rows go back to where they were taken, and what comes back to one row is added.

A row that went to several ranks comes back from each of them. The parts of one exchange must land apart, so parts that
overlap come back in different rounds. Each rank assigns its parts to as few rounds as the deepest overlap needs: one
where no row went twice. How many rounds the ranks of a group make, the largest number of any of them, is known when the
program runs. This takes memory for one part of each row, where receiving all parts at once takes it for one per rank.

The sum is in the order of the rounds, which the offsets and sizes alone decide.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import mlir

from jaxring import _compat
from jaxring.plan import dtypes
from jaxring.tracing.p2p_primitives import ragged_p
from jaxring.tracing.primitives import apply, define, lower

if TYPE_CHECKING:
    from jaxring.tracing.axes import Axes
    from jaxring.tracing.options import Options

# Operands: the rows that go back, and input_offsets, send_sizes, where each rank's part landed here, and recv_sizes.
ragged_sum_p = Primitive("jaxring_ragged_sum")


def rounds(starts: Any, sizes: Any) -> tuple[Any, Any]:
    """Returns the round in which each part ``[start, start + size)`` comes back, and how many rounds that takes.

    The parts of a round are disjoint. The parts are taken in the order of their starts, and each takes the round of the
    part that ended first of those whose round is free, so its round is at the other end of a chain of such parts.
    """
    count = starts.shape[0]
    place = jnp.arange(count, dtype=starts.dtype)
    # Empty parts lie behind all others, and apart.
    begins = jnp.where(sizes > 0, starts, jnp.max(starts + sizes) + 2 * place)
    ends = jnp.where(sizes > 0, starts + sizes, begins + 1)
    order, by_end = jnp.argsort(begins), jnp.argsort(ends)
    ended = jnp.searchsorted(ends[by_end], begins[order], side="right").astype(starts.dtype)
    depth = jnp.max(place + 1 - ended)
    position = jnp.zeros_like(place).at[order].set(place)
    former = jnp.where(place < depth, place, position[by_end][jnp.maximum(place - depth, 0)])
    for _ in range(math.ceil(math.log2(count))):
        former = former[former]
    return jnp.zeros_like(place).at[order].set(former), depth


def _sum(ct: Any, starts: Any, sent: Any, lands: Any, came: Any, *, rows: int, axes: Axes, options: Options) -> Any:
    zeros = jnp.zeros((rows, *ct.shape[1:]), ct.dtype)

    def back(give: Any, take: Any) -> Any:
        operands = (ct, zeros, lands, give, starts, take, take)
        return ragged_p.bind(*operands, axes=axes, options=options)  # type: ignore[no-untyped-call]

    if axes.size == 1:
        return back(came, sent)
    mine, depth = rounds(starts, sent)
    told = apply("all_to_all", jnp.stack([mine, jnp.broadcast_to(depth, mine.shape)], 1), axes, options)
    theirs, count = told[:, 0], jnp.max(told[:, 1])

    def of(turn: Any) -> Any:
        part = back(jnp.where(theirs == turn, came, 0), jnp.where(mine == turn, sent, 0))
        # Rounded once, as the reductions do.
        narrow = dtypes.accumulator_bytes(ct.dtype) > dtypes.element_bytes(ct.dtype)
        return part.astype(jnp.float32) if narrow else part

    first = jnp.zeros((), count.dtype)
    _, total = jax.lax.while_loop(
        lambda state: state[0] < count, lambda state: (state[0] + 1, state[1] + of(state[0])), (first + 1, of(first))
    )
    return total.astype(ct.dtype)


def _abstract(ct: Any, *vectors: Any, rows: int, axes: Axes, options: Options) -> Any:
    del options
    varying = frozenset(axes.mesh_names) if _compat.tracks_varying() else frozenset()
    varying = varying.union(*(operand.manual_axis_type.varying for operand in (ct, *vectors)))
    return _compat.with_varying(ct, (rows, *ct.shape[1:]), varying)


def _lower(ctx: Any, *operands: Any, **params: Any) -> Any:
    avals_in, avals_out = ([_compat.untyped(aval) for aval in avals] for avals in (ctx.avals_in, ctx.avals_out))
    ctx = ctx.replace(avals_in=avals_in, avals_out=avals_out)
    return mlir.lower_fun(_sum, multiple_results=False)(ctx, *operands, **params)


define(ragged_sum_p, _abstract)
lower(ragged_sum_p, _lower)
