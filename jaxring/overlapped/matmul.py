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
from jaxring.tracing import checks
from jaxring.tracing.axes import call_site, resolve

if TYPE_CHECKING:
    from jaxring.tracing.axes import Axes, AxisName

__all__ = ["all_gather_matmul", "matmul_reduce_scatter"]


def all_gather_matmul(
    x: Any,
    w: Any,
    axis_name: AxisName,
    *,
    chunks: int | None = None,
    algorithm: str | None = None,
    protocol: str | None = None,
    timeout: float | None = None,
) -> jax.Array:
    """``all_gather(x, axis_name, tiled=True) @ w``, whose product begins with the first rows that arrive.

    ``x``: a rank's rows, ``[rows, ..., k]``. ``w``: ``[k, columns]``, a rank's own. Returns ``[ranks * rows, ...,
    columns]`` of the dtype that ``x @ w`` has. ``chunks``: into how many the rows are cut, at most ``rows``; None: as
    many as the tuner's prices say. ``algorithm``, ``protocol`` and ``timeout`` are those of each chunk's all_gather.

    The values are those of the product of whole matrices up to rounding, since a matrix product may add in another
    order where it has other shapes. Differentiable any number of times: the gradient by ``x`` is a
    `matmul_reduce_scatter`, that by ``w`` gathers ``x`` again, chunk by chunk, and adds the chunks' products in float32
    where they are narrower.

    Raises at trace time: ValueError for shapes that do not fit and ``chunks`` out of range.
    """
    x, w, axes = _given("all_gather_matmul", x, w, axis_name)
    options = checks.options("all_gather", axes, None, algorithm, protocol, timeout, call_site())
    rows, width = x.shape[0], x.shape[-1]
    flat = x.reshape(math.prod(x.shape[:-1]), width)
    nbytes, flops = x.size * x.dtype.itemsize, 2 * axes.size * x.size * w.shape[1]
    count = _chunks("all_gather_matmul", chunks, axes, nbytes, x.dtype, flops, rows)
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
    protocol: str | None = None,
    timeout: float | None = None,
) -> jax.Array:
    """``reduce_scatter(x @ w, axis_name, tiled=True)``, whose first rows travel while others are computed.

    ``x``: ``[ranks * rows, ..., k]``, ``w``: ``[k, columns]``, both a rank's own. Returns the rank's ``[rows, ...,
    columns]`` of the sum of all ranks' products. Each sum is in the order of a reduce_scatter of a chunk's size. The
    gradient by ``x`` is an `all_gather_matmul`, that by ``w`` gathers the cotangent, chunk by chunk. Everything else is
    as there. TypeError for bool, whose sum is a count.
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
