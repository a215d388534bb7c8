"""Mixtures of experts: tokens go to the ranks that have their experts, and the experts' answers come back.

The tokens travel by ragged_all_to_all, which sends as many rows as there are. Between hosts, algorithm "pxn" is its
two-level form: a host's rows for one rank elsewhere are one message.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxring.collectives import all_to_all
from jaxring.p2p import ragged_options
from jaxring.tracing import checks
from jaxring.tracing.axes import named, resolve
from jaxring.tracing.casting import cast_alike
from jaxring.tracing.p2p_primitives import ragged_p
from jaxring.tracing.row_moves import moved

if TYPE_CHECKING:
    from collections.abc import Hashable

    from jaxring.tracing.axes import Axes, AxisName
    from jaxring.tracing.options import Options

__all__ = ["Dispatched", "combine", "dispatch"]


class _Route(NamedTuple):
    """Where rows go and come from. Per rank: first row and number of rows, here and at the other end.

    ``sorted_from``, ``sorted_to``: the choice (token * k + j) of each row that is sent, and the row of each choice.
    ``grouped_from``, ``grouped_to``: the row, as rows arrive, of each row of `Dispatched.tokens`, and the inverse; None
    where rows stay as they arrive. Numbers past the end stand for no row.
    """

    starts: Any
    sent: Any
    lands: Any
    came: Any
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

    ``x``: ``[tokens, ...]``, of any dtype. ``ids``: integers ``[tokens, k]``, a token's k choices. ``experts``: of all
    ranks, a multiple of their number. An id that is none of ``range(experts)``, such as -1, is sent to nobody, and
    counted in `Dispatched.dropped`. Otherwise nothing is dropped, unless there is a ``capacity``: the most rows that
    one expert takes from all ranks. It takes the first ones in the order of (source rank, token, choice), so the same
    tokens in the same order drop the same on any number of ranks.

    ``rows``, without a capacity: the length of the result, by default enough for all tokens of all ranks, which costs
    memory. Where more arrive than that, all ranks raise `jax.errors.JaxRuntimeError`. ``algorithm``: "direct" or "pxn"
    (on CPUs); None: the tuner's choice.

    Counts travel first, experts * 4 bytes a rank, twice with a capacity; then the rows themselves. Differentiable in
    ``x``: the cotangents of rows travel back, and a token's are added in the order of its choices.

    Raises at trace time: ValueError for shapes and numbers that do not fit each other, TypeError for ids that are no
    integers.
    """
    axes = resolve("moe.dispatch", axis_name)
    options = ragged_options("moe.dispatch", axes, algorithm, timeout)._replace(disjoint=True)
    x, ids = (checks.array("moe.dispatch", v) for v in (x, ids))
    checks.movable("ragged_all_to_all", x)
    experts = _checked(x, ids, axes.size, experts, capacity, rows)
    ranks, here = axes.size, experts // axes.size
    tokens, k = ids.shape
    choices = tokens * k

    # The choices, those for one expert together.
    flat = ids.reshape(-1)
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
        comes = jnp.clip(capacity - _before(comes), 0, comes)
        goes = exchanged(comes)
        arriving, length = min(ranks * choices, here * capacity), here * capacity
    sent, came = goes.sum(1, dtype=jnp.int32), comes.sum(1, dtype=jnp.int32)

    # Choices that are sent nowhere lie behind all others.
    sorted_from, sorted_to = order, jnp.argsort(order).astype(jnp.int32)
    if capacity is not None:
        by_expert, leave = goes.reshape(-1), _before(goes.reshape(-1))
        sorted_from = jnp.append(order, choices)[_origins(choices, leave, by_expert, bounds[:-1], choices)]
        sorted_to = _origins(choices, bounds[:-1], by_expert, leave, choices)[sorted_to]
    grouped_from = grouped_to = None
    if here > 1 or arriving != length:
        arrive = _before(comes.reshape(-1)).reshape(ranks, here)
        lie = _before(comes.T.reshape(-1)).reshape(here, ranks)
        if capacity is not None:
            lie = lie - lie[:, :1] + capacity * jnp.arange(here, dtype=jnp.int32)[:, None]
        grouped_from = _origins(length, lie, comes.T, arrive.T, arriving)
        grouped_to = _origins(arriving, arrive, comes, lie.T, length)
    route = _Route(_before(sent), sent, _before(came), came, sorted_from, sorted_to, grouped_from, grouped_to)

    copies = jnp.repeat(x, k, axis=0)
    there = (route.starts, route.sent, route.lands, route.came)
    arrived = _exchange(moved(copies, sorted_from, sorted_to), arriving, there, axes, options)
    found = arrived if grouped_from is None else moved(arrived, grouped_from, grouped_to)
    return Dispatched(
        tokens=found if capacity is None else found.reshape(here, capacity, *x.shape[1:]),
        counts=comes.sum(0, dtype=jnp.int32),
        dropped=choices - sent.sum(dtype=jnp.int32),
        route=route,
        choices=k,
        capacity=capacity,
        axis_name=named("moe.dispatch", axis_name),
        algorithm=algorithm,
        timeout=timeout,
    )


def combine(answers: Any, dispatched: Dispatched, weights: Any = None) -> Any:
    """Brings the experts' answers back: each token gets the sum of its choices' answers, times their ``weights``.

    ``answers``: an array with the rows of ``dispatched.tokens``, and any other dimensions and dtype. ``weights``:
    ``[tokens, k]``, as ``ids`` was; None: 1. Returns ``[tokens, ...]`` of the answers' dtype. Answers are added in the
    order of the choices; float16, bfloat16 and float8 add in float32. A choice that was not sent counts as zeros.
    Differentiable in ``answers`` and ``weights``. It sends no counts.

    ValueError at trace time for shapes that do not fit.
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
    width = answers.shape[len(lead) :]
    rows = answers.reshape(-1, *width)
    if route.grouped_to is not None:
        rows = moved(rows, route.grouped_to, route.grouped_from)
    back = (route.lands, route.came, route.starts, route.sent)
    arrived = _exchange(rows, choices, back, axes, options)
    of_choice = moved(arrived, route.sorted_to, route.sorted_from).reshape(choices // k, k, *width)
    if jnp.issubdtype(answers.dtype, jnp.floating):
        of_choice = of_choice.astype(jnp.promote_types(answers.dtype, jnp.float32))
    if weights is not None:
        of_choice = of_choice * weights.reshape(choices // k, k, *[1] * len(width))
    return of_choice.sum(1).astype(answers.dtype)


def _exchange(rows: Any, length: int, there: tuple[Any, ...], axes: Axes, options: Options) -> Any:
    """The ``length`` rows that arrive. ``there``: first row and number to each rank, and from each rank."""
    starts, sent, lands, came = there
    operands = [rows, jnp.zeros((length, *rows.shape[1:]), rows.dtype), starts, sent, lands, came, came]
    operands = cast_alike(operands, axes, options)
    return ragged_p.bind(*operands, axes=axes, options=options)  # type: ignore[no-untyped-call]


def _before(counts: Any) -> Any:
    """Of each entry the sum of those before it, along the first dimension."""
    return jnp.cumsum(counts, axis=0, dtype=jnp.int32) - counts


def _origins(size: int, begins: Any, lengths: Any, origins: Any, past: int) -> Any:
    """Where each of ``size`` rows comes from; ``past`` for rows in no part.

    Part i is ``lengths[i]`` rows from ``begins[i]`` on, which come from ``origins[i]`` on, where i counts the entries
    in row-major order. ``begins`` ascends from 0.
    """
    begins, lengths, origins = (v.reshape(-1) for v in (begins, lengths, origins))
    row = jnp.arange(size, dtype=jnp.int32)
    part = jnp.searchsorted(begins, row, side="right", method="scan_unrolled") - 1
    within = row - begins[part]
    return jnp.where(within < lengths[part], origins[part] + within, past)


def _checked(x: Any, ids: Any, ranks: int, experts: int, capacity: int | None, rows: int | None) -> int:
    """The number of experts. TypeError and ValueError for what does not fit."""
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
    for name, number in (("capacity", capacity), ("rows", rows)):
        if number is not None and checks.integer(f"{what}: {name}", number) < 1:
            raise ValueError(f"{what}: {name}={number} must be 1 or more.")
    return experts
