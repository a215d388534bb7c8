"""all_gather, all_to_all and permute: values that move as they are. See `jaxring.collectives` for their arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import jax.numpy as jnp

from jaxring.compress.call_arguments import bind, wanted
from jaxring.tracing import blocks, checks, wire_dtypes
from jaxring.tracing.axes import call_site, resolve
from jaxring.tracing.calls import each

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.tracing.axes import AxisName
    from jaxring.typing import CompressedFormat, Protocol

__all__ = ["all_gather", "all_to_all", "permute"]

Tree = TypeVar("Tree")


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
        return bind("all_gather", leaf, axes, options, compressor, lambda y: blocks.join(y, at, tiled))

    return each("all_gather", one, x)


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
        algorithm: "direct", "pxn", "multileader" or "deterministic", or the name of one of your own
            (`jaxring.register_algorithm`). None lets the tuner choose.
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
        return bind("all_to_all", parts, axes, options, compressor, lambda y: blocks.join(y, concat, tiled))

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
        return bind("permute", leaf, axes, options, None)

    return each("permute", one, x)
