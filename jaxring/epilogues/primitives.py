"""The primitives of reductions with an epilogue: types, derivatives, batching and lowering.

Operands: the data in whole blocks, the parameters as (1, n) of the accumulators' dtype, then the operands and
states of all functions, with the shape of the result. Results: the result, then the states. Which functions there are
is in ``options.epilogue``.

Derivatives, and `jax.vmap` over an axis that the call names or where parameters differ or the data does not, are those
of the same functions applied to the result of the reduction without epilogue.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from jaxring import _compat
from jaxring.epilogues.functions import FUNCTIONS
from jaxring.plan import dtypes
from jaxring.plan.collectives import CALLS
from jaxring.tracing import primitives
from jaxring.tracing.batching import PARTS, in_front, part
from jaxring.tracing.casting import cast_varying
from jaxring.tracing.lowering import platforms
from jaxring.tracing.lowering.custom_call import custom_call
from jaxring.tracing.lowering.donation import stays

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.plan.epilogue import EpilogueSpec
    from jaxring.tracing.axes import Axes
    from jaxring.tracing.options import Options

NAMES = ("all_reduce", "reduce_scatter")


def lane_dtype(dtype: Any) -> Any:
    """The dtype in which an epilogue of values of ``dtype`` is computed."""
    return jnp.float64 if dtypes.accumulator_bytes(dtype) == 8 else jnp.float32


def apply(name: str, x: Any, parameters: Any, further: Sequence[Any], axes: Axes, options: Options) -> list[Any]:
    """Binds a primitive. A single rank's value has nothing to wait for, so there its functions are JAX's."""
    if axes.size == 1 or not axes.names:
        return unfused(name, x, parameters, *further, axes=axes, options=options)
    x = cast_varying(x, axes, options._replace(epilogue=None))
    return PRIMITIVES[name].bind(x, parameters, *further, axes=axes, options=options)  # type: ignore[no-untyped-call,no-any-return]


def unfused(name: str, x: Any, parameters: Any, *further: Any, axes: Axes, options: Options) -> list[Any]:
    """The same by a reduction without epilogue."""
    assert options.epilogue is not None
    plain = options._replace(epilogue=None)
    return applied(
        options.epilogue, primitives.apply(name, cast_varying(x, axes, plain), axes, plain), parameters, further
    )


def applied(spec: EpilogueSpec, value: Any, parameters: Any, further: Sequence[Any]) -> list[Any]:
    """The functions of ``spec`` on a complete value: the result, then the states."""
    lane = lane_dtype(value.dtype)
    value, states = value.astype(lane), []
    place = first = 0
    for name in spec.functions:
        function = FUNCTIONS[name]
        own = further[first : first + function.further]
        numbers = [parameters[0, place + i] for i in range(len(function.parameters))]
        value, new = function.apply(value, numbers, [each.astype(lane) for each in own])
        olds = own[len(function.operands) :]
        states += [state.astype(old.dtype) for state, old in zip(new, olds, strict=True)]
        place, first = place + len(function.parameters), first + function.further
    return [value.astype(spec.result), *states]


def _states(spec: EpilogueSpec) -> list[int]:
    """The places of the states among all operands and states."""
    places: list[int] = []
    first = 0
    for name in spec.functions:
        function = FUNCTIONS[name]
        places += range(first + len(function.operands), first + function.further)
        first += function.further
    return places


def _abstract(name: str, x: Any, parameters: Any, *further: Any, axes: Axes, options: Options) -> list[Any]:
    spec = options.epilogue
    assert spec is not None
    y = primitives.abstract(name, x, axes=axes, options=options)
    others = (aval.manual_axis_type.varying for aval in (parameters, *further))
    varying = frozenset(y.manual_axis_type.varying).union(*others)
    result = _compat.with_varying(y, y.shape, varying).update(dtype=jnp.dtype(spec.result), weak_type=False)
    return [result, *(_compat.with_varying(further[i], further[i].shape, varying) for i in _states(spec))]


def _lower(name: str, ctx: Any, x: Any, parameters: Any, *further: Any, axes: Axes, options: Options) -> Any:
    spec = options.epilogue
    assert spec is not None
    data = ctx.avals_in[0]
    aliases = {}
    if CALLS[name].in_place and ctx.avals_out[0].dtype == data.dtype:
        aliases[0] = 0
    # The new parameters and states take the memory of the old ones.
    if spec.further:
        aliases |= {2: 0} | {2 + place: 1 + number for number, place in enumerate(_states(spec))}
    operands = [x, parameters, *further]
    if platforms.for_cpus(ctx):
        aliases = {at: to for at, to in aliases.items() if not stays(ctx.module_context, operands[at])}
    return custom_call(ctx, operands, collective=name, axes=axes, options=options, data=data, aliases=aliases or None)


def _jvp(
    name: str, primals: Sequence[Any], tangents: Sequence[Any], *, axes: Axes, options: Options
) -> tuple[list[Any], list[Any]]:
    """A linear epilogue stays in the schedule, and its tangent is the plain reduction's. Others need the sum itself."""
    spec = options.epilogue
    assert spec is not None
    x, parameters, *further = primals
    if all(isinstance(tangent, ad.Zero) for tangent in tangents):
        results = apply(name, x, parameters, further, axes, options)
        return results, [ad.Zero(jax.typeof(y).to_tangent_aval()) for y in results]
    if spec.further:
        raise TypeError(
            f"jaxring.{name}: a step of an optimiser as epilogue ({spec.text}) cannot be differentiated; leave out "
            "epilogue= and apply the step to the result, or use jax.lax.stop_gradient on the gradients and parameters."
        )
    moving = tuple(ad.instantiate_zeros(each) for each in tangents)  # type: ignore[no-untyped-call]
    same = functools.partial(unfused, name, axes=axes, options=options)
    primal, tangent = jax.jvp(same, (x, parameters), moving)
    if all(FUNCTIONS[each].linear for each in spec.functions) and isinstance(tangents[1], ad.Zero):
        primal = apply(name, x, parameters, further, axes, options)
    return primal, tangent


def _batch(
    name: str, data: Any, args: Sequence[Any], dims: Sequence[int | None], *, axes: Axes, options: Options
) -> tuple[list[Any], Sequence[int | None]]:
    spec = options.epilogue
    assert spec is not None
    (x, parameters, *further), (dim, dim_p, *dims_f) = args, dims
    each = functools.partial(applied, spec)
    plain = options._replace(epilogue=None)
    at: int | None = None
    if data.name in axes.names:
        go = part(name, data, axes, plain)
        value, at = PARTS[name](go, in_front(x, dim, data.size))
    elif dim is None:  # JAX asks here, too, where nothing has the batch; the value is sent once
        if all(where is None for where in (dim_p, *dims_f)):
            results = apply(name, x, parameters, further, axes, options)
            return results, [None] * len(results)
        value = primitives.apply(name, x, axes, plain)
    else:
        # The batch becomes part of the block: behind the axis that counts ranks, where there is one.
        x = jnp.moveaxis(x, dim, int(CALLS[name].blocks_in))
        if dim_p is None:
            further = [in_front(value, at, data.size) for value, at in zip(further, dims_f, strict=True)]
            results = apply(name, x, parameters, further, axes, options)
            return results, [0] * len(results)
        value, at = primitives.apply(name, x, axes, plain), 0
    results = jax.vmap(each, (at, dim_p, list(dims_f)), 0, axis_size=data.size)(value, parameters, further)
    return results, [0] * len(results)


def _make(name: str) -> Primitive:
    primitive = Primitive(f"jaxring_epilogue_{name}")
    primitive.multiple_results = True
    primitives.define(primitive, functools.partial(_abstract, name))
    primitives.lower(primitive, functools.partial(_lower, name))
    ad.primitive_jvps[primitive] = functools.partial(_jvp, name)
    batching.fancy_primitive_batchers[primitive] = functools.partial(_batch, name)
    return primitive


PRIMITIVES = {name: _make(name) for name in NAMES}
