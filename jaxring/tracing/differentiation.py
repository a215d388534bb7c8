"""Derivatives of the collectives, by `jax.lax`'s conventions.

With ``check_vma=True`` the sum over ranks and the cast from replicated to varying are each other's transposes. Without,
a replicated result is taken as one value per rank, so the sum is its own transpose; so it is over axes of `jax.vmap`.
The operand's type shows which case holds: it varies over a mesh axis exactly where JAX tracks that.

A prod, min or max is differentiated as a sum of weighted tangents: each rank's weight is computed from the values, and
the sum is linear. Ties of min and max share evenly. The weights gather all values. For prod that makes zeros, and
second derivatives at them, right. For min and max it compares values of one buffer. The operand itself must not be
compared with the result: XLA may compute it a second time for that, with other roundings, and no rank has the minimum.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad

from jaxring.tracing import checks, oracle
from jaxring.tracing.casting import cast_alike, cast_p, cast_varying
from jaxring.tracing.p2p_primitives import ragged_p, recv_p, send_p
from jaxring.tracing.primitives import PRIMITIVES, apply
from jaxring.tracing.ragged_sum import ragged_sum_p
from jaxring.tracing.unchecked import Unchecked

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxring.tracing.axes import Axes
    from jaxring.tracing.options import Options

LINEAR = (None, "sum", "mean")


def _bind(name: str, x: Any, axes: Axes, options: Options, **changes: Any) -> Any:
    """Another collective for a derivative, with those of the caller's options that it supports."""
    changes.setdefault("op", None)
    options = options._replace(algorithm=checks.fitting(options.algorithm, name), **changes)
    oracle.leave_out(Unchecked.DERIVATIVE, name, options.site)
    return apply(name, cast_varying(x, axes, options), axes, options)


def _total(x: Any, axes: Axes, options: Options) -> Any:
    return _bind("all_reduce", x, axes, options, op="sum", root=0, perm=(), tag=0)


def rank(axes: Axes) -> Any:
    """This rank's number in its group."""
    index = jax.lax.axis_index(axes.names)
    if axes.groups is None:
        return index
    place = {rank: i for group in axes.groups for i, rank in enumerate(group)}
    return jnp.asarray([place[i] for i in range(len(place))])[index]


def typed(x: Any, axes: Axes) -> tuple[Axes, Axes]:
    """The axes over which the result's type says that it is one value, and the others."""
    known = x.aval.manual_axis_type.varying if axes.groups is None else ()
    typed = [name for name in axes.mesh_names if name in known]
    return axes.over(typed), axes.over([name for name in axes.names if name not in typed])


def share(ct: Any, axes: Axes, options: Options) -> Any:
    """A result's cotangent as the sum's: a mean is the sum over the number of ranks."""
    return ct / axes.size if options.op == "mean" else ct


def _transpose_all_reduce(ct: Any, x: Any, axes: Axes, options: Options) -> Any:
    ct = share(ct, axes, options)
    if axes.groups is not None:
        return _total(ct, axes, options)
    _, others = typed(x, axes)
    return _total(ct, others, options) if others.names else ct


def _transpose_broadcast(ct: Any, x: Any, axes: Axes, options: Options) -> Any:
    if axes.groups is not None:
        return _bind("reduce", ct, axes, options, op="sum")
    alike, others = typed(x, axes)
    place = dict(zip(axes.names, np.unravel_index(options.root, axes.sizes), strict=True))

    def root(part: Axes) -> int:
        return int(np.ravel_multi_index([place[name] for name in part.names], part.sizes)) if part.names else 0

    if others.names:
        ct = _bind("reduce", ct, others, options, op="sum", root=root(others))
    if alike.names:
        ct = jnp.where(rank(alike) == root(alike), cast_varying(ct, alike, options), jnp.zeros((), ct.dtype))
    return ct


def _transpose_reduce(ct: Any, x: Any, axes: Axes, options: Options) -> Any:
    del x
    return _bind("broadcast", share(ct, axes, options), axes, options)


def _transpose_reduce_scatter(ct: Any, x: Any, axes: Axes, options: Options) -> Any:
    del x
    return _bind("all_gather", share(ct, axes, options), axes, options)


def _transpose_permute(ct: Any, x: Any, axes: Axes, options: Options) -> Any:
    del x
    return _bind("permute", ct, axes, options, perm=tuple(sorted((t, s) for s, t in options.perm)))


def _swap(name: str, op: str | None = None) -> Callable[..., Any]:
    def transpose(ct: Any, x: Any, axes: Axes, options: Options) -> Any:
        del x
        return _bind(name, ct, axes, options, op=op)

    return transpose


TRANSPOSES: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "all_reduce": _transpose_all_reduce,
    "all_gather": _swap("reduce_scatter", "sum"),
    "reduce_scatter": _transpose_reduce_scatter,
    "all_to_all": _swap("all_to_all"),
    "permute": _transpose_permute,
    "broadcast": _transpose_broadcast,
    "reduce": _transpose_reduce,
    "gather": _swap("scatter"),
    "scatter": _swap("gather"),
}


def like_primal(ct: Any, x: Any, axes: Axes, options: Options) -> Any:
    """A cotangent typed as its primal is."""
    missing = [name for name in axes.mesh_names if name in x.aval.manual_axis_type.varying]
    return cast_varying(ct, axes.over(missing), options._replace(op=None))


def _transpose(name: str, ct: Any, x: Any, *, axes: Axes, options: Options) -> list[Any]:
    assert options.op in LINEAR, options.op
    return [like_primal(TRANSPOSES[name](ct, x, axes, options), x, axes, options)]


def _weights(x: Any, axes: Axes, options: Options) -> Any:
    """The derivative of the reduction by this rank's value, at every element."""
    gathered = _bind("all_gather", x, axes, options)
    mine = jnp.arange(axes.size).reshape(-1, *[1] * x.ndim) == rank(axes)
    if options.op == "prod":
        return jnp.prod(jnp.where(mine, jnp.ones((), x.dtype), gathered), axis=0)
    gathered = jax.lax.stop_gradient(gathered)
    best = jnp.min(gathered, axis=0) if options.op == "min" else jnp.max(gathered, axis=0)
    hits = (gathered == best).astype(x.dtype)
    return jnp.sum(jnp.where(mine, hits, jnp.zeros((), x.dtype)), axis=0) / jnp.sum(hits, axis=0)


def _jvp(name: str, primals: tuple[Any], tangents: tuple[Any], *, axes: Axes, options: Options) -> tuple[Any, Any]:
    (x,), (tangent,) = primals, tangents
    y = apply(name, x, axes, options)
    if isinstance(tangent, ad.Zero):
        return y, ad.Zero(jax.typeof(y).to_tangent_aval())
    if options.op in LINEAR:
        oracle.leave_out(Unchecked.DERIVATIVE, name, options.site)
        return y, apply(name, tangent, axes, options)
    return y, _bind(name, tangent * _weights(x, axes, options), axes, options, op="sum")


def _transpose_cast(ct: Any, x: Any, *, axes: Axes, options: Options) -> list[Any]:
    del x
    return [_total(ct, axes, options)]


def _ragged_jvp(
    primals: tuple[Any, ...], tangents: tuple[Any, ...], *, axes: Axes, options: Options
) -> tuple[Any, Any]:
    y = ragged_p.bind(*primals, axes=axes, options=options)  # type: ignore[no-untyped-call]
    if all(isinstance(t, ad.Zero) for t in tangents[:2]):
        return y, ad.Zero(jax.typeof(y).to_tangent_aval())
    moving = [ad.instantiate_zeros(t) for t in tangents[:2]]  # type: ignore[no-untyped-call]
    operands = cast_alike([*moving, *primals[2:]], axes, options)
    return y, ragged_p.bind(*operands, axes=axes, options=options)  # type: ignore[no-untyped-call]


def _ragged_transpose(ct: Any, x: Any, output: Any, *vectors: Any, axes: Axes, options: Options) -> list[Any]:
    """Cotangents of received rows return to the rows' sources; those of overwritten rows of ``output`` are zero."""
    starts, sent, lands, came, _ = vectors
    back: list[Any] = [None, None]
    if isinstance(x, ad.UndefinedPrimal):
        if isinstance(ct, ad.Zero):
            back[0] = ad.Zero(x.aval)
        elif options.disjoint:
            zeros = jnp.zeros(x.aval.shape, ct.dtype)
            operands = cast_alike([ct, zeros, lands, came, starts, sent, sent], axes, options)
            back[0] = ragged_p.bind(*operands, axes=axes, options=options)  # type: ignore[no-untyped-call]
        else:
            operands = cast_alike([ct, starts, sent, lands, came], axes, options)
            params = {"rows": x.aval.shape[0], "axes": axes, "options": options}
            back[0] = ragged_sum_p.bind(*operands, **params)  # type: ignore[no-untyped-call]
    if isinstance(output, ad.UndefinedPrimal):
        if isinstance(ct, ad.Zero):
            back[1] = ad.Zero(output.aval)
        else:
            edges = jnp.zeros((ct.shape[0] + 1,), jnp.int32).at[lands].add(1).at[lands + came].add(-1)
            kept = jnp.cumsum(edges)[:-1] == 0
            back[1] = jnp.where(kept.reshape(-1, *[1] * (ct.ndim - 1)), ct, jnp.zeros((), ct.dtype))
    return [*back, *[None] * len(vectors)]


def _ragged_sum_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...], **params: Any) -> tuple[Any, Any]:
    y = ragged_sum_p.bind(*primals, **params)  # type: ignore[no-untyped-call]
    if isinstance(tangents[0], ad.Zero):
        return y, ad.Zero(jax.typeof(y).to_tangent_aval())
    return y, ragged_sum_p.bind(tangents[0], *primals[1:], **params)  # type: ignore[no-untyped-call]


def _ragged_sum_transpose(ct: Any, x: Any, *vectors: Any, rows: int, axes: Axes, options: Options) -> list[Any]:
    del rows
    if isinstance(ct, ad.Zero):
        return [ad.Zero(x.aval), *[None] * len(vectors)]
    starts, sent, lands, came = vectors
    zeros = jnp.zeros(x.aval.shape, x.aval.dtype)
    operands = cast_alike([ct, zeros, starts, sent, lands, came, came], axes, options)
    forth = ragged_p.bind(*operands, axes=axes, options=options)  # type: ignore[no-untyped-call]
    return [forth, *[None] * len(vectors)]


_ONE_WAY = (
    ", since what is sent one way would have to come back the other; use jaxring.permute, or jax.lax.stop_gradient on "
    "what is sent."
)
_REFUSED = {"send": _ONE_WAY, "recv": _ONE_WAY}
_NO_RULE = ": it has no rule for that; use jax.lax.stop_gradient on its operand."


def _refuse(what: str, *args: Any, **params: Any) -> NoReturn:
    del args, params
    raise NotImplementedError(f"jaxring.{what} cannot be differentiated{_REFUSED.get(what, _NO_RULE)}")


for _name, _primitive in PRIMITIVES.items():
    if _name not in TRANSPOSES:
        ad.primitive_jvps[_primitive] = functools.partial(_refuse, _name)
        continue
    ad.deflinear2(_primitive, functools.partial(_transpose, _name))  # type: ignore[no-untyped-call]
    ad.primitive_jvps[_primitive] = functools.partial(_jvp, _name)
ad.deflinear2(cast_p, _transpose_cast)  # type: ignore[no-untyped-call]
ad.primitive_jvps[ragged_p] = _ragged_jvp
ad.primitive_transposes[ragged_p] = _ragged_transpose
ad.primitive_jvps[ragged_sum_p] = _ragged_sum_jvp
ad.primitive_transposes[ragged_sum_p] = _ragged_sum_transpose
ad.primitive_jvps[send_p] = functools.partial(_refuse, "send")
ad.primitive_jvps[recv_p] = functools.partial(_refuse, "recv")
