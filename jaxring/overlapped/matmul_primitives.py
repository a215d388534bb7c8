"""The pipelines behind collective matrix products, and the primitives that stand for them.

Each primitive is of two matrices and linear in each. They are lowered to their pipelines; before that, differentiation
and batching see one operation.
"""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir

from jaxring import _compat
from jaxring.overlap import Handle
from jaxring.plan import dtypes
from jaxring.plan.pipeline import IN_FLIGHT
from jaxring.tracing import checks
from jaxring.tracing.calls import Started
from jaxring.tracing.casting import cast_alike
from jaxring.tracing.lowering import fusion
from jaxring.tracing.primitives import apply, define, lower

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jaxring.tracing.axes import Axes
    from jaxring.tracing.options import Options


def bind(product: Product, a: Any, b: Any, axes: Axes, options: Options, count: int) -> Any:
    """A product in ``count`` chunks."""
    a, b = cast_alike([a, b], axes, options)
    return product.primitive.bind(a, b, axes=axes, options=options, chunks=count)  # type: ignore[no-untyped-call]


def _other(name: str, options: Options) -> Options:
    """The options of another collective for a derivative."""
    op = "sum" if name == "reduce_scatter" else None
    return options._replace(op=op, algorithm=checks.fitting(options.algorithm, name))


def _parts(rows: int, count: int) -> list[slice]:
    if rows == 0:
        return [slice(0, 0)]
    bounds = [rows * i // count for i in range(count + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(bounds) if b > a]


def _start(name: str, operand: Any, axes: Axes, options: Options, parts: int) -> Handle[Any]:
    options = options._replace(started=True, parts=parts)
    return Handle(Started(apply(name, operand, axes, options), lambda y: y), operand)


def _gathered(x: Any, count: int, axes: Axes, options: Options) -> Iterator[tuple[slice, Any]]:
    """The chunks of all ranks' rows, ``[ranks, rows of a chunk, ...]``, each with the rows that it is."""
    parts = _parts(x.shape[0], count)
    in_flight = [_start("all_gather", x[part], axes, options, len(parts)) for part in parts[:IN_FLIGHT]]
    for i, part in enumerate(parts):
        if i + IN_FLIGHT < len(parts):
            # The next but one is sent when this one is here.
            found, following = in_flight[i].done(x[parts[i + IN_FLIGHT]])
            in_flight.append(_start("all_gather", following, axes, options, len(parts)))
        else:
            found = in_flight[i].done()
        yield part, found


def _gather_matmul(x: Any, w: Any, *, axes: Axes, options: Options, chunks: int) -> Any:
    found = [chunk @ w for _, chunk in _gathered(x, chunks, axes, options)]
    return jnp.concatenate(found, axis=1).reshape(axes.size * x.shape[0], w.shape[1])


def _gather_outer(x: Any, b: Any, *, axes: Axes, options: Options, chunks: int) -> Any:
    """``all_gather(x).T @ b``: what gradients by weights are. It is rounded once, however many chunks there are."""
    b = b.reshape(axes.size, x.shape[0], b.shape[1])
    narrow = dtypes.accumulator_bytes(x.dtype) > dtypes.element_bytes(x.dtype)
    dtype = jnp.float32 if narrow else x.dtype
    product = functools.partial(jnp.einsum, "rck,rcn->kn", preferred_element_type=dtype)
    found = [product(chunk, b[:, part]) for part, chunk in _gathered(x, chunks, axes, options)]
    return functools.reduce(jnp.add, found).astype(x.dtype)


def _matmul_scatter(x: Any, w: Any, *, axes: Axes, options: Options, chunks: int) -> Any:
    x = x.reshape(axes.size, x.shape[0] // axes.size, x.shape[1])
    in_flight: list[Handle[Any]] = []
    found: list[Any] = []
    parts = _parts(x.shape[1], chunks)
    for part in parts:
        rows = x[:, part]
        if len(in_flight) > IN_FLIGHT:
            # While two travel one is computed. The rows wait and not the product: XLA would compute all products first,
            # since nothing keeps it from that, and the first chunk would be sent late.
            mine, rows = in_flight[len(found)].done(rows)
            found.append(mine)
        in_flight.append(_start("reduce_scatter", rows @ w, axes, options, len(parts)))
    found += [handle.done() for handle in in_flight[len(found) :]]
    return jnp.concatenate(found, axis=0)


def _transposed(product: Product, a: Any, b: Any, name: str, options: Options, **params: Any) -> Any:
    axes, chunks = params["axes"], params["chunks"]
    return bind(product, a, b, axes, _other(name, options), chunks)


Shape = tuple[int, ...]


def _shape_gather_matmul(x: Shape, w: Shape, ranks: int) -> Shape:
    return ranks * x[0], w[1]


def _shape_gather_outer(x: Shape, b: Shape, ranks: int) -> Shape:
    del ranks
    return x[1], b[1]


def _shape_matmul_scatter(x: Shape, w: Shape, ranks: int) -> Shape:
    return x[0] // ranks, w[1]


class Product(NamedTuple):
    """A primitive of two matrices, its pipeline, and the shape of its result by theirs and the number of ranks."""

    primitive: Primitive
    pipelined: Callable[..., Any]
    shape: Callable[[Shape, Shape, int], Shape]


def _define(name: str, pipelined: Callable[..., Any], shape: Callable[[Shape, Shape, int], Shape]) -> Product:
    primitive = Primitive(f"jaxring_{name}")

    def abstract(a: Any, b: Any, *, axes: Axes, options: Options, chunks: int) -> Any:
        del options, chunks
        varying = frozenset(a.manual_axis_type.varying) | frozenset(b.manual_axis_type.varying)
        return _compat.with_varying(a, shape(a.shape, b.shape, axes.size), varying)

    def rule(ctx: Any, a: Any, b: Any, **params: Any) -> Any:
        avals_in, avals_out = ([_compat.untyped(aval) for aval in avals] for avals in (ctx.avals_in, ctx.avals_out))
        ctx = ctx.replace(avals_in=avals_in, avals_out=avals_out)
        with fusion.apart():  # chunks that shared a call would travel together
            return mlir.lower_fun(pipelined, multiple_results=False)(ctx, a, b, **params)

    define(primitive, abstract)
    lower(primitive, rule)
    return Product(primitive, pipelined, shape)


GATHER_MATMUL = _define("all_gather_matmul", _gather_matmul, _shape_gather_matmul)
GATHER_OUTER = _define("all_gather_outer", _gather_outer, _shape_gather_outer)
MATMUL_SCATTER = _define("matmul_reduce_scatter", _matmul_scatter, _shape_matmul_scatter)

# With G for gathering rows and S for its transpose, the three are G(x) w, G(x)' b and S(x w). Of each, linear in each
# of its operands, the transposes are these again.


def _by_first(product: Product, name: str, operands: Callable[[Any, Any], tuple[Any, Any]]) -> Callable[..., Any]:
    def rule(ct: Any, first: Any, second: Any, **params: Any) -> Any:
        del first
        return _transposed(product, *operands(ct, second), name, **params)

    return rule


def _by_second(product: Product, name: str, operands: Callable[[Any, Any], tuple[Any, Any]]) -> Callable[..., Any]:
    def rule(ct: Any, first: Any, second: Any, **params: Any) -> Any:
        del second
        return _transposed(product, *operands(ct, first), name, **params)

    return rule


ad.defbilinear(  # type: ignore[no-untyped-call]
    GATHER_MATMUL.primitive,
    _by_first(MATMUL_SCATTER, "reduce_scatter", lambda ct, w: (ct, w.T)),
    _by_second(GATHER_OUTER, "all_gather", lambda ct, x: (x, ct)),
)
ad.defbilinear(  # type: ignore[no-untyped-call]
    GATHER_OUTER.primitive,
    _by_first(MATMUL_SCATTER, "reduce_scatter", lambda ct, b: (b, ct.T)),
    _by_second(GATHER_MATMUL, "all_gather", lambda ct, x: (x, ct)),
)
ad.defbilinear(  # type: ignore[no-untyped-call]
    MATMUL_SCATTER.primitive,
    _by_first(GATHER_MATMUL, "all_gather", lambda ct, w: (ct, w.T)),
    # The transpose of G(ct)' x, so that the cotangent is what is gathered.
    lambda ct, x, w, **params: _by_second(GATHER_OUTER, "all_gather", lambda ct, x: (ct, x))(ct, x, w, **params).T,
)
