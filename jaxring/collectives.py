"""The collectives that users call, with `jax.lax`'s names for arguments and its argument order; `rooted` has others.

All of them work inside `jax.shard_map` and `jax.pmap` over mesh axes, and `jax.vmap` with an ``axis_name``, on pytrees
leaf by leaf. ``axis_name`` is a name or a tuple of names; the rank is the row-major index over the tuple in the given
order. Extras are keyword-only:

* ``axis_index_groups``: collectives among subsets of an axis, as in `jax.lax`.
* ``algorithm``: "ring", "tree", "direct", "oneshot", "halving_doubling", "pat", "hier_ring", "hier_tree",
  "hier_direct", "deterministic"; on CPUs also "reproducible" for exact sums; among GPUs of one memory domain
  (experimental: has run on one GPU only) also "copy_engine" for collectives that only move data, and "nvls" (the NVLink
  switch) for all_reduce, reduce_scatter and all_gather (experimental: has not run on a GPU yet). None lets the tuner
  choose. An algorithm that does not serve the call is an error.
* ``protocol``: "ll", "simple" or "memory"; None lets the tuner choose.
* ``timeout``: seconds until every rank raises `jax.errors.JaxRuntimeError`; None means JAXRING_TIMEOUT.
* ``compress``, of all_reduce, reduce_scatter, all_gather and all_to_all: "int8", "fp8_e4m3", "bf16" or "int4" sends
  float32, bfloat16 and float16 quantised in blocks of 128 elements; operations are "sum" and "mean". All ranks of an
  all_reduce or all_gather get the same bits; NaN and infinity stay where they are. ``seed``, an integer or a uint32
  scalar, rounds at random by a counter-based generator; None rounds to nearest. Values that would not become shorter
  are sent as they are. docs/concepts/compression.md has the error bounds.

* ``epilogue``, of all_reduce and reduce_scatter: a function of `jaxring.epilogues` that the reduction applies
  to its complete values before it spreads them. docs/concepts/epilogues.md has what it costs, and
  `jaxring.epilogues` its errors.

Those that only move data also take typed PRNG keys and integers of 4 bits, as `jax.lax` does.

All but barrier can be differentiated, any number of times. Under ``check_vma=True`` see `jaxring.pcast`.

Errors at trace time: NameError for an axis that is not bound, TypeError for an operation that is not defined for a
dtype and for an argument that is no array or no axis name, ValueError for arguments that do not fit each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

import jax.numpy as jnp

from jaxring.compress.calls import wanted
from jaxring.epilogues.calls import wanted as wanted_epilogue

# batching and differentiation are imported for the rules of jax.vmap and jax.grad that they register.
from jaxring.tracing import batching, blocks, checks, differentiation, replicated, wire_dtypes  # noqa: F401
from jaxring.tracing.axes import call_site, resolve
from jaxring.tracing.calls import bind, each

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import jax

    from jaxring.compress.calls import Compressor
    from jaxring.epilogues import Epilogue
    from jaxring.tracing.axes import Axes, AxisName
    from jaxring.tracing.options import Options
    from jaxring.typing import CompressedFormat, Op, Protocol

Tree = TypeVar("Tree")


def _bind(
    name: str,
    x: Any,
    axes: Axes,
    options: Options,
    compressor: Compressor | None,
    finish: Callable[[Any], Any] = lambda y: y,
) -> Any:
    if compressor is not None:
        return finish(compressor.bind(x, options))
    return bind(name, x, axes, options, finish)


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
        return _bind("all_reduce", leaf, axes, options, compressor)

    return each("all_reduce", one, x)


def all_gather(
    x: Tree,
    axis_name: AxisName,
    *,
    axis: int = 0,
    tiled: bool = False,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    algorithm: str | None = None,
    protocol: Protocol | None = None,
    timeout: float | None = None,
    compress: CompressedFormat | None = None,
    seed: Any = None,
) -> Tree:
    """Every rank gets all ranks' values, in the order of the ranks.

    Args:
        x: An array or a pytree of arrays, of the same shapes and dtypes on all ranks: bool, integers of 4 to 64 bits,
            float8_e4m3fn, float8_e5m2, float16, bfloat16, float32, float64, complex64, complex128, and typed PRNG keys.
        axis_name: Name of a mesh axis of `jax.shard_map` or `jax.pmap`, or of an axis of `jax.vmap`; or a tuple of
            names. The rank is the row-major index over them in this order.
        axis: The dimension of the result along which the ranks lie; negative ones count from the end.
        tiled: False: the ranks are a new dimension ``axis``. True: the values are concatenated along their dimension
            ``axis``.
        axis_index_groups: Lists of ranks of the axis, all of one length, as in `jax.lax`: each list is a collective of
            its own, and ranks count within it. None: all ranks are one group.
        algorithm: "ring", "direct", "halving_doubling", "pat" and others, or the name of one of your own
            (`jaxring.register_algorithm`). None lets the tuner choose.
        protocol: "ll", "simple", "memory" or, for GPUs alone, "ll128". None lets the tuner choose.
        timeout: Seconds until every rank raises `jax.errors.JaxRuntimeError`. None: JAXRING_TIMEOUT.
        compress: The format in which values are sent: "int8", "fp8_e4m3", "bf16" or "int4", in blocks of 128 elements,
            for float32, bfloat16 and float16. Values that would not become shorter are sent as they are. None: no
            compression. docs/concepts/compression.md has the error bounds.
        seed: With ``compress``: an integer or an integer scalar array, by which values are rounded at random. None
            rounds to nearest.

    Returns:
        For a leaf of shape ``[a, b]`` among n ranks with ``axis=0``: ``[n, a, b]``, or with ``tiled`` ``[n * a, b]``.
        Dtypes stay. With ``compress`` all ranks get the same bits.

    Raises:
        NameError: At trace time: ``axis_name`` is not bound here.
        TypeError: At trace time: a leaf is no array, or its dtype is not served or cannot be compressed.
        ValueError: At trace time: an option is unknown, out of range, or does not serve this call, or ``axis`` is no
            dimension of the result.
        jax.errors.JaxRuntimeError: When the program runs: a rank is lost or late, or ranks disagree about the call.

    Examples:
        Of rows ``[4, 8]`` of each of 2 ranks:

            whole = jaxring.all_gather(rows, "data", tiled=True)  # [8, 8]
            by_rank = jaxring.all_gather(rows, "data")  # [2, 4, 8]
    """
    axes = resolve("all_gather", axis_name, axis_index_groups)
    options = checks.options("all_gather", axes, None, algorithm, protocol, timeout, call_site())
    compressor = wanted("all_gather", compress, seed, axes, None, algorithm)

    def one(leaf: Any) -> Any:
        wire_dtypes.movable("all_gather", leaf)
        at = checks.dimension("all_gather", "axis", axis, leaf.ndim + (not tiled))
        return _bind("all_gather", leaf, axes, options, compressor, lambda y: blocks.join(y, at, tiled))

    return each("all_gather", one, x)


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
        return _bind(
            "reduce_scatter", parts, axes, options, compressor, lambda y: jnp.moveaxis(y, 0, at) if tiled else y
        )

    result = each("reduce_scatter", one, x)
    return result if applier is None else applier.gather(result)


def all_to_all(
    x: Tree,
    axis_name: AxisName,
    split_axis: int,
    concat_axis: int,
    *,
    tiled: bool = False,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    algorithm: str | None = None,
    protocol: Protocol | None = None,
    timeout: float | None = None,
    compress: CompressedFormat | None = None,
    seed: Any = None,
) -> Tree:
    """Rank j gets the j-th part of each rank's ``split_axis``, in the order of the ranks along ``concat_axis``.

    As `jax.lax.all_to_all`.

    Args:
        x: An array or a pytree of arrays, of the same shapes and dtypes on all ranks: bool, integers of 4 to 64 bits,
            float8_e4m3fn, float8_e5m2, float16, bfloat16, float32, float64, complex64, complex128, and typed PRNG keys.
        axis_name: Name of a mesh axis of `jax.shard_map` or `jax.pmap`, or of an axis of `jax.vmap`; or a tuple of
            names. The rank is the row-major index over them in this order.
        split_axis: The dimension that is split. It has as many entries as ranks, or with ``tiled`` a multiple of their
            number.
        concat_axis: Where the parts lie in the result: a new dimension, or with ``tiled`` the one along which they are
            concatenated.
        tiled: False: ``split_axis`` goes away, and ``concat_axis`` is new. True: both stay.
        axis_index_groups: Lists of ranks of the axis, all of one length, as in `jax.lax`: each list is a collective of
            its own, and ranks count within it. None: all ranks are one group.
        algorithm: "direct", "pxn" or "deterministic", or the name of one of your own (`jaxring.register_algorithm`).
            None lets the tuner choose.
        protocol: "ll", "simple", "memory" or, for GPUs alone, "ll128". None lets the tuner choose.
        timeout: Seconds until every rank raises `jax.errors.JaxRuntimeError`. None: JAXRING_TIMEOUT.
        compress: The format in which values are sent: "int8", "fp8_e4m3", "bf16" or "int4", in blocks of 128 elements,
            for float32, bfloat16 and float16. Values that would not become shorter are sent as they are. None: no
            compression. docs/concepts/compression.md has the error bounds.
        seed: With ``compress``: an integer or an integer scalar array, by which values are rounded at random. None
            rounds to nearest.

    Returns:
        Among n ranks, of a leaf ``[n, b]`` with ``split_axis=0, concat_axis=1``: ``[b, n]``; of ``[n * a, b]`` with
        ``tiled`` ``[a, n * b]``. Dtypes stay.

    Raises:
        NameError: At trace time: ``axis_name`` is not bound here.
        TypeError: At trace time: a leaf is no array, or its dtype is not served or cannot be compressed.
        ValueError: At trace time: an option is unknown, out of range, or does not serve this call, an axis is no
            dimension of ``x``, or ``split_axis`` cannot be split among the ranks.
        jax.errors.JaxRuntimeError: When the program runs: a rank is lost or late, or ranks disagree about the call.

    Examples:
        From rows of all features to all rows of some features:

            features = jaxring.all_to_all(rows, "data", 1, 0, tiled=True)
    """
    axes = resolve("all_to_all", axis_name, axis_index_groups)
    options = checks.options("all_to_all", axes, None, algorithm, protocol, timeout, call_site())
    compressor = wanted("all_to_all", compress, seed, axes, None, algorithm)

    def one(leaf: Any) -> Any:
        wire_dtypes.movable("all_to_all", leaf)
        split = checks.dimension("all_to_all", "split_axis", split_axis, leaf.ndim)
        concat = checks.dimension("all_to_all", "concat_axis", concat_axis, leaf.ndim)
        parts = blocks.split("all_to_all", leaf, split, axes.size, tiled)
        if tiled:
            parts = jnp.moveaxis(parts, 1, split + 1)
        return _bind("all_to_all", parts, axes, options, compressor, lambda y: blocks.join(y, concat, tiled))

    return each("all_to_all", one, x)


def permute(
    x: Tree,
    axis_name: AxisName,
    perm: Sequence[tuple[int, int]],
    *,
    algorithm: str | None = None,
    protocol: Protocol | None = None,
    timeout: float | None = None,
) -> Tree:
    """Sends each source's value to its target, by (source, target) pairs; as `jax.lax.ppermute`.

    Args:
        x: An array or a pytree of arrays, of the same shapes and dtypes on all ranks: bool, integers of 4 to 64 bits,
            float8_e4m3fn, float8_e5m2, float16, bfloat16, float32, float64, complex64, complex128, and typed PRNG keys.
        axis_name: Name of a mesh axis of `jax.shard_map` or `jax.pmap`, or of an axis of `jax.vmap`; or a tuple of
            names. The rank is the row-major index over them in this order.
        perm: Pairs (source, target) of ranks. A rank is at most once a source and once a target.
        algorithm: "direct" or "deterministic", or the name of one of your own (`jaxring.register_algorithm`). None lets
            the tuner choose.
        protocol: "ll", "simple", "memory" or, for GPUs alone, "ll128". None lets the tuner choose.
        timeout: Seconds until every rank raises `jax.errors.JaxRuntimeError`. None: JAXRING_TIMEOUT.

    Returns:
        The value that came, with the shapes and dtypes of ``x``; zeros on ranks that are no target.

    Raises:
        NameError: At trace time: ``axis_name`` is not bound here.
        TypeError: At trace time: a leaf is no array, or its dtype is not served.
        ValueError: At trace time: an option is unknown, out of range, or does not serve this call, or ``perm`` repeats
            a rank or names one that does not exist.
        jax.errors.JaxRuntimeError: When the program runs: a rank is lost or late, or ranks disagree about the call.

    Examples:
        Around a ring of 4 ranks:

            left = jaxring.permute(x, "data", [(i, (i + 1) % 4) for i in range(4)])
    """
    axes = resolve("permute", axis_name)
    pairs = checks.permutation("permute", perm, axes)
    options = checks.options("permute", axes, None, algorithm, protocol, timeout, call_site())._replace(perm=pairs)

    def one(leaf: Any) -> Any:
        wire_dtypes.movable("permute", leaf)
        return bind("permute", leaf, axes, options)

    return each("permute", one, x)


def barrier(axis_name: AxisName, *, timeout: float | None = None) -> jax.Array:
    """No rank passes before all have arrived.

    XLA orders by data alone: what has to wait must use the result.

    Args:
        axis_name: Name of a mesh axis of `jax.shard_map` or `jax.pmap`, or of an axis of `jax.vmap`; or a tuple of
            names. The rank is the row-major index over them in this order.
        timeout: Seconds until every rank raises `jax.errors.JaxRuntimeError`. None: JAXRING_TIMEOUT.

    Returns:
        A uint32 scalar, 0.

    Raises:
        NameError: At trace time: ``axis_name`` is not bound here.
        ValueError: At trace time: ``timeout`` is out of range.
        jax.errors.JaxRuntimeError: When the program runs: a rank is lost or late, or ranks disagree about the call.

    Examples:
        What is returned waits for all ranks:

            x = x + jaxring.barrier("data").astype(x.dtype)
    """
    axes = resolve("barrier", axis_name)
    options = checks.options("barrier", axes, "sum", None, None, timeout, call_site())
    token: jax.Array = bind("barrier", jnp.zeros((), jnp.uint32), axes, options)
    return token
