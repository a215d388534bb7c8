"""Derivatives and `jax.vmap` of exact sums. They are linear, and a vmapped axis is one more dimension to sum over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching

from jaxring.tracing.batching import in_front, part
from jaxring.tracing.differentiation import like_primal, typed
from jaxring.tracing.exact_sum import exact_sum, exact_sum_p

if TYPE_CHECKING:
    from jaxring.tracing.axes import Axes
    from jaxring.tracing.options import Options


def _jvp(primals: tuple[Any], tangents: tuple[Any], **params: Any) -> tuple[Any, Any]:
    (x,), (tangent,) = primals, tangents
    y = exact_sum(x, **params)
    if isinstance(tangent, ad.Zero):
        return y, ad.Zero(jax.typeof(y).to_tangent_aval())
    return y, exact_sum(tangent, **params)


def _transpose(ct: Any, x: Any, *, dims: tuple[int, ...], axes: Axes, options: Options) -> list[Any]:
    """Every term gets the cotangent of its sum: of all ranks', where the type does not say that those are one value."""
    others = axes if axes.groups is not None else typed(x, axes)[1]
    if others.names:
        ct = exact_sum(ct, (), others, options)
    ct = jnp.broadcast_to(jnp.expand_dims(ct, dims), x.aval.shape)
    return [like_primal(ct, x, axes, options)]


def _batch(
    data: Any, args: tuple[Any], where: tuple[int | None], *, dims: tuple[int, ...], axes: Axes, options: Options
) -> tuple[Any, int | None]:
    (x,), (dim,) = args, where
    inner = tuple(d + 1 for d in dims)
    if data.name in axes.names:
        rest = part("reproducible_sum", data, axes, options).rest
        return exact_sum(in_front(x, dim, data.size), (0, *inner), rest, options), None
    if dim is None:
        return exact_sum(x, dims, axes, options), None
    return exact_sum(jnp.moveaxis(x, dim, 0), inner, axes, options), 0


ad.primitive_jvps[exact_sum_p] = _jvp
ad.deflinear2(exact_sum_p, _transpose)  # type: ignore[no-untyped-call]
ad.primitive_jvps[exact_sum_p] = _jvp
batching.fancy_primitive_batchers[exact_sum_p] = _batch
