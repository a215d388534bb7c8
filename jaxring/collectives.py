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
    op: str = "sum",
    *,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    algorithm: str | None = None,
    protocol: str | None = None,
    timeout: float | None = None,
    compress: str | None = None,
    seed: Any = None,
    epilogue: Epilogue | None = None,
    assume_replicated: bool = False,
) -> Tree:
    """Every rank gets ``op`` over the ranks' values: "sum", "prod", "min", "max", "mean", "and", "or" or "xor".

    Shapes and dtypes stay; the sum of bool counts in int32, as `jax.lax.psum` does. All ranks get the same bits.
    float16, bfloat16 and float8 accumulate in float32 and round once. TypeError where ``op`` is not defined.

    Under ``check_vma=True`` a `ReplicatedOperandWarning` is given for a sum, mean or product of a value whose type says
    that it is the same on all ranks. The gradient of replicated parameters is one, because JAX has summed it already:
    see `jaxring.data_parallel`. ``assume_replicated=True`` turns the warning off.
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
    protocol: str | None = None,
    timeout: float | None = None,
    compress: str | None = None,
    seed: Any = None,
) -> Tree:
    """Every rank gets all ranks' values: stacked on a new dimension ``axis``; with ``tiled``, concatenated along it."""
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
    op: str = "sum",
    *,
    scatter_dimension: int = 0,
    tiled: bool = False,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    algorithm: str | None = None,
    protocol: str | None = None,
    timeout: float | None = None,
    compress: str | None = None,
    seed: Any = None,
    epilogue: None = None,
    assume_replicated: bool = False,
) -> Tree: ...
@overload
def reduce_scatter(
    x: Any,
    axis_name: AxisName,
    op: str = "sum",
    *,
    scatter_dimension: int = 0,
    tiled: bool = False,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    algorithm: str | None = None,
    protocol: str | None = None,
    timeout: float | None = None,
    compress: str | None = None,
    seed: Any = None,
    epilogue: Epilogue,
    assume_replicated: bool = False,
) -> Any: ...
def reduce_scatter(
    x: Any,
    axis_name: AxisName,
    op: str = "sum",
    *,
    scatter_dimension: int = 0,
    tiled: bool = False,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    algorithm: str | None = None,
    protocol: str | None = None,
    timeout: float | None = None,
    compress: str | None = None,
    seed: Any = None,
    epilogue: Epilogue | None = None,
    assume_replicated: bool = False,
) -> Any:
    """An `all_reduce` whose result is split: each rank keeps its part of ``scatter_dimension``.

    That dimension has as many entries as ranks and goes away, or with ``tiled`` is a multiple of their number and
    shrinks. As `jax.lax.psum_scatter`, with a choice of operation. ``assume_replicated`` as in `all_reduce`.

    With an epilogue that has states (``sgd`` with momentum, ``adam``) the result is a tuple: the pytree of the new
    parameters, then those of the states.
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
    protocol: str | None = None,
    timeout: float | None = None,
    compress: str | None = None,
    seed: Any = None,
) -> Tree:
    """Rank j gets the j-th part of each rank's ``split_axis``, concatenated along ``concat_axis``; as in `jax.lax`."""
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
    protocol: str | None = None,
    timeout: float | None = None,
) -> Tree:
    """Sends each source's value to its target, by (source, target) pairs; ranks that are no target get zeros."""
    axes = resolve("permute", axis_name)
    pairs = checks.permutation("permute", perm, axes)
    options = checks.options("permute", axes, None, algorithm, protocol, timeout, call_site())._replace(perm=pairs)

    def one(leaf: Any) -> Any:
        wire_dtypes.movable("permute", leaf)
        return bind("permute", leaf, axes, options)

    return each("permute", one, x)


def barrier(axis_name: AxisName, *, timeout: float | None = None) -> jax.Array:
    """No rank passes before all have arrived. Returns a uint32 zero; code that must wait has to use it."""
    axes = resolve("barrier", axis_name)
    options = checks.options("barrier", axes, "sum", None, None, timeout, call_site())
    token: jax.Array = bind("barrier", jnp.zeros((), jnp.uint32), axes, options)
    return token
