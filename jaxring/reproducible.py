"""`reproducible_sum`: the bits of the exactly rounded sum, however the terms lie on ranks and in arrays."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, TypeVar

import jax

# For the rules of jax.vmap and jax.grad that it registers.
from jaxring.tracing import checks, exact_sum_rules, oracle, replicated  # noqa: F401
from jaxring.tracing.axes import call_site, resolve
from jaxring.tracing.exact_sum import DTYPES, MOST_RANKS, exact_sum
from jaxring.tracing.unchecked import Unchecked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.tracing.axes import AxisName
    from jaxring.typing import Protocol

Tree = TypeVar("Tree")


def reproducible_sum(
    x: Tree,
    axis_name: AxisName,
    axis: int | Sequence[int] | None = None,
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    protocol: Protocol | None = None,
    timeout: float | None = None,
    assume_replicated: bool = False,
) -> Tree:
    """The sum of ``x`` over its dimensions ``axis`` and over the ranks: exact, and rounded once to nearest even.

    The same terms give the same bits, whatever their order and however they lie on ranks and in dimensions.
    `jaxring.all_reduce` with ``algorithm="reproducible"`` gives the same bits where each rank has one term.

    Any NaN among the terms, and infinities of both signs, give the positive quiet NaN; infinities of one sign stay. A
    sum of zero is -0 where all terms are -0, and +0 otherwise; the sum of no terms is +0.

    An all-reduce of integers carries the sums, 60 bytes for each of float32 among 8 ranks, 312 of float64.
    docs/concepts/reproducible.md has the method, its costs and the papers it is from.

    Args:
        x: An array or a pytree of arrays of float16, bfloat16, float32 or float64.
        axis_name: Name of a mesh axis of `jax.shard_map` or `jax.pmap`, or of an axis of `jax.vmap`; or a tuple of
            names. The rank is the row-major index over them in this order. ``()``: nothing is sent.
        axis: A dimension of ``x``, several, or None for all; ``()`` sums over the ranks alone.
        axis_index_groups: Lists of ranks of the axis, all of one length, as in `jax.lax`: each list is a collective of
            its own, and ranks count within it. None: all ranks are one group.
        protocol: "ll", "simple", "memory" or, for GPUs alone, "ll128". None lets the tuner choose.
        timeout: Seconds until every rank raises `jax.errors.JaxRuntimeError`. None: JAXRING_TIMEOUT.
        assume_replicated: True turns the `jaxring.ReplicatedOperandWarning` off.

    Returns:
        The sums, on every rank the same: in the shape of the other dimensions, and in the dtype of ``x``.

    Raises:
        NameError: At trace time: ``axis_name`` is not bound here.
        TypeError: At trace time: a leaf is no array or of another dtype, or ``axis`` is no integer.
        ValueError: At trace time: ``axis`` is no dimension of a leaf or names one twice, the axis has more than 65,535
            ranks, or an option does not serve the call.
        jax.errors.JaxRuntimeError: When the program runs: a rank is lost or late, or ranks disagree about the call.

    Examples:
        The bits of this loss are those on one device, on any number of ranks:

            loss = jaxring.reproducible_sum(losses, "data") / count
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
        oracle.leave_out(Unchecked.REPRODUCIBLE, "reproducible_sum", options.site)
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
