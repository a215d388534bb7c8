"""The primitive of `jaxring.reproducible_sum`: exact sums over dimensions of the operand and over ranks, rounded once.

Each rank gives its own sums as integers, an ordinary all-reduce adds these, and each rank rounds the same total.
Without dimensions of the operand there is nothing to add before: then CPUs make an all-reduce by algorithm
"reproducible", which gives the same bits and sends fewer bytes.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

import jaxring._native as _native
from jaxring import _compat
from jaxring.plan import dtypes
from jaxring.runtime.service import GIVE_EXACT_SUMS, ROUND_EXACT_SUMS
from jaxring.tracing import exact_integers
from jaxring.tracing.casting import cast_varying
from jaxring.tracing.lowering import platforms
from jaxring.tracing.primitives import apply, define, lower

if TYPE_CHECKING:
    from jaxring.tracing.axes import Axes
    from jaxring.tracing.options import Options

DTYPES = ("float16", "bfloat16", "float32", "float64")
# The counts of the words are of 16 bits.
MOST_RANKS = 0xFFFF

exact_sum_p = Primitive("jaxring_reproducible_sum")


def exact_sum(x: Any, dims: tuple[int, ...], axes: Axes, options: Options) -> Any:
    """Binds the primitive: sums over the dimensions ``dims``, in ascending order, and over the ranks of ``axes``."""
    x = cast_varying(x, axes, options) if axes.names else x
    return exact_sum_p.bind(x, dims=dims, axes=axes, options=options)  # type: ignore[no-untyped-call]


def _kept(shape: tuple[int, ...], dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for d, size in enumerate(shape) if d not in dims)


def _terms(x: Any, dims: tuple[int, ...]) -> Any:
    """``x`` as (outer, count, inner), of which the middle dimension is summed."""
    if dims and dims != tuple(range(dims[0], dims[-1] + 1)):
        x = x.transpose(*dims, *(d for d in range(x.ndim) if d not in dims))
        dims = tuple(range(len(dims)))
    first, end = (dims[0], dims[-1] + 1) if dims else (0, 0)
    return x.reshape(math.prod(x.shape[:first]), math.prod(x.shape[first:end]), math.prod(x.shape[end:]))


def _give(terms: Any, width: int) -> Any:
    words = _native.exact_words(dtypes.dtype_code(terms.dtype), width)
    shape = jax.ShapeDtypeStruct((terms.shape[0], words, terms.shape[2]), jnp.uint32)  # type: ignore[no-untyped-call]
    return jax.ffi.ffi_call(GIVE_EXACT_SUMS, shape)(terms, width=np.int64(width))


def _round(words: Any, width: int, dtype: Any) -> Any:
    shape = jax.ShapeDtypeStruct((words.shape[0], words.shape[2]), dtype)  # type: ignore[no-untyped-call]
    return jax.ffi.ffi_call(ROUND_EXACT_SUMS, shape)(words, width=np.int64(width))


def _sum(x: Any, *, dims: tuple[int, ...], axes: Axes, options: Options, on_cpus: bool) -> Any:
    shape = _kept(x.shape, dims)
    if x.size == 0:
        return jnp.zeros(shape, x.dtype)
    count = math.prod(x.shape[d] for d in dims)
    ranks = axes.size if axes.names else 1
    if on_cpus and count == 1 and ranks > 1:
        return apply("all_reduce", x.reshape(shape), axes, options._replace(algorithm="reproducible"))
    # The widest digits that the ranks' sums leave room for.
    width = 32 - (ranks - 1).bit_length() if on_cpus else exact_integers.WIDTH
    terms = _terms(x, dims)
    words = _give(terms, width) if on_cpus else exact_integers.give(terms)
    words = apply("all_reduce", words, axes, options)
    y = _round(words, width, x.dtype) if on_cpus else exact_integers.rounded(words, x.dtype)
    return y.reshape(shape)


def _abstract(x: Any, *, dims: tuple[int, ...], axes: Axes, options: Options) -> Any:
    del options
    varying = frozenset(x.manual_axis_type.varying)
    if axes.groups is None:
        varying -= frozenset(axes.mesh_names)
    elif _compat.tracks_varying():
        varying |= frozenset(axes.mesh_names)
    return _compat.with_varying(x, _kept(x.shape, dims), varying)


def _lower(ctx: Any, x: Any, **params: Any) -> Any:
    body = functools.partial(_sum, on_cpus=platforms.for_cpus(ctx), **params)
    avals_in, avals_out = ([_compat.untyped(aval) for aval in avals] for avals in (ctx.avals_in, ctx.avals_out))
    return mlir.lower_fun(body, multiple_results=False)(ctx.replace(avals_in=avals_in, avals_out=avals_out), x)


define(exact_sum_p, _abstract)
lower(exact_sum_p, _lower)
