"""The primitives of compressed collectives: types, derivatives, batching and lowering.

Quantisation counts as the identity in derivatives ("straight through"), so each primitive is linear, and is
differentiated as the collective without compression. The tangent and the cotangent travel compressed, too.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxring import _compat
from jaxring.compress import coded
from jaxring.compress.formats import Format
from jaxring.compress.steps import STEPS, Call, all_reduce, all_reduce_with_error
from jaxring.plan.collectives import CALLS
from jaxring.tracing import primitives
from jaxring.tracing.batching import PARTS, Part, in_front, part
from jaxring.tracing.casting import cast_varying
from jaxring.tracing.differentiation import like_primal, rank, share, typed
from jaxring.tracing.lowering import platforms

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxring.tracing.axes import Axes
    from jaxring.tracing.options import Options


class Compression(NamedTuple):
    """How a call compresses; a parameter of the primitives. ``first_word``: see `jaxring.compress.native.Rounding`."""

    form: Format
    stochastic: bool
    first_word: int = 0


def key_of(seed: Any, axes: Axes) -> Any:
    """The operand that says by which random bits this rank rounds: uint32[2], the seed and the rank."""
    mine = rank(axes) if axes.names else 0
    return jnp.stack([jnp.asarray(seed).astype(jnp.uint32), jnp.asarray(mine).astype(jnp.uint32)])


def _with_row(key: Any, axes: Axes) -> Any:
    """What the arithmetic takes: uint32[3], a key and this rank's row, which batching may change."""
    return jnp.stack([key[0], key[1], rank(axes).astype(jnp.uint32)])


def apply(name: str, x: Any, key: Any, axes: Axes, options: Options, compression: Compression) -> Any:
    """Binds a primitive. ``x`` is float32. A single rank's value is not rounded."""
    if axes.size == 1 or not axes.names:
        return primitives.apply(name, cast_varying(x, axes, options), axes, options)
    params: dict[str, Any] = {"axes": axes, "options": options, "compression": compression}
    x = cast_varying(x, axes, options)
    return PRIMITIVES[name].bind(x, _with_row(key, axes), **params)  # type: ignore[no-untyped-call]


def apply_with_error(x: Any, key: Any, axes: Axes, options: Options, compression: Compression) -> tuple[Any, Any]:
    """An all-reduce, and what this rank should add to its next value: see `all_reduce_with_error`."""
    if axes.size == 1 or not axes.names:
        return primitives.apply("all_reduce", cast_varying(x, axes, options), axes, options), jnp.zeros_like(x)
    params: dict[str, Any] = {"axes": axes, "options": options, "compression": compression}
    x = cast_varying(x, axes, options)
    y, error = with_error_p.bind(x, _with_row(key, axes), **params)  # type: ignore[no-untyped-call]
    return y, error


def _abstract(name: str, x: Any, key: Any, *, axes: Axes, options: Options, compression: Compression) -> Any:
    del key, compression
    return primitives.abstract(name, x, axes=axes, options=options)


def _abstract_with_error(x: Any, key: Any, **params: Any) -> tuple[Any, Any]:
    y = _abstract("all_reduce", x, key, **params)
    return y, _compat.with_varying(x, x.shape, frozenset(x.manual_axis_type.varying))


def _lower(
    steps: Callable[..., Any], ctx: Any, x: Any, key: Any, *, axes: Axes, options: Options, compression: Compression
) -> Any:
    call = Call(
        compression.form, axes, options, compression.stochastic, compression.first_word, platforms.for_cpus(ctx)
    )
    # Without the types of JAX's check_vma, which has been done.
    untyped = [jax.core.ShapedArray(aval.shape, aval.dtype) for aval in ctx.avals_in]
    many = steps is all_reduce_with_error
    if (many or steps is all_reduce) and coded.serves(call):
        return coded.lower(call, ctx.replace(avals_in=untyped), x, key)
    lowered = mlir.lower_fun(functools.partial(steps, call), multiple_results=many)
    return lowered(ctx.replace(avals_in=untyped), x, key)


def _jvp(name: str, primals: tuple[Any, Any], tangents: tuple[Any, Any], **params: Any) -> tuple[Any, Any]:
    x, key = primals
    y = apply(name, x, key, **params)
    if isinstance(tangents[0], ad.Zero):
        return y, ad.Zero(jax.typeof(y).to_tangent_aval())
    return y, apply(name, tangents[0], key, **params)


def _transposed(name: str, ct: Any, x: Any, key: Any, axes: Axes, options: Options, compression: Compression) -> Any:
    def go(other: str, value: Any, over: Axes, op: str | None) -> Any:
        return apply(other, value, key, over, options._replace(op=op), compression)

    match name:
        case "all_gather":
            return go("reduce_scatter", ct, axes, "sum")
        case "reduce_scatter":
            return go("all_gather", share(ct, axes, options), axes, None)
        case "all_to_all":
            return go("all_to_all", ct, axes, None)
    ct = share(ct, axes, options)
    others = axes if axes.groups is not None else typed(x, axes)[1]
    return go("all_reduce", ct, others, "sum") if others.names else ct


def _transpose(
    name: str, ct: Any, x: Any, key: Any, *, axes: Axes, options: Options, compression: Compression
) -> list[Any]:
    return [like_primal(_transposed(name, ct, x, key, axes, options, compression), x, axes, options), None]


@dataclasses.dataclass(frozen=True)
class _CompressedPart(Part):
    """A vmapped axis of a compressed collective: what remains is compressed."""

    key: Any = None
    compression: Compression | None = None

    def __call__(self, name: str, x: Any, **changes: Any) -> Any:
        assert self.compression is not None
        return apply(name, x, self.key, self.rest, self.options._replace(**changes), self.compression)


def _batch(
    name: str,
    data: Any,
    args: tuple[Any, Any],
    dims: tuple[int | None, int | None],
    *,
    axes: Axes,
    options: Options,
    compression: Compression,
) -> tuple[Any, int | None]:
    """A batch is quantised as one value, by the random bits of its first entry."""
    (x, key), (dim, key_dim) = args, dims
    key = key if key_dim is None else jax.lax.index_in_dim(key, 0, key_dim, keepdims=False)
    if data.name in axes.names:
        go = part(name, data, axes, options)
        shared = {field.name: getattr(go, field.name) for field in dataclasses.fields(go)}
        return PARTS[name](_CompressedPart(**shared, key=key, compression=compression), in_front(x, dim, data.size))
    if dim is None:
        return apply(name, x, key, axes, options, compression), None
    x = jnp.moveaxis(x, dim, int(CALLS[name].blocks_in))
    return apply(name, x, key, axes, options, compression), int(CALLS[name].blocks_out)


def _make(name: str) -> Primitive:
    primitive = Primitive(f"jaxring_compressed_{name}")
    primitives.define(primitive, functools.partial(_abstract, name))
    primitives.lower(primitive, functools.partial(_lower, STEPS[name]))
    ad.primitive_jvps[primitive] = functools.partial(_jvp, name)
    ad.primitive_transposes[primitive] = functools.partial(_transpose, name)
    batching.fancy_primitive_batchers[primitive] = functools.partial(_batch, name)
    return primitive


PRIMITIVES = {name: _make(name) for name in STEPS}

with_error_p = Primitive("jaxring_compressed_all_reduce_with_error")
with_error_p.multiple_results = True
primitives.define(with_error_p, _abstract_with_error)
primitives.lower(with_error_p, functools.partial(_lower, all_reduce_with_error))
