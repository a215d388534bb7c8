"""The collectives that have a root: broadcast, reduce, gather, scatter.

Arguments are as in `jaxring.collectives`, and so are the errors that are not named here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import jax.numpy as jnp

# batching and differentiation are imported for the rules of jax.vmap and jax.grad that they register.
from jaxring.tracing import batching, blocks, checks, differentiation, replicated, wire_dtypes  # noqa: F401
from jaxring.tracing.axes import call_site, resolve
from jaxring.tracing.calls import bind, each

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.tracing.axes import AxisName
    from jaxring.typing import Op, Protocol

Tree = TypeVar("Tree")


def broadcast(
    x: Tree,
    axis_name: AxisName,
    root: int = 0,
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    algorithm: str | None = None,
    protocol: Protocol | None = None,
    timeout: float | None = None,
) -> Tree:
    """Every rank gets the value of rank ``root``.

    Args:
        x: An array or a pytree of arrays, of the same shapes and dtypes on all ranks: bool, integers of 4 to 64 bits,
            float8_e4m3fn, float8_e5m2, float16, bfloat16, float32, float64, complex64, complex128, and typed PRNG keys.
            Only the root's values matter.
        axis_name: Name of a mesh axis of `jax.shard_map` or `jax.pmap`, or of an axis of `jax.vmap`; or a tuple of
            names. The rank is the row-major index over them in this order.
        root: The rank whose value it is.
        axis_index_groups: Lists of ranks of the axis, all of one length, as in `jax.lax`: each list is a collective of
            its own, and ranks count within it. None: all ranks are one group.
        algorithm: "direct", "ring", "tree" and others, or the name of one of your own (`jaxring.register_algorithm`).
            None lets the tuner choose.
        protocol: "ll", "simple", "memory" or, for GPUs alone, "ll128". None lets the tuner choose.
        timeout: Seconds until every rank raises `jax.errors.JaxRuntimeError`. None: JAXRING_TIMEOUT.

    Returns:
        The root's value, with its shapes and dtypes.

    Raises:
        NameError: At trace time: ``axis_name`` is not bound here.
        TypeError: At trace time: a leaf is no array, or its dtype is not served.
        ValueError: At trace time: an option is unknown, out of range, or does not serve this call, or ``root`` is no
            rank of the axis.
        jax.errors.JaxRuntimeError: When the program runs: a rank is lost or late, or ranks disagree about the call.

    Examples:
        Inside `jax.shard_map` over a mesh with an axis "data":

            params = jaxring.broadcast(params, "data", root=0)
    """
    return _rooted("broadcast", x, axis_name, None, root, axis_index_groups, algorithm, protocol, timeout)


def reduce(
    x: Tree,
    axis_name: AxisName,
    op: Op = "sum",
    root: int = 0,
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    algorithm: str | None = None,
    protocol: Protocol | None = None,
    timeout: float | None = None,
    assume_replicated: bool = False,
) -> Tree:
    """Rank ``root`` gets what `jaxring.all_reduce` would give; the others get zeros.

    Shapes and dtypes stay; the sum of bool counts in int32.

    Args:
        x: An array or a pytree of arrays, of the same shapes and dtypes on all ranks: bool, integers of 8 to 64 bits,
            float8_e4m3fn, float8_e5m2, float16, bfloat16, float32, float64, complex64 or complex128.
        axis_name: Name of a mesh axis of `jax.shard_map` or `jax.pmap`, or of an axis of `jax.vmap`; or a tuple of
            names. The rank is the row-major index over them in this order.
        op: "sum", "prod", "min", "max", "mean", "and", "or" or "xor". "mean" is for floats and complex numbers, "min"
            and "max" for all but complex numbers, "and", "or" and "xor" for bool and integers.
        root: The rank that gets the result.
        axis_index_groups: Lists of ranks of the axis, all of one length, as in `jax.lax`: each list is a collective of
            its own, and ranks count within it. None: all ranks are one group.
        algorithm: "direct", "ring", "tree" and others, or the name of one of your own (`jaxring.register_algorithm`).
            None lets the tuner choose.
        protocol: "ll", "simple", "memory" or, for GPUs alone, "ll128". None lets the tuner choose.
        timeout: Seconds until every rank raises `jax.errors.JaxRuntimeError`. None: JAXRING_TIMEOUT.
        assume_replicated: True turns the `jaxring.ReplicatedOperandWarning` off.

    Returns:
        On the root ``op`` over the ranks' values, elsewhere zeros of that shape and dtype.

    Raises:
        NameError: At trace time: ``axis_name`` is not bound here.
        TypeError: At trace time: a leaf is no array, or its dtype is not served or has no ``op``.
        ValueError: At trace time: an option is unknown, out of range, or does not serve this call, or ``root`` is no
            rank of the axis.
        jax.errors.JaxRuntimeError: When the program runs: a rank is lost or late, or ranks disagree about the call.

    Examples:
        Inside `jax.shard_map` over a mesh with an axis "data":

            total = jaxring.reduce(counts, "data", "sum", root=0)
    """
    groups = axis_index_groups
    return _rooted("reduce", x, axis_name, op, root, groups, algorithm, protocol, timeout, assume_replicated)


def gather(
    x: Tree,
    axis_name: AxisName,
    root: int = 0,
    *,
    axis: int = 0,
    tiled: bool = False,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    algorithm: str | None = None,
    protocol: Protocol | None = None,
    timeout: float | None = None,
) -> Tree:
    """Rank ``root`` gets what `jaxring.all_gather` would give; the others get zeros.

    Args:
        x: An array or a pytree of arrays, of the same shapes and dtypes on all ranks: bool, integers of 4 to 64 bits,
            float8_e4m3fn, float8_e5m2, float16, bfloat16, float32, float64, complex64, complex128, and typed PRNG keys.
        axis_name: Name of a mesh axis of `jax.shard_map` or `jax.pmap`, or of an axis of `jax.vmap`; or a tuple of
            names. The rank is the row-major index over them in this order.
        root: The rank that gets the result.
        axis: The dimension of the result along which the ranks lie.
        tiled: False: the ranks are a new dimension ``axis``. True: the values are concatenated along their dimension
            ``axis``.
        axis_index_groups: Lists of ranks of the axis, all of one length, as in `jax.lax`: each list is a collective of
            its own, and ranks count within it. None: all ranks are one group.
        algorithm: "direct" or "deterministic", or the name of one of your own (`jaxring.register_algorithm`). None lets
            the tuner choose.
        protocol: "ll", "simple", "memory" or, for GPUs alone, "ll128". None lets the tuner choose.
        timeout: Seconds until every rank raises `jax.errors.JaxRuntimeError`. None: JAXRING_TIMEOUT.

    Returns:
        On the root all ranks' values: of a leaf ``[a, b]`` among n ranks with ``axis=0`` ``[n, a, b]``, or with
        ``tiled`` ``[n * a, b]``. Elsewhere zeros of that shape. Dtypes stay.

    Raises:
        NameError: At trace time: ``axis_name`` is not bound here.
        TypeError: At trace time: a leaf is no array, or its dtype is not served.
        ValueError: At trace time: an option is unknown, out of range, or does not serve this call, ``root`` is no rank
            of the axis, or ``axis`` no dimension of the result.
        jax.errors.JaxRuntimeError: When the program runs: a rank is lost or late, or ranks disagree about the call.

    Examples:
        Inside `jax.shard_map` over a mesh with an axis "data":

            losses = jaxring.gather(loss, "data", root=0)  # [ranks] on rank 0
    """
    y = _rooted("gather", x, axis_name, None, root, axis_index_groups, algorithm, protocol, timeout)

    def one(leaf: Any) -> Any:
        return blocks.join(leaf, checks.dimension("gather", "axis", axis, leaf.ndim - tiled), tiled)

    return each("gather", one, y)


def scatter(
    x: Tree,
    axis_name: AxisName,
    root: int = 0,
    *,
    axis: int = 0,
    tiled: bool = False,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    algorithm: str | None = None,
    protocol: Protocol | None = None,
    timeout: float | None = None,
) -> Tree:
    """Rank r gets the r-th part of rank ``root``'s value along ``axis``.

    Args:
        x: An array or a pytree of arrays, of the same shapes and dtypes on all ranks: bool, integers of 4 to 64 bits,
            float8_e4m3fn, float8_e5m2, float16, bfloat16, float32, float64, complex64, complex128, and typed PRNG keys.
            Only the root's values matter.
        axis_name: Name of a mesh axis of `jax.shard_map` or `jax.pmap`, or of an axis of `jax.vmap`; or a tuple of
            names. The rank is the row-major index over them in this order.
        root: The rank whose value is split.
        axis: The dimension that is split. It has as many entries as ranks, or with ``tiled`` a multiple of their
            number.
        tiled: False: the dimension goes away. True: it stays, and a rank's part is an n-th of it among n ranks.
        axis_index_groups: Lists of ranks of the axis, all of one length, as in `jax.lax`: each list is a collective of
            its own, and ranks count within it. None: all ranks are one group.
        algorithm: "direct" or "deterministic", or the name of one of your own (`jaxring.register_algorithm`). None lets
            the tuner choose.
        protocol: "ll", "simple", "memory" or, for GPUs alone, "ll128". None lets the tuner choose.
        timeout: Seconds until every rank raises `jax.errors.JaxRuntimeError`. None: JAXRING_TIMEOUT.

    Returns:
        A rank's part: of a leaf ``[n, b]`` among n ranks with ``axis=0`` ``[b]``; of ``[n * a, b]`` with ``tiled``
        ``[a, b]``. Dtypes stay.

    Raises:
        NameError: At trace time: ``axis_name`` is not bound here.
        TypeError: At trace time: a leaf is no array, or its dtype is not served.
        ValueError: At trace time: an option is unknown, out of range, or does not serve this call, ``root`` is no rank
            of the axis, ``axis`` no dimension of ``x``, or it cannot be split among the ranks.
        jax.errors.JaxRuntimeError: When the program runs: a rank is lost or late, or ranks disagree about the call.

    Examples:
        Inside `jax.shard_map` over a mesh with an axis "data":

            rows = jaxring.scatter(table, "data", root=0, tiled=True)
    """
    axes = resolve("scatter", axis_name, axis_index_groups)

    def parts(leaf: Any) -> Any:
        at = checks.dimension("scatter", "axis", axis, leaf.ndim)
        return blocks.split("scatter", leaf, at, axes.size, tiled)

    y = _rooted(
        "scatter", each("scatter", parts, x), axis_name, None, root, axis_index_groups, algorithm, protocol, timeout
    )
    return each("scatter", lambda leaf: jnp.moveaxis(leaf, 0, axis), y) if tiled else y


def _rooted(
    name: str,
    x: Tree,
    axis_name: AxisName,
    op: str | None,
    root: int,
    groups: Sequence[Sequence[int]] | None,
    algorithm: str | None,
    protocol: str | None,
    timeout: float | None,
    assume_replicated: bool = False,
) -> Tree:
    axes = resolve(name, axis_name, groups)
    options = checks.options(name, axes, op, algorithm, protocol, timeout, call_site())
    if op is not None and not assume_replicated:
        replicated.warn(name, x, axes, op)
    options = options._replace(root=checks.root(name, root, axes))

    def one(leaf: Any) -> Any:
        if op is None:
            wire_dtypes.movable(name, leaf)
        else:
            leaf = checks.reducible(name, leaf, op)
        return bind(name, leaf, axes, options)

    return each(name, one, x)
