"""Matrix products that hide a collective: the product of one chunk is computed while the next chunk travels.

The rows of every rank are cut into chunks. Each chunk is a collective of its own, with its own schedule. At most two
are in flight, in order, so that the first one has the links to itself and the next one follows without a gap.
"""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxring import _compat
from jaxring.collectives import Started
from jaxring.overlap import Handle
from jaxring.plan import pipeline
from jaxring.tracing import checks
from jaxring.tracing.axes import call_site, resolve
from jaxring.tracing.casting import cast_alike
from jaxring.tracing.lowering import fusion
from jaxring.tracing.primitives import apply, define, lower

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jaxring.tracing.axes import Axes, AxisName
    from jaxring.tracing.options import Options

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
    `matmul_reduce_scatter`, that by ``w`` gathers ``x`` again, chunk by chunk.

    Raises at trace time: ValueError for shapes that do not fit and ``chunks`` out of range.
    """
    x, w, axes = _given("all_gather_matmul", x, w, axis_name)
    options = checks.options("all_gather", axes, None, algorithm, protocol, timeout, call_site())
    rows, width = x.shape[0], x.shape[-1]
    flat = x.reshape(-1, width)
    nbytes, flops = x.size * x.dtype.itemsize, 2 * axes.size * x.size * w.shape[1]
    count = _chunks("all_gather_matmul", chunks, axes, nbytes, x.dtype, flops, rows)
    y = _bind(gather_matmul_p, flat, w, axes, options, count)
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
    as there.
    """
    x, w, axes = _given("matmul_reduce_scatter", x, w, axis_name)
    options = checks.options("reduce_scatter", axes, "sum", algorithm, protocol, timeout, call_site())
    if x.shape[0] % axes.size:
        raise ValueError(
            f"jaxring.matmul_reduce_scatter: the {x.shape[0]} rows of x {x.shape} cannot be shared equally by "
            f"{axes.size} ranks."
        )
    rows, width = x.shape[0] // axes.size, x.shape[-1]
    flat = x.reshape(-1, width)
    checks.reducible("reduce_scatter", x, "sum")
    nbytes = flat.shape[0] * w.shape[1] * x.dtype.itemsize
    count = _chunks("matmul_reduce_scatter", chunks, axes, nbytes, x.dtype, w.shape[1] * flat.size * 2, rows)
    y = _bind(matmul_scatter_p, flat, w, axes, options, count)
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


def _bind(primitive: Primitive, a: Any, b: Any, axes: Axes, options: Options, count: int) -> Any:
    a, b = cast_alike([a, b], axes, options)
    return primitive.bind(a, b, axes=axes, options=options, chunks=count)  # type: ignore[no-untyped-call]


def _other(name: str, options: Options) -> Options:
    """The options of another collective for a derivative."""
    op = "sum" if name == "reduce_scatter" else None
    return options._replace(op=op, algorithm=checks.fitting(options.algorithm, name))


def _parts(rows: int, count: int) -> list[slice]:
    bounds = [rows * i // count for i in range(count + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(bounds) if b > a]


def _start(name: str, operand: Any, axes: Axes, options: Options) -> Handle[Any]:
    options = options._replace(started=True)
    return Handle(Started(apply(name, operand, axes, options), lambda y: y), operand)


def _gathered(x: Any, count: int, axes: Axes, options: Options) -> Iterator[tuple[slice, Any]]:
    """The chunks of all ranks' rows, ``[ranks, rows of a chunk, ...]``, each with the rows that it is."""
    parts = _parts(x.shape[0], count)
    flying = [_start("all_gather", x[part], axes, options) for part in parts[:2]]
    for i, part in enumerate(parts):
        if i + 2 < len(parts):
            # The next but one is sent when this one is here.
            found, following = flying[i].done(x[parts[i + 2]])
            flying.append(_start("all_gather", following, axes, options))
        else:
            found = flying[i].done()
        yield part, found


def _gather_matmul(x: Any, w: Any, *, axes: Axes, options: Options, chunks: int) -> Any:
    found = [chunk @ w for _, chunk in _gathered(x, chunks, axes, options)]
    return jnp.concatenate(found, axis=1).reshape(-1, w.shape[1])


def _gather_outer(x: Any, b: Any, *, axes: Axes, options: Options, chunks: int) -> Any:
    """``all_gather(x).T @ b``: what gradients by weights are."""
    b = b.reshape(axes.size, x.shape[0], b.shape[1])
    found = [jnp.einsum("rck,rcn->kn", chunk, b[:, part]) for part, chunk in _gathered(x, chunks, axes, options)]
    return functools.reduce(jnp.add, found)


def _matmul_scatter(x: Any, w: Any, *, axes: Axes, options: Options, chunks: int) -> Any:
    x = x.reshape(axes.size, x.shape[0] // axes.size, x.shape[1])
    flying: list[Handle[Any]] = []
    found: list[Any] = []
    for part in _parts(x.shape[1], chunks):
        product = x[:, part] @ w
        if len(flying) >= 2:
            mine, product = flying[len(found)].done(product)
            found.append(mine)
        flying.append(_start("reduce_scatter", product, axes, options))
    found += [handle.done() for handle in flying[len(found) :]]
    return jnp.concatenate(found, axis=0)


def _transposed(primitive: Primitive, a: Any, b: Any, name: str, options: Options, **params: Any) -> Any:
    axes, chunks = params["axes"], params["chunks"]
    return _bind(primitive, a, b, axes, _other(name, options), chunks)


def _shape_gather_matmul(x: Any, w: Any, axes: Axes) -> tuple[int, ...]:
    return axes.size * x.shape[0], w.shape[1]


def _shape_gather_outer(x: Any, b: Any, axes: Axes) -> tuple[int, ...]:
    del axes
    return x.shape[1], b.shape[1]


def _shape_matmul_scatter(x: Any, w: Any, axes: Axes) -> tuple[int, ...]:
    return x.shape[0] // axes.size, w.shape[1]


def _define(name: str, pipelined: Callable[..., Any], shape: Callable[..., tuple[int, ...]]) -> Primitive:
    """A primitive of two matrices that is linear in each."""
    primitive = Primitive(f"jaxring_{name}")

    def abstract(a: Any, b: Any, *, axes: Axes, options: Options, chunks: int) -> Any:
        del options, chunks
        varying = frozenset(a.manual_axis_type.varying) | frozenset(b.manual_axis_type.varying)
        return _compat.with_varying(a, shape(a, b, axes), varying)

    def rule(ctx: Any, a: Any, b: Any, **params: Any) -> Any:
        avals_in, avals_out = ([_compat.untyped(aval) for aval in avals] for avals in (ctx.avals_in, ctx.avals_out))
        ctx = ctx.replace(avals_in=avals_in, avals_out=avals_out)
        with fusion.apart():  # chunks that shared a call would travel together
            return mlir.lower_fun(pipelined, multiple_results=False)(ctx, a, b, **params)

    def batch(args: Any, dims: Any, **params: Any) -> Any:
        return jax.vmap(functools.partial(pipelined, **params), in_axes=tuple(dims))(*args), 0

    define(primitive, abstract)
    lower(primitive, rule)
    batching.primitive_batchers[primitive] = batch
    return primitive


gather_matmul_p = _define("all_gather_matmul", _gather_matmul, _shape_gather_matmul)
gather_outer_p = _define("all_gather_outer", _gather_outer, _shape_gather_outer)
matmul_scatter_p = _define("matmul_reduce_scatter", _matmul_scatter, _shape_matmul_scatter)

# With G for gathering rows and S for its transpose, the three are G(x) w, G(x)' b and S(x w). Of each, linear in each
# of its operands, the transposes are these again.


def _by_first(primitive: Primitive, name: str, operands: Callable[[Any, Any], tuple[Any, Any]]) -> Callable[..., Any]:
    def rule(ct: Any, first: Any, second: Any, **params: Any) -> Any:
        del first
        return _transposed(primitive, *operands(ct, second), name, **params)

    return rule


def _by_second(primitive: Primitive, name: str, operands: Callable[[Any, Any], tuple[Any, Any]]) -> Callable[..., Any]:
    def rule(ct: Any, first: Any, second: Any, **params: Any) -> Any:
        del second
        return _transposed(primitive, *operands(ct, first), name, **params)

    return rule


ad.defbilinear(  # type: ignore[no-untyped-call]
    gather_matmul_p,
    _by_first(matmul_scatter_p, "reduce_scatter", lambda ct, w: (ct, w.T)),
    _by_second(gather_outer_p, "all_gather", lambda ct, x: (x, ct)),
)
ad.defbilinear(  # type: ignore[no-untyped-call]
    gather_outer_p,
    _by_first(matmul_scatter_p, "reduce_scatter", lambda ct, b: (b, ct.T)),
    _by_second(gather_matmul_p, "all_gather", lambda ct, x: (x, ct)),
)
ad.defbilinear(  # type: ignore[no-untyped-call]
    matmul_scatter_p,
    _by_first(gather_matmul_p, "all_gather", lambda ct, w: (ct, w.T)),
    # The transpose of G(ct)' x, so that the cotangent is what is gathered.
    lambda ct, x, w, **params: _by_second(gather_outer_p, "all_gather", lambda ct, x: (ct, x))(ct, x, w, **params).T,
)
