"""The primitive behind `jaxring.reshard` inside `jax.jit`: linear, its own transpose from the target to the source.

It is lowered to the exchange of `traced.py`. Before that, differentiation and batching see one operation on whole
arrays.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from jaxring import _compat
from jaxring.tracing.primitives import define

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

reshard_p = Primitive("jaxring_reshard")


def over(mesh: Any) -> AbstractContextManager[None]:
    """Within it `jax.shard_map` takes this mesh, though another one may be in scope by `jax.set_mesh`."""
    in_scope = jax.sharding.get_abstract_mesh()
    own = mesh if isinstance(mesh, jax.sharding.AbstractMesh) else mesh.abstract_mesh
    return contextlib.nullcontext() if in_scope.empty or in_scope == own else _compat.without_mesh()


def _abstract(x: Any, *, mesh: Any, source: Any, target: Any, **params: Any) -> Any:
    """The type that `jax.shard_map` gives its result, which says a sharding where the mesh is explicit.

    The exchange itself is not traced for it: under `jax.vmap` not all axes of an explicit mesh can be named.
    """
    del params
    block = NamedSharding(mesh, target).shard_shape(x.shape)
    operand = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)  # type: ignore[no-untyped-call]
    like = jax.shard_map(
        lambda _: jnp.zeros(block, x.dtype), mesh=mesh, in_specs=source, out_specs=target, check_vma=False
    )
    with over(mesh):
        (result,) = jax.make_jaxpr(like)(operand).out_avals
    return result


def _transpose(ct: Any, x: Any, *, source: Any, target: Any, **params: Any) -> list[Any]:
    del x
    return [reshard_p.bind(ct, source=target, target=source, **params)]  # type: ignore[no-untyped-call]


def _batch(data: Any, args: Any, dims: Any, *, source: Any, target: Any, **params: Any) -> tuple[Any, int | None]:
    """The batch is a first dimension, which has the same sharding in both."""
    (x,), (dim,) = args, dims
    if dim is None:  # JAX asks a fancy batcher also where no operand has the batch
        return reshard_p.bind(x, source=source, target=target, **params), None  # type: ignore[no-untyped-call]
    x = jnp.moveaxis(x, dim, 0)
    typed = jax.typeof(x).sharding
    # The axes of the mesh that shard the batch: of jax.vmap's spmd_axis_name, or those that an explicit mesh says.
    entry = data.spmd_name
    if entry is None and isinstance(typed, NamedSharding) and len(typed.spec):
        entry = typed.spec[0]
    over = set() if entry is None else set(entry) if isinstance(entry, tuple) else {entry}
    for spec in (source, target):
        if twice := over & {name for each in spec for name in (each if isinstance(each, tuple) else (each,))}:
            raise ValueError(
                f"jaxring.reshard: the batch of jax.vmap is sharded over axis {min(twice)!r}, over which {spec} shards "
                "a dimension; shard each over an axis of its own."
            )
    specs: dict[str, Any] = {
        name: PartitionSpec(entry, *spec)  # type: ignore[no-untyped-call]
        for name, spec in (("source", source), ("target", target))
    }
    return reshard_p.bind(x, **specs, **params), 0  # type: ignore[no-untyped-call]


def register(exchange: Callable[..., Any]) -> None:
    """Gives the primitive its meaning: ``exchange(x, mesh=, source=, target=, timeout=, site=)``."""

    define(reshard_p, _abstract)
    ad.deflinear2(reshard_p, _transpose)  # type: ignore[no-untyped-call]
    batching.fancy_primitive_batchers[reshard_p] = _batch
    # Lowerings are cached by parameters otherwise, and two calls would become one site.
    mlir.register_lowering(reshard_p, mlir.lower_fun(exchange, multiple_results=False), cacheable=False)
