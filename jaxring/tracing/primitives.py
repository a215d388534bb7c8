"""The JAX primitives behind the collectives: shapes, types and their lowering to XLA custom calls.

Every primitive works on whole blocks: where a collective splits or joins data, the blocks are the leading axis, so the
native engine sees contiguous memory; the functions that users call do the reshaping in JAX.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import mlir

from jaxring import _compat
from jaxring.plan import dtypes, protocols
from jaxring.plan.algorithms import ALGORITHMS
from jaxring.plan.collectives import CALLS, COLLECTIVES
from jaxring.plan.epilogue import MOST_FUNCTIONS_ON_GPUS
from jaxring.plan.gpu import copy_engine, nvls
from jaxring.runtime.cuda.service import prepare_lowering
from jaxring.tracing.lowering import platforms
from jaxring.tracing.lowering.custom_call import custom_call
from jaxring.tracing.lowering.donation import stays
from jaxring.world import launchers

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxring.plan.epilogue import EpilogueSpec
    from jaxring.tracing.axes import Axes
    from jaxring.tracing.options import Options


# A single rank has nothing to send, so its program has no custom call. Tests of the calls can ask for them.
lone_ranks_call = False


def abstract(name: str, x: Any, *, axes: Axes, options: Options) -> Any:
    """The type of a collective's result."""
    del options
    collective = CALLS[name]
    varying, names = frozenset(x.manual_axis_type.varying), frozenset(axes.mesh_names)
    if collective.invariant and axes.groups is None:
        varying -= names
    elif _compat.tracks_varying():
        varying |= names
    return _compat.with_varying(x, collective.result_shape(x.shape, axes.size), varying)


def _alone(name: str, x: Any, *, options: Options) -> Any:
    """The result of a single rank: its own value, except for the shape and for a permute without a source.

    An algorithm of exact sums has one NaN for all, from a single rank as from several.
    """
    y = x if name != "permute" or (0, 0) in options.perm else jnp.zeros_like(x)
    if is_exact(options) and jnp.issubdtype(x.dtype, jnp.inexact):
        y = _one_nan(y)
    return jnp.reshape(y, CALLS[name].result_shape(x.shape, 1))


def is_exact(options: Options) -> bool:
    """Whether the call is a sum or mean by an algorithm of exact sums."""
    algorithm = ALGORITHMS.get(options.algorithm or "")
    return algorithm is not None and algorithm.exact and options.op in ("sum", "mean")


def _one_nan(x: Any) -> Any:
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return jax.lax.complex(_one_nan(x.real), _one_nan(x.imag))
    return jnp.where(jnp.isnan(x), jnp.asarray(jnp.nan, x.dtype), x)


def apply(name: str, x: Any, axes: Axes, options: Options) -> Any:
    """Binds a primitive. Over no axes nothing is bound, so that no platform has to support it.

    ``x`` varies over the mesh axes of ``axes``, where JAX tracks that.
    """
    if not axes.names:
        return _alone(name, x, options=options)
    return PRIMITIVES[name].bind(x, axes=axes, options=options)  # type: ignore[no-untyped-call]


def _lower(name: str, ctx: Any, x: Any, *, axes: Axes, options: Options) -> Any:
    facts = CALLS[name]
    (aval,) = ctx.avals_in
    on_cpus = platforms.for_cpus(ctx)
    if axes.size == 1 and not facts.side_effect and not lone_ranks_call:
        alone = functools.partial(_alone, name, options=options)
        return mlir.lower_fun(alone, multiple_results=False)(ctx, x)
    return custom_call(
        ctx,
        [x],
        collective=name,
        axes=axes,
        options=options,
        data=aval,
        aliases={0: 0} if facts.in_place and not (on_cpus and stays(ctx.module_context, x)) else None,
        joins=on_cpus and not facts.side_effect,
    )


def define(primitive: Primitive, shapes: Callable[..., Any]) -> None:
    """Registers a primitive's abstract evaluation and its eager implementation."""
    primitive.def_abstract_eval(shapes)  # type: ignore[no-untyped-call]
    primitive.def_impl(  # type: ignore[no-untyped-call]
        lambda *args, **params: jax.jit(functools.partial(primitive.bind, **params))(*args)
    )


def _check_for_cpus(what: str, options: Options) -> None:
    """ValueError for an algorithm that only GPUs have. The platform is known at lowering."""
    try:
        protocols.check(options.protocol, "CPU")
    except ValueError as error:
        raise ValueError(f"jaxring.{what}: {error}.") from None
    if options.algorithm in (copy_engine.NAME, nvls.NAME):
        raise ValueError(
            f"jaxring.{what}: algorithm {options.algorithm!r} is for ranks on GPUs; on CPUs there are "
            f"{', '.join(ALGORITHMS)}."
        )


def _check_for_gpus(what: str, options: Options, dtype: Any) -> None:
    """Errors for what the CUDA engine does not do: ValueError for the algorithm, TypeError for a reduction's dtype."""
    if options.epilogue is not None:
        _check_epilogue_for_gpus(what, options, options.epilogue)
    algorithm = ALGORITHMS.get(options.algorithm or "")
    if algorithm is not None and "GPU" not in algorithm.engines:
        raise ValueError(
            f"jaxring.{what}: algorithm {algorithm.name!r} is for ranks on CPUs; on GPUs there are "
            f"{', '.join(name for name, each in ALGORITHMS.items() if 'GPU' in each.engines)}."
        )
    if options.op is None:
        return
    if not dtypes.find(dtype).on_gpus:
        raise TypeError(f"jaxring.{what}: {dtype} is reduced on CPUs only; convert it to float32 first, for example.")


def _check_epilogue_for_gpus(what: str, options: Options, epilogue: EpilogueSpec) -> None:
    if options.algorithm == nvls.NAME:
        raise ValueError(
            f"jaxring.{what}: algorithm 'nvls' applies no epilogue, since the switch reduces; leave out algorithm= or "
            "epilogue=."
        )
    protocol = protocols.ON_GPUS.get(options.protocol or "")
    if protocol is not None and not protocol.epilogues:
        raise ValueError(
            f"jaxring.{what}: no kernel applies an epilogue by protocol {options.protocol!r}; use "
            f"{protocols.with_epilogues()}, or leave out protocol=."
        )
    if len(epilogue.functions) > MOST_FUNCTIONS_ON_GPUS:
        raise ValueError(
            f"jaxring.{what}: the epilogue has {len(epilogue.functions)} functions, and on GPUs there can be "
            f"{MOST_FUNCTIONS_ON_GPUS}; apply the others to the result."
        )


def lower(primitive: Primitive, rule: Callable[..., Any]) -> None:
    """Registers how a primitive is lowered, on CPUs and on NVIDIA GPUs."""
    rule = functools.partial(_all_manual, primitive, rule)
    what = primitive.name.removeprefix("jaxring_").removeprefix("epilogue_")

    def for_cpus(ctx: Any, *operands: Any, **params: Any) -> Any:
        options = params.get("options")
        if options is not None and platforms.for_cpus(ctx):
            _check_for_cpus(what, options)
        return rule(ctx, *operands, **params)

    def for_gpus(ctx: Any, *operands: Any, **params: Any) -> Any:
        options = params.get("options")
        if options is not None:
            _check_for_gpus(what, options, ctx.avals_in[0].dtype)
        prepare_lowering()
        return rule(ctx, *operands, **params)

    # Lowerings are cached by parameters otherwise, and two calls would become one site.
    mlir.register_lowering(primitive, for_cpus, platform="cpu", cacheable=False)
    mlir.register_lowering(primitive, for_gpus, platform="cuda", cacheable=False)


def _all_manual(primitive: Primitive, rule: Callable[..., Any], ctx: Any, *operands: Any, **params: Any) -> Any:
    """Lowers with every mesh axis manual: a custom call cannot be partitioned, nor ask for its partition.

    Where the caller's region leaves axes to the partitioner, the operands are taken as replicated over those. This
    is done here and not where the primitive is bound, so that differentiation and batching see the primitive itself.
    """
    launchers.warn_if_alone()  # a lone rank's call may leave nothing to plan later
    context = ctx.module_context.axis_context
    mesh = getattr(context, "mesh", None)
    if mesh is not None:
        params["axes"] = params["axes"].on(mesh)
    if mesh is None or set(mesh.axis_names) == set(context.manual_axes):
        return rule(ctx, *operands, **params)
    loose = set(mesh.axis_names) - set(context.manual_axes)
    everywhere = jax.sharding.PartitionSpec()  # type: ignore[no-untyped-call]
    inside = jax.shard_map(
        lambda *args: primitive.bind(*args, **params),  # type: ignore[no-untyped-call]
        in_specs=everywhere,
        out_specs=everywhere,
        axis_names=loose,
        check_vma=False,
    )
    untyped = [jax.core.ShapedArray(aval.shape, aval.dtype) for aval in ctx.avals_in]
    return mlir.lower_fun(inside, multiple_results=primitive.multiple_results)(ctx.replace(avals_in=untyped), *operands)


def _make(name: str) -> Primitive:
    primitive = Primitive(f"jaxring_{name}")
    define(primitive, functools.partial(abstract, name))
    lower(primitive, functools.partial(_lower, name))
    return primitive


PRIMITIVES = {name: _make(name) for name in (*COLLECTIVES, "barrier")}
