"""Matrix products that hide a collective: the product of one chunk is computed while the next chunk travels.

The rows of every rank are cut into chunks. Each chunk is a collective of its own, with its own schedule. Two are in
flight, in order, so that the next one follows without a gap, while a third one is computed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxring.overlapped import matmul_batching as matmul_batching  # registers the rules
from jaxring.overlapped.matmul_primitives import GATHER_MATMUL, MATMUL_SCATTER, bind
from jaxring.plan import pipeline
from jaxring.tracing import checks, oracle
from jaxring.tracing.axes import call_site, resolve
from jaxring.tracing.unchecked import Unchecked

if TYPE_CHECKING:
    from jaxring.tracing.axes import Axes, AxisName
    from jaxring.typing import Protocol

__all__ = ["all_gather_matmul", "matmul_reduce_scatter"]


def all_gather_matmul(
    x: Any,
    w: Any,
    axis_name: AxisName,
    *,
    chunks: int | None = None,
    algorithm: str | None = None,
    protocol: Protocol | None = None,
    timeout: float | None = None,
) -> jax.Array:
    """``all_gather(x, axis_name, tiled=True) @ w``, whose product begins with the first rows that arrive.

    The values are those of the product of whole matrices up to rounding, since a matrix product may add in another
    order where it has other shapes. Differentiable any number of times: the gradient by ``x`` is a
    `matmul_reduce_scatter`, that by ``w`` gathers ``x`` again, chunk by chunk, and adds the chunks' products in float32
    where they are narrower. docs/concepts/collective-matmul.md says how it works, and its source.

    Args:
        x: A rank's rows, ``[rows, ..., k]``: bool, integers of 8 to 64 bits, floats from float8 to float64, complex64
            or complex128.
        w: ``[k, columns]``, a rank's own. Where dtypes differ both get that of ``jax.numpy.result_type(x, w)``.
        axis_name: Name of a mesh axis of `jax.shard_map` or `jax.pmap`, or of an axis of `jax.vmap`; or a tuple of
            names. The rank is the row-major index over them in this order.
        chunks: Into how many chunks the rows are cut, 1 to ``rows``. None: as many as the tuner's prices say.
        algorithm: That of each chunk's `jaxring.all_gather`. None lets the tuner choose.
        protocol: "ll", "simple", "memory" or, for GPUs alone, "ll128". None lets the tuner choose.
        timeout: Seconds until every rank raises `jax.errors.JaxRuntimeError`. None: JAXRING_TIMEOUT.

    Returns:
        ``[ranks * rows, ..., columns]`` of the dtype that ``x @ w`` has.

    Raises:
        NameError: At trace time: ``axis_name`` is not bound here.
        TypeError: At trace time: an operand is no array, or its dtype is not served.
        ValueError: At trace time: shapes do not fit, ``chunks`` is out of range, or an option does not serve the call.
        jax.errors.JaxRuntimeError: When the program runs: a rank is lost or late, or ranks disagree about the call.

    Examples:
        The first half of a tensor-parallel layer, rows sharded before and columns after:

            hidden = jaxring.all_gather_matmul(x, w_in, "model")
    """
    x, w, axes = _given("all_gather_matmul", x, w, axis_name)
    options = checks.options("all_gather", axes, None, algorithm, protocol, timeout, call_site())
    rows, width = x.shape[0], x.shape[-1]
    flat = x.reshape(math.prod(x.shape[:-1]), width)
    nbytes, flops = x.size * x.dtype.itemsize, 2 * axes.size * x.size * w.shape[1]
    count = _chunks("all_gather_matmul", chunks, axes, nbytes, x.dtype, flops, rows)
    oracle.leave_out(Unchecked.PRODUCT, "all_gather_matmul", options.site)
    y = bind(GATHER_MATMUL, flat, w, axes, options, count)
    product: jax.Array = y.reshape(axes.size * rows, *x.shape[1:-1], w.shape[1])
    return product


def matmul_reduce_scatter(
    x: Any,
    w: Any,
    axis_name: AxisName,
    *,
    chunks: int | None = None,
    algorithm: str | None = None,
    protocol: Protocol | None = None,
    timeout: float | None = None,
) -> jax.Array:
    """``reduce_scatter(x @ w, axis_name, tiled=True)``, whose first rows travel while others are computed.

    Each sum is in the order of a reduce_scatter of a chunk's size. Differentiable any number of times: the gradient by
    ``x`` is an `all_gather_matmul`, that by ``w`` gathers the cotangent, chunk by chunk, and adds the chunks' products
    in float32 where they are narrower. docs/concepts/collective-matmul.md says how it works, and its source.

    Args:
        x: ``[ranks * rows, ..., k]``, a rank's own: integers of 8 to 64 bits, floats from float8 to float64, complex64
            or complex128.
        w: ``[k, columns]``, a rank's own. Where dtypes differ both get that of ``jax.numpy.result_type(x, w)``.
        axis_name: Name of a mesh axis of `jax.shard_map` or `jax.pmap`, or of an axis of `jax.vmap`; or a tuple of
            names. The rank is the row-major index over them in this order.
        chunks: Into how many chunks the rows are cut, 1 to ``rows``. None: as many as the tuner's prices say.
        algorithm: That of each chunk's `jaxring.reduce_scatter`. None lets the tuner choose.
        protocol: "ll", "simple", "memory" or, for GPUs alone, "ll128". None lets the tuner choose.
        timeout: Seconds until every rank raises `jax.errors.JaxRuntimeError`. None: JAXRING_TIMEOUT.

    Returns:
        The rank's ``[rows, ..., columns]`` of the sum of all ranks' products, of the dtype that ``x @ w`` has.

    Raises:
        NameError: At trace time: ``axis_name`` is not bound here.
        TypeError: At trace time: an operand is no array, or its dtype is not served, as that of bool, whose sum is a
            count.
        ValueError: At trace time: shapes do not fit, the rows cannot be shared equally by the ranks, ``chunks`` is out
            of range, or an option does not serve the call.
        jax.errors.JaxRuntimeError: When the program runs: a rank is lost or late, or ranks disagree about the call.

    Examples:
        The second half of a tensor-parallel layer:

            y = jaxring.matmul_reduce_scatter(hidden, w_out, "model")
    """
    x, w, axes = _given("matmul_reduce_scatter", x, w, axis_name)
    options = checks.options("reduce_scatter", axes, "sum", algorithm, protocol, timeout, call_site())
    if x.shape[0] % axes.size:
        raise ValueError(
            f"jaxring.matmul_reduce_scatter: the {x.shape[0]} rows of x {x.shape} cannot be shared equally by "
            f"{axes.size} ranks."
        )
    rows, width = x.shape[0] // axes.size, x.shape[-1]
    flat = x.reshape(math.prod(x.shape[:-1]), width)
    if checks.reducible("reduce_scatter", x, "sum").dtype != x.dtype:
        raise TypeError(
            "jaxring.matmul_reduce_scatter: a product of bool is bool, and its sum over the ranks a count; convert x "
            "or w to int32 first."
        )
    nbytes = flat.shape[0] * w.shape[1] * x.dtype.itemsize
    count = _chunks("matmul_reduce_scatter", chunks, axes, nbytes, x.dtype, w.shape[1] * flat.size * 2, rows)
    oracle.leave_out(Unchecked.PRODUCT, "matmul_reduce_scatter", options.site)
    y = bind(MATMUL_SCATTER, flat, w, axes, options, count)
    sums: jax.Array = y.reshape(rows, *x.shape[1:-1], w.shape[1])
    return sums


def _given(what: str, x: Any, w: Any, axis_name: AxisName) -> tuple[Any, Any, Axes]:
    axes = resolve(what, axis_name)
    x, w = checks.array(what, x), checks.array(what, w)
    if x.ndim < 2 or w.ndim != 2 or x.shape[-1] != w.shape[0]:
        raise ValueError(f"jaxring.{what}: x {x.shape} must be [rows, ..., k], and w {w.shape} [k, columns].")
    dtype = jnp.result_type(x, w)
    x, w = x.astype(dtype), w.astype(dtype)
    checks.movable("all_gather", x)
    return x, w, axes


def _chunks(what: str, asked: int | None, axes: Axes, nbytes: int, dtype: Any, flops: int, rows: int) -> int:
    if asked is not None:
        asked = checks.integer(f"jaxring.{what}: chunks", asked)
        if not 1 <= asked <= max(1, rows):
            raise ValueError(f"jaxring.{what}: chunks={asked} must be between 1 and the number of rows, {rows}.")
        return asked
    collective = "all_gather" if what.startswith("all_gather") else "reduce_scatter"
    return pipeline.chunks(collective, axes.size, jax.process_count(), nbytes, dtype.name, flops, rows)
