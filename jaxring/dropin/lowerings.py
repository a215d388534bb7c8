"""How JAX's own collective primitives lower to our custom calls: one table, which `install` and `jaxring.lax` share."""

from __future__ import annotations

import contextlib
import functools
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from jaxring import _compat, collectives, p2p, rooted
from jaxring.dropin.sites import traced_at
from jaxring.plan import dtypes
from jaxring.runtime.explain import note
from jaxring.tracing.axes import called_at, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxring.typing import Op

log = logging.getLogger("jaxring.install")

# Platforms for which JAX's rules are replaced. On GPUs only whole programs are (dropin/whole_program/gpu/).
PLATFORMS = ("cpu",)


class Entry(NamedTuple):
    """``body`` computes a primitive on traced operands, with its parameters. ``op`` is its reduction, if it reduces."""

    body: Callable[..., Any]
    op: str | None = None


def _all_reduce(op: Op, local: Callable[..., Any]) -> Entry:
    def body(x: Any, *, axes: Any, axis_index_groups: Any = None) -> Any:
        positional = tuple(axis for axis in axes if isinstance(axis, int))
        names = tuple(axis for axis in axes if not isinstance(axis, int))
        x = local(x, positional) if positional else x
        return collectives.all_reduce(x, names, op, axis_index_groups=axis_index_groups) if names else x

    return Entry(body, op)


def _all_gather(
    x: Any, *, all_gather_dimension: int, axis_name: Any, axis_size: int, tiled: bool, axis_index_groups: Any = None
) -> Any:
    del axis_size
    return collectives.all_gather(
        x, axis_name, axis=all_gather_dimension, tiled=tiled, axis_index_groups=axis_index_groups
    )


def _reduce_scatter(
    x: Any, *, scatter_dimension: int, axis_name: Any, axis_size: int, tiled: bool, axis_index_groups: Any = None
) -> Any:
    del axis_size
    return collectives.reduce_scatter(
        x, axis_name, scatter_dimension=scatter_dimension, tiled=tiled, axis_index_groups=axis_index_groups
    )


def _all_to_all(
    x: Any, *, split_axis: int, concat_axis: int, axis_name: Any, tiled: bool, axis_index_groups: Any = None
) -> Any:
    del tiled  # JAX has made room for the new dimension already
    return collectives.all_to_all(
        x, axis_name, split_axis, concat_axis, tiled=True, axis_index_groups=axis_index_groups
    )


def _ragged_all_to_all(operand: Any, output: Any, *vectors: Any, axis_name: Any, axis_index_groups: Any = None) -> Any:
    ranks = resolve("ragged_all_to_all", axis_name, axis_index_groups).size
    # JAX allows several slices per pair of ranks; entry rank * slices + i is the i-th of a rank.
    slices = vectors[0].shape[0] // ranks
    for i in range(slices):
        output = p2p.ragged_all_to_all(
            operand,
            output,
            *(v[i::slices] for v in vectors),
            axis_name=axis_name,
            axis_index_groups=axis_index_groups,
        )
    return output


def _ppermute(x: Any, *, axis_name: Any, perm: Sequence[tuple[int, int]]) -> Any:
    # JAX numbers the ranks of several axes in the mesh's order, whatever the order of the names.
    names = tuple(sorted(_names(axis_name), key=jax.sharding.get_abstract_mesh().axis_names.index))
    ranks = resolve("ppermute", names).size
    return collectives.permute(x, names, [(source % ranks, target % ranks) for source, target in perm])


def _pbroadcast(x: Any, *, axis_name: Any, source: int) -> Any:
    return rooted.broadcast(x, axis_name, source % resolve("pbroadcast", axis_name).size)


def _pbroadcast_dynamic(x: Any, source: Any, *, axis_name: Any) -> Any:
    """The source's value, by a bitwise or with zeros from all other ranks."""
    if jnp.iscomplexobj(x):
        parts = (_pbroadcast_dynamic(part, source, axis_name=axis_name) for part in (x.real, x.imag))
        return jax.lax.complex(*parts)
    bits = x
    if x.dtype != jnp.bool_:
        bits = jax.lax.bitcast_convert_type(x, np.dtype(f"uint{8 * x.dtype.itemsize}"))
    bits = jnp.where(jax.lax.axis_index(axis_name) == source, bits, jnp.zeros_like(bits))
    bits = collectives.all_reduce(bits, axis_name, "or")
    return bits if x.dtype == jnp.bool_ else jax.lax.bitcast_convert_type(bits, x.dtype)


def _names(axis_name: Any) -> tuple[Any, ...]:
    return tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)


_psum = _all_reduce("sum", jax.lax.reduce_sum)
_pmax = _all_reduce("max", jax.lax.reduce_max)
_pmin = _all_reduce("min", jax.lax.reduce_min)

# The work of each primitive, by its name without "_start". A version of JAX need not have them all.
TABLE: dict[str, Entry] = {
    "psum": _psum,
    "psum_invariant": _psum,
    "unreduced_psum": _psum,
    "pmax": _pmax,
    "unreduced_pmax": _pmax,
    "pmin": _pmin,
    "unreduced_pmin": _pmin,
    "all_gather": Entry(_all_gather),
    "all_gather_invariant": Entry(_all_gather),
    "all_gather_reduced": Entry(_all_gather),
    "reduce_scatter": Entry(_reduce_scatter, "sum"),
    "unreduced_reduce_scatter": Entry(_reduce_scatter, "sum"),
    "all_to_all": Entry(_all_to_all),
    "ragged_all_to_all": Entry(_ragged_all_to_all),
    "ppermute": Entry(_ppermute),
    "pbroadcast": Entry(_pbroadcast),
    "pbroadcast_dynamic": Entry(_pbroadcast_dynamic),
}

# Primitives that change only a value's type and move no data.
CASTS = frozenset({"pvary", "preduced", "vary_unreduced_cast", "reduced_vary_cast"})
# psend and precv exist on GPUs only; axis_index needs no communication.
NOT_SERVED = frozenset({"axis_index", "psend", "precv"})


def served() -> dict[str, Any]:
    """The primitives of this JAX, by name, that have an entry in TABLE, and their asynchronous starts and dones."""
    return {
        name: primitive
        for name, primitive in _compat.collective_primitives().items()
        if name.removesuffix("_start") in TABLE or name.endswith("_done")
    }


def unknown() -> list[str]:
    """The names of parallel primitives of this version of JAX that this module does not know."""
    return sorted(set(_compat.collective_primitives()) - set(served()) - CASTS - NOT_SERVED)


# JAX's own rules, for calls that the engine cannot carry; None where JAX has none.
_JAX = {
    (name, platform): _compat.default_lowering(primitive, platform)
    for name, primitive in served().items()
    for platform in PLATFORMS
}


def rule(name: str, platform: str) -> Callable[..., Any]:
    """The lowering rule for JAX's primitive of that name (served, or a cast), or for a copy of it.

    Calls that the engine cannot carry keep JAX's own lowering. If a region is manual over some axes only, operands are
    replicated over the others. Either gives a warning, and a line in `jaxring.explain`.
    """
    if name in CASTS or name.endswith("_done"):
        return _as_it_is
    return functools.partial(_lower, name.removesuffix("_start"), platform)


def _as_it_is(ctx: Any, value: Any, **params: Any) -> Any:
    del ctx, params
    return [value]


def _lower(name: str, platform: str, ctx: Any, *operands: Any, **params: Any) -> Any:
    # A start returns the value itself instead of a future, since XLA runs our custom call asynchronously anyway.
    avals_in = [_compat.untyped(aval) for aval in ctx.avals_in]
    ctx = ctx.replace(avals_in=avals_in, avals_out=[_compat.untyped(_compat.awaited(aval)) for aval in ctx.avals_out])
    site = traced_at(ctx.traceback)
    with _mesh_of(ctx.module_context):
        return _lower_at(site, name, platform, ctx, *operands, **params)


def _mesh_of(module_context: Any) -> Any:
    """A context in which JAX knows the mesh of the program that is being lowered.

    It knows it except in a partition function of `jax.experimental.custom_partitioning`, which it traces, and lowers,
    while XLA compiles: there axes are bound without a mesh.
    """
    mesh = getattr(module_context.axis_context, "mesh", None)
    if mesh is None or not jax.sharding.get_abstract_mesh().empty:
        return contextlib.nullcontext()
    manual = dict.fromkeys(module_context.axis_context.manual_axes, jax.sharding.AxisType.Manual)
    return jax.sharding.use_abstract_mesh(getattr(mesh, "abstract_mesh", mesh).update_axis_types(manual))


def _lower_at(site: str, name: str, platform: str, ctx: Any, *operands: Any, **params: Any) -> Any:
    avals_in = ctx.avals_in
    call = f"{name} {avals_in[0].str_short()} over {params.get('axes', params.get('axis_name'))!r} at {site}"
    why = _unserved(name, avals_in, params)
    if why is None:
        loose = _left_to_the_partitioner()
        if loose:
            _say(f"{call}: its operands are replicated over {loose}, which are left to the partitioner")
        with called_at(site):
            return mlir.lower_fun(TABLE[name].body, multiple_results=False)(ctx, *operands, **params)
    _say(f"{call}: JAX's own collective: {why}")
    own = _JAX[name, platform]
    if own is None:
        raise NotImplementedError(f"jaxring: {name} at {site}: {why}, and JAX has no {name} of its own on {platform}.")
    return own(ctx, *operands, **params)


def _say(text: str) -> None:
    if note(text):
        log.warning("jaxring: %s", text)


def _left_to_the_partitioner() -> tuple[Any, ...]:
    mesh = jax.sharding.get_abstract_mesh()
    axes = zip(mesh.axis_names, mesh.axis_sizes, strict=True)
    return tuple(axis for axis, size in axes if axis not in mesh.manual_axes and size > 1)


def _unserved(name: str, avals: list[Any], params: dict[str, Any]) -> str | None:
    """Why the engine cannot carry a call, or None."""
    op, dtype = TABLE[name].op, avals[0].dtype
    try:
        if op is None:
            dtypes.dtype_code(dtype)
        else:
            dtypes.check(op, dtype)
    except TypeError as error:
        return str(error)
    if any(not isinstance(size, int) for aval in avals for size in aval.shape):
        return "the shape is symbolic"
    groups = params.get("axis_index_groups")
    if groups is not None and len({len(group) for group in groups}) != 1:
        return "axis_index_groups differ in size"
    return _unserved_permutation(params["axis_name"], params["perm"]) if name == "ppermute" else None


def _unserved_permutation(axis_name: Any, perm: Sequence[tuple[int, int]]) -> str | None:
    """Why a permutation is left to JAX's rule, which raises JAX's own errors for it, or None."""
    axes = resolve("ppermute", axis_name)
    in_order = bool((np.diff(axes.partitions(), axis=1) > 0).all())
    if getattr(jax.config, "jax_raise_on_ppermute_sort_diff", False) and not in_order:
        return "the axes are not in the mesh's order"
    ranks = axes.size
    for side, numbers in (("source", [s for s, _ in perm]), ("target", [t for _, t in perm])):
        if any(not -ranks <= number < ranks for number in numbers):
            return f"a {side} is out of range"
        if len({number % ranks for number in numbers}) != len(numbers):
            return f"a {side} is listed twice"
    return None
