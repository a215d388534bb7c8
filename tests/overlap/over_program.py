"""A program whose other ranks are held back until a step of this rank, between start and done, has run.

It ends well only if that step runs while the collective is in flight; otherwise it ends at the collective's deadline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import jaxring

if TYPE_CHECKING:
    from collections.abc import Callable

SIDE = 40


def program(
    mesh: jax.sharding.Mesh,
    start: Callable[..., jaxring.Handle[Any]],
    hold: Callable[[int], None],
    between: Callable[[int, int], None],
    *,
    timeout: float,
    ordered: bool,
) -> Callable[[jax.Array], jax.Array]:
    """``hold(rank)`` is called before the collective, ``between(rank, ranks in flight here)`` by the step.

    The step needs the collective's result unless ``ordered``.
    """

    def held(rank: Any) -> Any:
        hold(int(rank))
        return np.float32(0)

    def step(rank: Any, x: Any) -> Any:
        between(int(rank), jaxring.counters()["in_flight"])
        return np.asarray(x)

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=P("r"), out_specs=P("r"), check_vma=False)
    def run(x: jax.Array) -> jax.Array:
        rank = jax.lax.axis_index("r")
        x = x + jax.pure_callback(held, jax.ShapeDtypeStruct((), jnp.float32), rank)
        handle = start(x, "r", timeout=timeout)
        a = x.reshape(SIDE, SIDE)
        if not ordered:
            a = a + handle.done().reshape(-1)[: a.size].reshape(a.shape)
        c = jnp.sort(jnp.sin(a @ a))
        c = 2 * jax.pure_callback(step, jax.ShapeDtypeStruct(c.shape, c.dtype), rank, c)
        y, c = handle.done(c)
        return y.reshape(-1)[: a.size] + c.reshape(-1)

    return run


def operand(ranks: int) -> np.ndarray:
    """The program's operand."""
    return np.linspace(0, 1, ranks * SIDE * SIDE, dtype=np.float32)
