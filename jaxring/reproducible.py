"""`reproducible_sum`: the bits of the exactly rounded sum, however the terms lie on ranks and in arrays."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, TypeVar

import jax

# For the rules of jax.vmap and jax.grad that it registers.
from jaxring.tracing import checks, exact_sum_rules, replicated  # noqa: F401
from jaxring.tracing.axes import call_site, resolve
from jaxring.tracing.exact_sum import DTYPES, MOST_RANKS, exact_sum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.tracing.axes import AxisName

Tree = TypeVar("Tree")


def reproducible_sum(
    x: Tree,
    axis_name: AxisName,
    axis: int | Sequence[int] | None = None,
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    protocol: str | None = None,
    timeout: float | None = None,
    assume_replicated: bool = False,
) -> Tree:
    """The sum of ``x`` over its dimensions ``axis`` and over the ranks: exact, and rounded once to nearest even.

    The same terms give the same bits, whatever their order and however they lie on ranks and in dimensions. ``axis``
    is a dimension, several, or None for all; ``()`` sums over the ranks alone. Every rank gets the sums, in the shape
    of the other dimensions and the dtype of ``x``: float16, bfloat16, float32 or float64, else TypeError. ``x`` may be
    a pytree. ``axis_name`` may be ``()``: then nothing is sent.

    Any NaN among the terms, and infinities of both signs, give the positive quiet NaN; infinities of one sign stay. A
    sum of zero is -0 where all terms are -0, and +0 otherwise; the sum of no terms is +0.

    An all-reduce of integers carries the sums, 60 bytes for each of float32 among 8 ranks, 312 of float64. The other
    arguments are those of `jaxring.all_reduce`, whose ``algorithm="reproducible"`` gives the same bits where each rank
    has one term.
    """
    axes = resolve("reproducible_sum", axis_name, axis_index_groups)
    options = checks.options("all_reduce", axes, "sum", None, protocol, timeout, call_site())
    if not assume_replicated:
        replicated.warn("reproducible_sum", x, axes, "sum")
    if axes.size > MOST_RANKS:
        raise ValueError(f"jaxring.reproducible_sum: {axes} has {axes.size} ranks; at most {MOST_RANKS} are served.")

    def one(leaf: Any) -> Any:
        leaf = checks.array("reproducible_sum", leaf)
        if leaf.dtype.name not in DTYPES:
            raise TypeError(
                f"jaxring.reproducible_sum: {leaf.dtype} is not served, only {', '.join(DTYPES)}. Sums of integers by "
                "jaxring.all_reduce are reproducible as they are; complex numbers have a real and an imaginary part."
            )
        return exact_sum(leaf, _dimensions(axis, leaf.ndim), axes, options)

    result: Tree = jax.tree.map(one, x)
    return result


def _dimensions(axis: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Counted from the front, in ascending order."""
    if axis is None:
        return tuple(range(ndim))
    given = tuple(axis) if isinstance(axis, (tuple, list)) else (operator.index(axis),)  # type: ignore[arg-type]
    dims = sorted(checks.dimension("reproducible_sum", "axis", each, ndim) for each in given)
    if len(set(dims)) != len(dims):
        raise ValueError(f"jaxring.reproducible_sum: axis={axis} names a dimension twice.")
    return tuple(dims)
