"""`jax.vmap` of the collectives: over other data, and over axes that the collectives themselves name.

A batch of other data becomes part of the blocks. Along a vmapped axis that a collective names, the ranks' values are in
one array. That part of the collective is done here, in JAX, and the collective is then called over the remaining axes.
Where the vmapped axis has v entries, with A ranks in the axes named before it and B in those after it, the axis that
counts ranks is (A, v, B) in row-major order, and the remaining ranks are (A, B).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import batching

from jaxring.plan import dtypes
from jaxring.plan.collectives import CALLS
from jaxring.tracing.casting import cast_varying
from jaxring.tracing.exact_sum import exact_sum
from jaxring.tracing.p2p_primitives import ragged_p, recv_p, send_p
from jaxring.tracing.primitives import PRIMITIVES, apply, is_exact
from jaxring.tracing.ragged_sum import ragged_sum_p

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxring.tracing.axes import Axes
    from jaxring.tracing.options import Options


@dataclasses.dataclass(frozen=True)
class Part:
    """One vmapped axis of a collective, and the remaining axes."""

    before: int
    size: int
    after: int
    rest: Axes
    options: Options

    def __call__(self, name: str, x: Any, **changes: Any) -> Any:
        """A collective over the remaining axes."""
        options = self.options._replace(**changes)
        return apply(name, cast_varying(x, self.rest, options), self.rest, options)

    def exact(self, x: Any) -> bool:
        """Whether the caller asked for exact sums, and ``x`` is not summed exactly in any order."""
        return is_exact(self.options) and jnp.issubdtype(x.dtype, jnp.inexact)

    def inward(self, x: Any) -> Any:
        """(A v B, ...) to (A B, v, ...)."""
        x = jnp.moveaxis(x.reshape(self.before, self.size, self.after, *x.shape[1:]), 1, 2)
        return x.reshape(self.before * self.after, self.size, *x.shape[3:])

    def outward(self, x: Any) -> Any:
        """(A B, v, ...) to (A v B, ...)."""
        x = jnp.moveaxis(x.reshape(self.before, self.after, self.size, *x.shape[2:]), 2, 1)
        return x.reshape(self.before * self.size * self.after, *x.shape[3:])

    def place(self, rank: int) -> tuple[int, int]:
        """A rank as the rank among the remaining axes, and the index on the vmapped axis."""
        a, v, b = np.unravel_index(rank, (self.before, self.size, self.after))
        return int(a) * self.after + int(b), int(v)

    def only_at(self, index: int, y: Any) -> Any:
        """A batch with ``y`` at one index and zeros elsewhere."""
        here = jnp.arange(self.size).reshape(-1, *[1] * y.ndim) == index
        return jnp.where(here, y[None], jnp.zeros((), y.dtype))


def part(what: str, data: Any, axes: Axes, options: Options) -> Part:
    """The vmapped axis ``data`` of a collective. NotImplementedError where it cannot be separated."""
    name, size = data.name, data.size
    if axes.groups is not None:
        raise NotImplementedError(
            f"jaxring.{what}: axis_index_groups over an axis of jax.vmap ({name!r}) is not served; split the axis in "
            "two with a reshape and a nested vmap, and name the inner one."
        )
    at = axes.names.index(name)
    if size != axes.sizes[at]:
        raise NotImplementedError(
            f"jaxring.{what}: axis {name!r} of jax.vmap is itself split over mesh axes {data.spmd_name} by "
            "spmd_axis_name; inside jax.shard_map a collective over it is not served. Leave out spmd_axis_name, or "
            "name those mesh axes in the collective."
        )
    rest = axes.over([n for n in axes.names if n != name])
    return Part(math.prod(axes.sizes[:at]), size, math.prod(axes.sizes[at + 1 :]), rest, options)


_REDUCE = {
    "sum": jax.lax.reduce_sum,
    "mean": jax.lax.reduce_sum,
    "prod": jax.lax.reduce_prod,
    "max": jax.lax.reduce_max,
    "min": jax.lax.reduce_min,
    "and": jax.lax.reduce_and,
    "or": jax.lax.reduce_or,
    "xor": jax.lax.reduce_xor,
}


def _reduce(go: Part, name: str, x: Any, layout: Callable[[Any], Any] = lambda y: y, **changes: Any) -> Any:
    """``x`` reduced over the leading vmapped axis and then over the remaining axes. It is rounded once."""
    op = go.options.op
    assert op is not None
    wide = x.astype(jnp.float32) if dtypes.accumulator_bytes(x.dtype) > dtypes.element_bytes(x.dtype) else x
    y = _REDUCE[op](wide, (0,))
    return go(name, layout(y / go.size if op == "mean" else y), **changes).astype(x.dtype)


def _refuse_exact(go: Part, name: str, x: Any) -> None:
    if go.exact(x):
        raise NotImplementedError(
            f"jaxring.{name}, op={go.options.op!r}: algorithm {go.options.algorithm!r} over an axis of jax.vmap is not "
            "served; use all_reduce with op='sum', or jaxring.reproducible_sum."
        )


def _all_reduce(go: Part, x: Any) -> tuple[Any, int | None]:
    if go.exact(x) and go.options.op == "sum":
        return exact_sum(x, (0,), go.rest, go.options._replace(algorithm=None)), None
    _refuse_exact(go, "all_reduce", x)
    return _reduce(go, "all_reduce", x), None


def _root_reduce(go: Part, x: Any) -> tuple[Any, int | None]:
    _refuse_exact(go, "reduce", x)
    root, index = go.place(go.options.root)
    return go.only_at(index, _reduce(go, "reduce", x, root=root)), 0


def _reduce_scatter(go: Part, x: Any) -> tuple[Any, int | None]:
    _refuse_exact(go, "reduce_scatter", x)
    return _reduce(go, "reduce_scatter", x, go.inward), 0


def _all_gather(go: Part, x: Any) -> tuple[Any, int | None]:
    return go.outward(go("all_gather", x)), None


def _gather(go: Part, x: Any) -> tuple[Any, int | None]:
    root, index = go.place(go.options.root)
    return go.only_at(index, go.outward(go("gather", x, root=root))), 0


def _scatter(go: Part, x: Any) -> tuple[Any, int | None]:
    root, index = go.place(go.options.root)
    return go("scatter", go.inward(x[index]), root=root), 0


def _broadcast(go: Part, x: Any) -> tuple[Any, int | None]:
    root, index = go.place(go.options.root)
    return go("broadcast", x[index], root=root), None


def _all_to_all(go: Part, x: Any) -> tuple[Any, int | None]:
    # Blocks for one rank of what is left, and in them (from, to) on the vmapped axis.
    blocks = jax.vmap(go.inward, out_axes=1)(x)
    return jax.vmap(go.outward, in_axes=2, out_axes=1)(go("all_to_all", blocks)), 1


def _permute(go: Part, x: Any) -> tuple[Any, int | None]:
    """A permute over the remaining axes per pairing of indices on the vmapped axis; none where data stays in place."""
    moves: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for source, target in go.options.perm:
        (r, v), (s, w) = go.place(source), go.place(target)
        moves.setdefault((v, w), []).append((r, s))
    # Pairings of one pattern travel together.
    patterns: dict[tuple[tuple[int, int], ...], list[tuple[int, int]]] = {}
    for move, unordered in moves.items():
        patterns.setdefault(tuple(sorted(unordered)), []).append(move)
    ranks = go.before * go.after
    rank = jax.lax.axis_index(go.rest.names) if go.rest.names else 0
    y = jnp.zeros_like(x)
    for pairs, along in patterns.items():
        sources, targets = np.array(along).T
        sent = x[sources]
        moved = sent if pairs == tuple((r, r) for r in range(ranks)) else go("permute", sent, perm=pairs)
        comes = np.isin(np.arange(ranks), [s for _, s in pairs])
        y = y.at[targets].set(jnp.where(jnp.asarray(comes)[rank], moved, y[targets]))
    return y, 0


def _barrier(go: Part, x: Any) -> tuple[Any, int | None]:
    return go("barrier", jax.lax.reduce_max(x, (0,))), None


PARTS: dict[str, Callable[[Part, Any], tuple[Any, int | None]]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "reduce": _root_reduce,
    "gather": _gather,
    "scatter": _scatter,
    "permute": _permute,
    "barrier": _barrier,
}


def _batch(
    name: str, data: Any, args: tuple[Any], dims: tuple[int | None], *, axes: Axes, options: Options
) -> tuple[Any, int | None]:
    collective = CALLS[name]
    (x,), (dim,) = args, dims
    if data.name in axes.names:
        if name not in PARTS:
            _not_over(name, data, axes)
        go = part(name, data, axes, options)
        return PARTS[name](go, in_front(x, dim, data.size))
    if dim is None:
        return apply(name, x, axes, options), None
    # The batch becomes part of the block: behind the axis that counts ranks, where there is one.
    x = jnp.moveaxis(x, dim, int(collective.blocks_in))
    return apply(name, x, axes, options), int(collective.blocks_out)


def in_front(x: Any, dim: int | None, size: int) -> Any:
    """The batch as the first dimension; a value that is not batched is copied."""
    return jnp.broadcast_to(x, (size, *x.shape)) if dim is None else jnp.moveaxis(x, dim, 0)


def _not_over(what: str, data: Any, axes: Axes) -> None:
    if data.name in axes.names:
        raise NotImplementedError(
            f"jaxring.{what}: axis {data.name!r} is one of jax.vmap, over which it is not served; call it over a mesh "
            f"axis, or use jaxring.{'all_to_all' if what == 'ragged_all_to_all' else 'permute'}."
        )


def _token(token: Any, dim: int | None) -> Any:
    """A batch's token: ready when all its tokens are."""
    return token if dim is None else jax.lax.reduce_max(token, (dim,))


def _send(data: Any, args: Any, dims: Any, *, axes: Axes, options: Options) -> tuple[Any, None]:
    """One message with the whole batch, always: the receiver cannot know whether the value is the same for all."""
    _not_over("send", data, axes)
    x, token = in_front(args[0], dims[0], data.size), _token(args[1], dims[1])
    return send_p.bind(x, token, axes=axes, options=options), None  # type: ignore[no-untyped-call]


def _recv(data: Any, args: Any, dims: Any, *, shape: Any, axes: Axes, **params: Any) -> Any:
    _not_over("recv", data, axes)
    token = _token(args[0], dims[0])
    return recv_p.bind(token, shape=(data.size, *shape), axes=axes, **params), [0, None]  # type: ignore[no-untyped-call]


def _ragged(
    primitive: Any, arrays: int, data: Any, args: Any, dims: Any, *, axes: Axes, **params: Any
) -> tuple[Any, int | None]:
    """With offsets and sizes that all share, a batch makes the rows longer; else its entries go one after the other.

    ``arrays`` operands have rows; the others are offsets and sizes.
    """
    _not_over("ragged_all_to_all", data, axes)
    go = functools.partial(primitive.bind, axes=axes, **params)
    if all(dim is None for dim in dims):
        return go(*args), None
    batches = [in_front(x, dim, data.size) for x, dim in zip(args[:arrays], dims[:arrays], strict=True)]
    if all(dim is None for dim in dims[arrays:]):
        return go(*(jnp.moveaxis(x, 0, 1) for x in batches), *args[arrays:]), 1
    batches += [in_front(x, dim, data.size) for x, dim in zip(args[arrays:], dims[arrays:], strict=True)]
    return jax.lax.map(lambda entry: go(*entry), tuple(batches)), 0


for _name in PRIMITIVES:
    batching.fancy_primitive_batchers[PRIMITIVES[_name]] = functools.partial(_batch, _name)
batching.fancy_primitive_batchers[send_p] = _send
batching.fancy_primitive_batchers[recv_p] = _recv
batching.fancy_primitive_batchers[ragged_p] = functools.partial(_ragged, ragged_p, 2)
batching.fancy_primitive_batchers[ragged_sum_p] = functools.partial(_ragged, ragged_sum_p, 1)
