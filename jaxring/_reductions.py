"""all_reduce and reduce_scatter: what the ranks reduce values to. See `jaxring.collectives` for their arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

import jax.numpy as jnp

from jaxring.compress.call_arguments import bind, wanted
from jaxring.epilogues.call_arguments import wanted as wanted_epilogue
from jaxring.tracing import blocks, checks, replicated
from jaxring.tracing.axes import call_site, resolve
from jaxring.tracing.calls import each

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.epilogues import Epilogue
    from jaxring.tracing.axes import AxisName
    from jaxring.typing import CompressedFormat, Op, Protocol

__all__ = ["all_reduce", "reduce_scatter"]

Tree = TypeVar("Tree")


def all_reduce(
    x: Tree,
    axis_name: AxisName,
    op: Op = "sum",
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    algorithm: str | None = None,
    protocol: Protocol | None = None,
    timeout: float | None = None,
    compress: CompressedFormat | None = None,
    seed: Any = None,
    epilogue: Epilogue | None = None,
    assume_replicated: bool = False,
) -> Tree:
    """Every rank gets ``op`` over the ranks' values, the same bits on all.

    Shapes and dtypes stay; the sum of bool counts in int32, as `jax.lax.psum` does. float16, bfloat16 and float8
    accumulate in float32 and round once.

    Under ``check_vma=True`` a `ReplicatedOperandWarning` is given for a sum, mean or product of a value whose type says
    that it is the same on all ranks. The gradient of replicated parameters is one, because JAX has summed it already:
    see `jaxring.data_parallel`.

    Args:
        x: An array or a pytree of arrays, of the same shapes and dtypes on all ranks: bool, integers of 8 to 64 bits,
            float8_e4m3fn, float8_e5m2, float16, bfloat16, float32, float64, complex64 or complex128.
        axis_name: Name of a mesh axis of `jax.shard_map` or `jax.pmap`, or of an axis of `jax.vmap`; or a tuple of
            names. The rank is the row-major index over them in this order.
        op: "sum", "prod", "min", "max", "mean", "and", "or" or "xor". "mean" is for floats and complex numbers, "min"
            and "max" for all but complex numbers, "and", "or" and "xor" for bool and integers.
        axis_index_groups: Lists of ranks of the axis, all of one length, as in `jax.lax`: each list is a collective of
            its own, and ranks count within it. None: all ranks are one group.
        algorithm: "ring", "tree", "halving_doubling", "oneshot", "deterministic" and others; on CPUs also
            "reproducible" for exact sums, or the name of one of your own (`jaxring.register_algorithm`). None lets the
            tuner choose.
        protocol: "ll", "simple", "memory" or, for GPUs alone, "ll128". None lets the tuner choose.
        timeout: Seconds until every rank raises `jax.errors.JaxRuntimeError`. None: JAXRING_TIMEOUT.
        compress: The format in which values are sent: "int8", "fp8_e4m3", "bf16" or "int4", in blocks of 128 elements,
            for float32, bfloat16 and float16. Values that would not become shorter are sent as they are. None: no
            compression. docs/concepts/compression.md has the error bounds.
        seed: With ``compress``: an integer or an integer scalar array, by which values are rounded at random. None
            rounds to nearest.
        epilogue: What the reduction applies to its complete values before it spreads them: `jaxring.epilogues`, such as
            ``scale(0.5)``. None: nothing.
        assume_replicated: True turns the `jaxring.ReplicatedOperandWarning` off.

    Returns:
        The pytree of the results, with the shapes of ``x``, and its dtypes but for bool's sum and ``epilogues.cast``.

    Raises:
        NameError: At trace time: ``axis_name`` is not bound here.
        TypeError: At trace time: a leaf is no array, or its dtype is not served or has no ``op``, ``compress`` or
            ``epilogue``.
        ValueError: At trace time: an option is unknown, out of range, or does not serve this call, such as
            ``algorithm`` with ``compress``, or ``compress`` with an ``op`` other than "sum" and "mean".
        jax.errors.JaxRuntimeError: When the program runs: a rank is lost or late, or ranks disagree about the call.

    Examples:
        Inside `jax.shard_map` over a mesh with an axis "data":

            mean = jaxring.all_reduce(gradients, "data", "mean")
            least = jaxring.all_reduce(step, "data", "min", algorithm="tree", timeout=60.0)
    """
    axes = resolve("all_reduce", axis_name, axis_index_groups)
    options = checks.options("all_reduce", axes, op, algorithm, protocol, timeout, call_site())
    compressor = wanted("all_reduce", compress, seed, axes, op, algorithm)
    applier = wanted_epilogue("all_reduce", epilogue, x, axes, options, compress)
    if not assume_replicated:
        replicated.warn("all_reduce", x, axes, op)

    def one(leaf: Any) -> Any:
        leaf = checks.reducible("all_reduce", leaf, op)
        if applier is not None:
            return applier.bind(leaf, options)
        return bind("all_reduce", leaf, axes, options, compressor)

    return each("all_reduce", one, x)


@overload
def reduce_scatter(
    x: Tree,
    axis_name: AxisName,
    op: Op = "sum",
    *,
    scatter_dimension: int = 0,
    tiled: bool = False,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    algorithm: str | None = None,
    protocol: Protocol | None = None,
    timeout: float | None = None,
    compress: CompressedFormat | None = None,
    seed: Any = None,
    epilogue: None = None,
    assume_replicated: bool = False,
) -> Tree: ...
@overload
def reduce_scatter(
    x: Any,
    axis_name: AxisName,
    op: Op = "sum",
    *,
    scatter_dimension: int = 0,
    tiled: bool = False,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    algorithm: str | None = None,
    protocol: Protocol | None = None,
    timeout: float | None = None,
    compress: CompressedFormat | None = None,
    seed: Any = None,
    epilogue: Epilogue,
    assume_replicated: bool = False,
) -> Any: ...
def reduce_scatter(
    x: Any,
    axis_name: AxisName,
    op: Op = "sum",
    *,
    scatter_dimension: int = 0,
    tiled: bool = False,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    algorithm: str | None = None,
    protocol: Protocol | None = None,
    timeout: float | None = None,
    compress: CompressedFormat | None = None,
    seed: Any = None,
    epilogue: Epilogue | None = None,
    assume_replicated: bool = False,
) -> Any:
    """An `all_reduce` whose result is split: each rank keeps its part of ``scatter_dimension``.

    As `jax.lax.psum_scatter`, with a choice of operation. float16, bfloat16 and float8 accumulate in float32 and round
    once; the sum of bool counts in int32.

    Args:
        x: An array or a pytree of arrays, of the same shapes and dtypes on all ranks: bool, integers of 8 to 64 bits,
            float8_e4m3fn, float8_e5m2, float16, bfloat16, float32, float64, complex64 or complex128.
        axis_name: Name of a mesh axis of `jax.shard_map` or `jax.pmap`, or of an axis of `jax.vmap`; or a tuple of
            names. The rank is the row-major index over them in this order.
        op: "sum", "prod", "min", "max", "mean", "and", "or" or "xor". "mean" is for floats and complex numbers, "min"
            and "max" for all but complex numbers, "and", "or" and "xor" for bool and integers.
        scatter_dimension: The dimension that is split. It has as many entries as ranks, or with ``tiled`` a multiple of
            their number.
        tiled: False: the dimension goes away. True: it stays, and a rank's part is an n-th of it among n ranks.
        axis_index_groups: Lists of ranks of the axis, all of one length, as in `jax.lax`: each list is a collective of
            its own, and ranks count within it. None: all ranks are one group.
        algorithm: "ring", "direct", "pat", "deterministic" and others; on CPUs also "reproducible", or the name of one
            of your own (`jaxring.register_algorithm`). None lets the tuner choose.
        protocol: "ll", "simple", "memory" or, for GPUs alone, "ll128". None lets the tuner choose.
        timeout: Seconds until every rank raises `jax.errors.JaxRuntimeError`. None: JAXRING_TIMEOUT.
        compress: The format in which values are sent: "int8", "fp8_e4m3", "bf16" or "int4", in blocks of 128 elements,
            for float32, bfloat16 and float16. Values that would not become shorter are sent as they are. None: no
            compression. docs/concepts/compression.md has the error bounds.
        seed: With ``compress``: an integer or an integer scalar array, by which values are rounded at random. None
            rounds to nearest.
        epilogue: What the reduction applies to its complete values: `jaxring.epilogues`, also ``sgd`` and ``adam``.
            None: nothing.
        assume_replicated: True turns the `jaxring.ReplicatedOperandWarning` off.

    Returns:
        The pytree of a rank's parts: of a leaf ``[n, b]`` among n ranks ``[b]``, of ``[n * a, b]`` with ``tiled`` ``[a,
        b]``. Dtypes stay, but for bool's sum and ``epilogues.cast``. With an epilogue that has states (``sgd`` with
        momentum, ``adam``) a tuple: the pytree of the new parameters, then those of the states.

    Raises:
        NameError: At trace time: ``axis_name`` is not bound here.
        TypeError: At trace time: a leaf is no array, or its dtype is not served or has no ``op``, ``compress`` or
            ``epilogue``.
        ValueError: At trace time: an option is unknown, out of range, or does not serve this call, or
            ``scatter_dimension`` is no dimension of ``x`` or cannot be split among the ranks.
        jax.errors.JaxRuntimeError: When the program runs: a rank is lost or late, or ranks disagree about the call.

    Examples:
        The ZeRO step, in which each rank has a shard of the parameters:

            shard = jaxring.reduce_scatter(gradient, "data", "mean", tiled=True)
    """
    axes = resolve("reduce_scatter", axis_name, axis_index_groups)
    options = checks.options("reduce_scatter", axes, op, algorithm, protocol, timeout, call_site())
    compressor = wanted("reduce_scatter", compress, seed, axes, op, algorithm)
    applier = wanted_epilogue("reduce_scatter", epilogue, x, axes, options, compress)
    if not assume_replicated:
        replicated.warn("reduce_scatter", x, axes, op)

    def one(leaf: Any) -> Any:
        leaf = checks.reducible("reduce_scatter", leaf, op)
        at = checks.dimension("reduce_scatter", "scatter_dimension", scatter_dimension, leaf.ndim)
        parts = blocks.split("reduce_scatter", leaf, at, axes.size, tiled)
        if applier is not None:
            return applier.bind(parts, options, at if tiled else 0)
        return bind(
            "reduce_scatter", parts, axes, options, compressor, lambda y: jnp.moveaxis(y, 0, at) if tiled else y
        )

    result = each("reduce_scatter", one, x)
    return result if applier is None else applier.gather(result)
