"""The JAX primitives behind the collectives: shapes, types and their lowering to XLA custom calls.

Every primitive works on whole blocks: where a collective splits or joins data, the blocks are the leading axis, so the
native engine sees contiguous memory and `collectives.py` does the reshaping in JAX.
"""

from __future__ import annotations

import functools
import json
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.extend.mlir.dialects import stablehlo as hlo
from jax.interpreters import mlir

from jaxring import _compat, fusion, listing
from jaxring.donation import stays
from jaxring.plan import copies, nvls, protocols
from jaxring.plan.algorithms import ALGORITHMS
from jaxring.provenance import provenance
from jaxring.replicagroups import replica_groups
from jaxring.tracenames import traced_as
from jaxring.world import launchers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxring.axes import Axes


# A rank that is alone has nothing to send, so its program holds no call. Tests of the calls may want them all the same.
lone_ranks_call = False


class Options(NamedTuple):
    """What the caller asked for beyond the data; a parameter of every primitive.

    ``timeout`` in seconds. ``extra`` is collective-specific: root, perm or tag.
    """

    op: str | None
    algorithm: str | None
    protocol: str | None
    timeout: float
    site: str
    root: int = 0
    perm: tuple[tuple[int, int], ...] = ()
    tag: int = 0
    # Its result is used by a done only: see startdone.py.
    started: bool = False


class Kind(NamedTuple):
    """How a collective types and lays out its result.

    ``blocks_in``/``blocks_out``: whether the leading axis counts ranks. ``invariant``: all ranks get the same value.
    """

    blocks_in: bool
    blocks_out: bool
    invariant: bool
    alias: bool = False
    side_effect: bool = False


KINDS = {
    "all_reduce": Kind(False, False, invariant=True, alias=True),
    "all_gather": Kind(False, True, invariant=False),
    "reduce_scatter": Kind(True, False, invariant=False),
    "all_to_all": Kind(True, True, invariant=False),
    "broadcast": Kind(False, False, invariant=True),
    "reduce": Kind(False, False, invariant=False),
    "gather": Kind(False, True, invariant=False),
    "scatter": Kind(True, False, invariant=False),
    "permute": Kind(False, False, invariant=False),
    "barrier": Kind(False, False, invariant=True, side_effect=True),
}


def _result_shape(kind: Kind, shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    block = shape[1:] if kind.blocks_in else shape
    return (size, *block) if kind.blocks_out else block


def _abstract(name: str, x: Any, *, axes: Axes, options: Options) -> Any:
    del options
    kind = KINDS[name]
    varying, names = frozenset(x.manual_axis_type.varying), frozenset(axes.mesh_names)
    if kind.invariant and axes.groups is None:
        varying -= names
    elif _compat.tracks_varying():
        varying |= names
    return _compat.with_varying(x, _result_shape(kind, x.shape, axes.size), varying)


def custom_call(
    ctx: Any,
    operands: list[Any],
    *,
    collective: str,
    axes: Axes,
    options: Options,
    data: Any,
    blocks_in: bool,
    aliases: dict[int, int] | None = None,
    half: str = "both",
    has_input: bool = True,
    has_output: bool = True,
    row_elements: int = 0,
    side_effect: bool = False,
    joins: bool = False,
) -> Any:
    """Emits the custom call. ``data`` is the abstract value whose blocks move; operands get the partition id appended.

    The attributes name everything that all processes must agree on; the engine hands ``spec`` back to the planner.
    With ``joins`` it may share the call with its neighbours (`fusion.py`).
    """
    partitions = axes.partitions()
    mesh = getattr(ctx.module_context.axis_context, "mesh", None)
    devices = [int(d.id) for d in mesh.devices.flat] if isinstance(mesh, jax.sharding.Mesh) else None
    block = data.shape[1:] if blocks_in else data.shape
    spec = {
        "collective": collective,
        "op": options.op,
        "dtype": data.dtype.name,
        "shape": list(data.shape),
        "block": int(np.prod(block, dtype=np.int64)),
        "axes": str(axes),
        "root": options.root,
        "perm": [list(pair) for pair in options.perm],
        "tag": options.tag,
        "half": half,
        "algorithm": options.algorithm,
        "protocol": options.protocol,
        "timeout": options.timeout,
        "site": options.site,
        # Tells the collectives of one program apart; the same number in every process that lowers the program.
        "call": ctx.module_context.new_channel(),
        "devices": devices,
        "program": provenance(ctx.module_context, operands),
    }
    text = json.dumps(spec, separators=(",", ":"), sort_keys=True)
    listing.note(ctx.module_context, spec, text)
    nbytes = math.prod(data.shape) * data.dtype.itemsize

    def emit(
        operands: Sequence[Any], avals_in: Any, avals_out: Any, text: str, nbytes: int, pairs: Any, count: int = 1
    ) -> Any:
        partition_id = jax.core.ShapedArray((), np.dtype(np.uint32))
        inner = ctx.replace(avals_in=[*avals_in, partition_id], avals_out=avals_out)
        rule = jax.ffi.ffi_lowering(f"jaxring_{collective}", operand_output_aliases=pairs, has_side_effect=side_effect)
        partition = hlo.partition_id()
        with traced_as(ctx, collective, options.op, nbytes, [str(name) for name in axes.names], count):
            results: Any = rule(
                inner,
                *operands,
                partition,
                spec=text,
                groups=partitions.reshape(-1),
                group_size=np.int64(axes.size),
                timeout_s=np.float64(options.timeout),
                has_input=bool(has_input),
                has_output=bool(has_output),
                row_elements=np.int64(row_elements),
                started=bool(options.started),
            )
        call: Any = results[0].owner
        call.attributes["jaxring_call"] = replica_groups(collective, axes, ctx.module_context.module)
        return results

    def build(leaves: Sequence[fusion.Leaf]) -> Any:
        whole = sum(leaf.nbytes for leaf in leaves)
        # The engine makes a site of each line.
        lines = "\n".join(leaf.spec for leaf in leaves)
        operands, avals_in, avals_out = ([leaf[i] for leaf in leaves] for i in range(3))
        pairs = {i: i for i, leaf in enumerate(leaves) if leaf.aliased}
        return emit(operands, avals_in, avals_out, lines, whole, pairs, len(leaves))

    if not joins:
        return emit(operands, ctx.avals_in, ctx.avals_out, text, nbytes, aliases)
    leaf = fusion.Leaf(operands[0], ctx.avals_in[0], ctx.avals_out[0], text, nbytes, bool(aliases))
    key = (collective, axes, options.op, options.timeout)
    return [fusion.emit(ctx.module_context.module, key, leaf, build)]


def _alone(name: str, x: Any, *, options: Options) -> Any:
    """What the only rank gets: its own value, but for the shape and for a permute without a source."""
    y = x if name != "permute" or (0, 0) in options.perm else jnp.zeros_like(x)
    return jnp.reshape(y, _result_shape(KINDS[name], x.shape, 1))


def apply(name: str, x: Any, axes: Axes, options: Options) -> Any:
    """Binds a primitive; over no axes there is nothing to bind, and nothing that a platform would have to serve.

    ``x`` varies over the mesh axes of ``axes``, where JAX tracks that.
    """
    if not axes.names:
        return _alone(name, x, options=options)
    return PRIMITIVES[name].bind(x, axes=axes, options=options)  # type: ignore[no-untyped-call]


def _for_cpus(ctx: Any) -> bool:
    platforms = ctx.platforms or ctx.module_context.platforms
    return tuple(platforms) == ("cpu",)


def _lower(name: str, ctx: Any, x: Any, *, axes: Axes, options: Options) -> Any:
    kind = KINDS[name]
    (aval,) = ctx.avals_in
    on_cpus = _for_cpus(ctx)
    if axes.size == 1 and not kind.side_effect and not lone_ranks_call:
        alone = functools.partial(_alone, name, options=options)
        return mlir.lower_fun(alone, multiple_results=False)(ctx, x)
    return custom_call(
        ctx,
        [x],
        collective=name,
        axes=axes,
        options=options,
        data=aval,
        blocks_in=kind.blocks_in,
        aliases={0: 0} if kind.alias and not (on_cpus and stays(ctx.module_context, x)) else None,
        side_effect=kind.side_effect,
        joins=on_cpus and not kind.side_effect,
    )


def define(primitive: Primitive, abstract: Callable[..., Any]) -> None:
    """Gives a primitive its types, and its meaning when it is called eagerly."""
    primitive.def_abstract_eval(abstract)  # type: ignore[no-untyped-call]
    primitive.def_impl(  # type: ignore[no-untyped-call]
        lambda *args, **params: jax.jit(functools.partial(primitive.bind, **params))(*args)
    )


def _check_for_cpus(what: str, options: Options) -> None:
    """ValueError for what only GPUs have, which is known as soon as the platform is."""
    try:
        protocols.check(options.protocol, "CPU")
    except ValueError as error:
        raise ValueError(f"jaxring.{what}: {error}.") from None
    if options.algorithm in (copies.NAME, nvls.NAME):
        raise ValueError(
            f"jaxring.{what}: algorithm {options.algorithm!r} is for ranks on GPUs; on CPUs there are "
            f"{', '.join(ALGORITHMS)}."
        )


def lower(primitive: Primitive, rule: Callable[..., Any]) -> None:
    """Registers how a primitive is lowered, on CPUs and on NVIDIA GPUs."""
    rule = functools.partial(_all_manual, primitive, rule)

    def for_cpus(ctx: Any, *operands: Any, **params: Any) -> Any:
        options = params.get("options")
        if options is not None and _for_cpus(ctx):
            _check_for_cpus(primitive.name.removeprefix("jaxring_"), options)
        return rule(ctx, *operands, **params)

    def for_gpus(ctx: Any, *operands: Any, **params: Any) -> Any:
        from jaxring.runtime.cuda_service import prepare_lowering  # planning is not part of importing primitives

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
    untyped = [_compat.with_varying(aval, aval.shape, frozenset()) for aval in ctx.avals_in]
    return mlir.lower_fun(inside, multiple_results=primitive.multiple_results)(ctx.replace(avals_in=untyped), *operands)


def _make(name: str) -> Primitive:
    primitive = Primitive(f"jaxring_{name}")
    define(primitive, functools.partial(_abstract, name))
    lower(primitive, functools.partial(_lower, name))
    return primitive


PRIMITIVES = {name: _make(name) for name in KINDS}
