"""Mixtures of experts: tokens go to the ranks that have their experts, and the experts' answers come back.

The tokens travel by ragged_all_to_all, which sends as many rows as there are. It has two forms of two levels: by "pxn"
a process's rows for one rank elsewhere are one message, by "multileader" those for all ranks of another process.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxring.collectives import all_to_all
from jaxring.p2p import ragged_options
from jaxring.plan import dtypes
from jaxring.tracing import checks, oracle
from jaxring.tracing.axes import named, resolve
from jaxring.tracing.casting import cast_alike
from jaxring.tracing.p2p_primitives import ragged_p
from jaxring.tracing.row_moves import permute_rows
from jaxring.tracing.unchecked import Unchecked

if TYPE_CHECKING:
    from collections.abc import Hashable

    from jaxring.tracing.axes import Axes, AxisName
    from jaxring.tracing.options import Options

__all__ = ["Dispatched", "combine", "dispatch"]


class _Route(NamedTuple):
    """Where rows go and come from. ``input_offsets``, ``send_sizes``: the first row for each rank and how many rows it
    gets. ``recv_offsets``, ``recv_sizes``: where the rows of each rank land here, and how many these are.

    ``sorted_from``, ``sorted_to``: the choice (token * k + j) of each row that is sent, and the row of each choice.
    ``grouped_from``, ``grouped_to``: the row, as rows arrive, of each row of `Dispatched.tokens`, and the inverse; None
    where rows stay as they arrive. Numbers past the end stand for no row.
    """

    input_offsets: Any
    send_sizes: Any
    recv_offsets: Any
    recv_sizes: Any
    sorted_from: Any
    sorted_to: Any
    grouped_from: Any
    grouped_to: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Dispatched:
    """What a rank's experts have been sent: a pytree.

    ``tokens``: the rows, those for one expert together, and within an expert in the order of (source rank, token,
    choice): ``[rows, ...]``, where zeros follow the last row; with a capacity ``[experts here, capacity, ...]``, where
    zeros follow each expert's last row. ``counts``: int32, the rows of each expert here. ``dropped``: int32, how many
    choices of this rank's own tokens were not sent.
    """

    tokens: Any
    counts: Any
    dropped: Any
    route: _Route
    choices: int = dataclasses.field(metadata={"static": True})
    capacity: int | None = dataclasses.field(metadata={"static": True})
    axis_name: tuple[Hashable, ...] = dataclasses.field(metadata={"static": True})
    algorithm: str | None = dataclasses.field(metadata={"static": True})
    timeout: float | None = dataclasses.field(metadata={"static": True})


def dispatch(
    x: Any,
    ids: Any,
    axis_name: AxisName,
    experts: int,
    *,
    capacity: int | None = None,
    rows: int | None = None,
    algorithm: str | None = None,
    timeout: float | None = None,
) -> Dispatched:
    """Sends each row of ``x`` to the experts that ``ids`` names: rank r has the r-th part of ``range(experts)``.

    Nothing is dropped, unless there is a ``capacity``, or an id that is none of ``range(experts)``, such as -1, which
    is sent to nobody; `Dispatched.dropped` counts both. With a capacity an expert takes the first rows in the order of
    (source rank, token, choice), so the same tokens in the same order drop the same on any number of ranks.

    Counts travel first, experts * 4 bytes a rank, twice with a capacity; then the rows themselves. Differentiable in
    ``x``: the cotangents of rows travel back, and a token's are added in the order of its choices.

    Args:
        x: ``[tokens, ...]``, a rank's own: bool, integers of 8 to 64 bits, floats from float8 to float64, complex64 or
            complex128.
        ids: Integers of any width ``[tokens, k]``: a token's k choices.
        axis_name: Name of a mesh axis, or a tuple of names; the rank is the row-major index over them.
        experts: How many there are on all ranks, a multiple of their number.
        capacity: The most rows that one expert takes from all ranks. None: all.
        rows: Without a capacity: the number of rows of the result. None: enough for all tokens of all ranks, which
            costs memory.
        algorithm: "direct" or, on CPUs, "pxn" or "multileader". None lets the tuner choose.
        timeout: Seconds until every rank raises `jax.errors.JaxRuntimeError`. None: JAXRING_TIMEOUT.

    Returns:
        What this rank's experts have been sent, for `combine`.

    Raises:
        NameError: At trace time: ``axis_name`` is not bound here.
        TypeError: At trace time: ``ids`` are no integers, or the dtype of ``x`` is not served.
        ValueError: At trace time: shapes and numbers do not fit each other, or an option does not serve the call.
        NotImplementedError: At trace time: ``axis_name`` is an axis of `jax.vmap`.
        jax.errors.JaxRuntimeError: When the program runs: on all ranks where more rows arrive than ``rows``; where a
            rank is lost or late.

    Examples:
        Inside `jax.shard_map` over a mesh with an axis "data":

            sent = jaxring.moe.dispatch(x, ids, "data", experts=64)
            y = jaxring.moe.combine(experts(sent.tokens, sent.counts), sent, weights)
    """
    axes = resolve("moe.dispatch", axis_name)
    options = ragged_options("moe.dispatch", axes, algorithm, timeout)._replace(disjoint=True)
    x, ids = (checks.array("moe.dispatch", v) for v in (x, ids))
    checks.movable("ragged_all_to_all", x)
    experts, capacity, rows = _checked(x, ids, axes.size, experts, capacity, rows)
    # Cast here, where there is one row for each token, since the transpose of the cast is a sum over the ranks.
    x, ids = cast_alike([x, ids], axes, options)
    ranks, here = axes.size, experts // axes.size
    tokens, k = ids.shape
    choices = tokens * k

    # The choices, those for one expert together.
    flat = ids.reshape(-1)
    if ids.dtype.itemsize < 4:
        flat = flat.astype(jnp.int32)  # the number of experts need not fit into the dtype of their numbers
    flat = jnp.where((flat >= 0) & (flat < experts), flat, experts).astype(jnp.int32)
    order = jnp.argsort(flat, stable=True).astype(jnp.int32)
    bounds = jnp.searchsorted(flat[order], jnp.arange(experts + 1), method="scan_unrolled").astype(jnp.int32)

    def exchanged(table: Any) -> Any:
        return all_to_all(table, axis_name, 0, 0, tiled=True, algorithm=algorithm, timeout=timeout)

    # [rank, expert]: from that rank to each expert here, and from here to each expert there.
    goes = jnp.diff(bounds).reshape(ranks, here)
    comes = exchanged(goes)
    arriving = length = ranks * choices if rows is None else rows
    if capacity is not None:
        comes = jnp.clip(capacity - _exclusive_cumsum(comes), 0, comes)
        goes = exchanged(comes)
        arriving, length = min(ranks * choices, here * capacity), here * capacity
    send_sizes, recv_sizes = goes.sum(1, dtype=jnp.int32), comes.sum(1, dtype=jnp.int32)

    # Choices that are sent nowhere lie behind all others.
    sorted_from, sorted_to = order, jnp.argsort(order).astype(jnp.int32)
    if capacity is not None:
        by_expert, leave = goes.reshape(-1), _exclusive_cumsum(goes.reshape(-1))
        sorted_from = jnp.append(order, choices)[_source_rows(choices, leave, by_expert, bounds[:-1], choices)]
        sorted_to = _source_rows(choices, bounds[:-1], by_expert, leave, choices)[sorted_to]
    grouped_from = grouped_to = None
    if here > 1 or arriving != length:
        arrive = _exclusive_cumsum(comes.reshape(-1)).reshape(ranks, here)
        lie = _exclusive_cumsum(comes.T.reshape(-1)).reshape(here, ranks)
        if capacity is not None:
            lie = lie - lie[:, :1] + capacity * jnp.arange(here, dtype=jnp.int32)[:, None]
        grouped_from = _source_rows(length, lie, comes.T, arrive.T, arriving)
        grouped_to = _source_rows(arriving, arrive, comes, lie.T, length)
    route = _Route(
        input_offsets=_exclusive_cumsum(send_sizes),
        send_sizes=send_sizes,
        recv_offsets=_exclusive_cumsum(recv_sizes),
        recv_sizes=recv_sizes,
        sorted_from=sorted_from,
        sorted_to=sorted_to,
        grouped_from=grouped_from,
        grouped_to=grouped_to,
    )

    copies = jnp.repeat(x, k, axis=0)
    there = (route.input_offsets, route.send_sizes, route.recv_offsets, route.recv_sizes)
    arrived = _exchange(permute_rows(copies, sorted_from, sorted_to), arriving, there, axes, options)
    found = arrived if grouped_from is None else permute_rows(arrived, grouped_from, grouped_to)
    return Dispatched(
        tokens=found if capacity is None else found.reshape(here, capacity, *x.shape[1:]),
        counts=comes.sum(0, dtype=jnp.int32),
        dropped=choices - send_sizes.sum(dtype=jnp.int32),
        route=route,
        choices=k,
        capacity=capacity,
        axis_name=named("moe.dispatch", axis_name),
        algorithm=algorithm,
        timeout=timeout,
    )


def combine(answers: Any, dispatched: Dispatched, weights: Any = None) -> Any:
    """Brings the experts' answers back: each token gets the sum of its choices' answers, times their ``weights``.

    Answers are added in the order of the choices; float16, bfloat16 and float8 add in float32. A choice that was not
    sent counts as zeros, whatever its weight. Differentiable in ``answers`` and ``weights``. It sends no counts.

    Args:
        answers: An array with the rows of ``dispatched.tokens``, and any other dimensions: bool, integers of 8 to 64
            bits, floats from float8 to float64, complex64 or complex128.
        dispatched: What `dispatch` has returned.
        weights: ``[tokens, k]``, as ``ids`` was. None: 1.

    Returns:
        ``[tokens, ...]`` of the answers' dtype.

    Raises:
        NameError: At trace time: the axis of `dispatch` is not bound here.
        TypeError: At trace time: the dtype of ``answers`` is not served.
        ValueError: At trace time: shapes do not fit.
        jax.errors.JaxRuntimeError: When the program runs: a rank is lost or late.

    Examples:
        Inside `jax.shard_map` over a mesh with an axis "data":

            y = jaxring.moe.combine(answers, sent, jax.nn.softmax(scores))
    """
    axes = resolve("moe.combine", dispatched.axis_name)
    options = ragged_options("moe.combine", axes, dispatched.algorithm, dispatched.timeout)._replace(disjoint=True)
    answers = checks.array("moe.combine", answers)
    checks.movable("ragged_all_to_all", answers)
    route, k = dispatched.route, dispatched.choices
    choices = route.sorted_to.shape[0]
    lead = dispatched.tokens.shape[: 1 if dispatched.capacity is None else 2]
    if answers.shape[: len(lead)] != lead:
        raise ValueError(
            f"jaxring.moe.combine: answers {answers.shape} must begin with {lead}, as the tokens of dispatch do."
        )
    if weights is not None:
        weights = checks.array("moe.combine", weights)
        if weights.shape != (choices // k, k):
            raise ValueError(
                f"jaxring.moe.combine: weights {weights.shape} must be {(choices // k, k)}: one for each token "
                "and choice."
            )
    answers, *_ = cast_alike([answers, route.sorted_to], axes, options)
    width = answers.shape[len(lead) :]
    rows = answers.reshape(math.prod(lead), *width)
    if route.grouped_to is not None:
        rows = permute_rows(rows, route.grouped_to, route.grouped_from)
    back = (route.recv_offsets, route.recv_sizes, route.input_offsets, route.send_sizes)
    arrived = _exchange(rows, choices, back, axes, options)
    of_choice = permute_rows(arrived, route.sorted_to, route.sorted_from).reshape(choices // k, k, *width)
    if dtypes.accumulator_bytes(answers.dtype) > dtypes.element_bytes(answers.dtype):
        of_choice = of_choice.astype(jnp.float32)
    if weights is not None:
        # A weight that is not finite would make NaN of the zeros.
        went = route.sorted_to.reshape(weights.shape) < route.send_sizes.sum()
        weights, _ = cast_alike([weights, of_choice], axes, options)
        weights = jnp.where(went, weights, jnp.zeros((), weights.dtype))
        of_choice = of_choice * weights.reshape(*weights.shape, *[1] * len(width))
    return of_choice.sum(1).astype(answers.dtype)


def _exchange(rows: Any, length: int, there: tuple[Any, ...], axes: Axes, options: Options) -> Any:
    """The ``length`` rows that arrive. ``there``: first row and number to each rank, and from each rank."""
    input_offsets, send_sizes, recv_offsets, recv_sizes = there
    zeros = jnp.zeros((length, *rows.shape[1:]), rows.dtype)
    operands = [rows, zeros, input_offsets, send_sizes, recv_offsets, recv_sizes, recv_sizes]
    operands = cast_alike(operands, axes, options)
    oracle.leave_out(Unchecked.RAGGED, "ragged_all_to_all", options.site)
    return ragged_p.bind(*operands, axes=axes, options=options)  # type: ignore[no-untyped-call]


def _exclusive_cumsum(counts: Any) -> Any:
    """For each entry the sum of those before it, along the first dimension."""
    return jnp.cumsum(counts, axis=0, dtype=jnp.int32) - counts


def _source_rows(size: int, begins: Any, lengths: Any, origins: Any, past: int) -> Any:
    """Where each of ``size`` rows comes from; ``past`` for rows in no part.

    Part i is ``lengths[i]`` rows from ``begins[i]`` on, which come from ``origins[i]`` on, where i counts the entries
    in row-major order. ``begins`` ascends from 0.
    """
    begins, lengths, origins = (v.reshape(-1) for v in (begins, lengths, origins))
    row = jnp.arange(size, dtype=jnp.int32)
    part = jnp.searchsorted(begins, row, side="right", method="scan_unrolled") - 1
    within = row - begins[part]
    return jnp.where(within < lengths[part], origins[part] + within, past)


def _checked(
    x: Any, ids: Any, ranks: int, experts: int, capacity: int | None, rows: int | None
) -> tuple[int, int | None, int | None]:
    """``experts``, ``capacity`` and ``rows`` as Python's int. TypeError and ValueError for what does not fit."""
    what = "jaxring.moe.dispatch"
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise TypeError(f"{what}: ids are numbers of experts, of an integer dtype, not {ids.dtype}.")
    if ids.ndim != 2 or ids.shape[1] < 1 or x.shape[:1] != ids.shape[:1]:
        raise ValueError(f"{what}: ids {ids.shape} must be [tokens, k], with the tokens of x {x.shape}.")
    experts = checks.integer(f"{what}: experts", experts)
    if experts < 1 or experts % ranks:
        raise ValueError(f"{what}: experts={experts} must be a multiple of the number of ranks, {ranks}.")
    if capacity is not None and rows is not None:
        raise ValueError(f"{what}: give rows or a capacity: with a capacity the result has capacity rows an expert.")
    return experts, _at_least_one("capacity", capacity), _at_least_one("rows", rows)


def _at_least_one(name: str, number: int | None) -> int | None:
    if number is None:
        return None
    number = checks.integer(f"jaxring.moe.dispatch: {name}", number)
    if number < 1:
        raise ValueError(f"jaxring.moe.dispatch: {name}={number} must be 1 or more.")
    return number
