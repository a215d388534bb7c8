"""Programs of plain `jit` for 8 devices, and what XLA's partitioner makes of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

ORDER = (3, 1, 0, 2, 7, 5, 4, 6)
OPCODES = (
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast"),
    "ragged-all-to-all",
)


def mesh(shape: tuple[int, ...], order: tuple[int, ...] = tuple(range(8))) -> Mesh:
    """A mesh over axes "x", "y", "z", which are left to the partitioner."""
    devices = np.array(jax.devices())[list(order)].reshape(shape)
    return Mesh(devices, ("x", "y", "z")[: len(shape)], axis_types=(AxisType.Auto,) * len(shape))


def matrix(where: Mesh, *spec: Any, n: int = 16, dtype: Any = np.float32) -> jax.Array:
    """An n x n array of small numbers, sharded."""
    x = np.arange(n * n).reshape(n, n) % 13
    return jax.device_put(x.astype(dtype), NamedSharding(where, P(*spec)))


def left(compiled: Any) -> list[str]:
    """XLA's own collectives in a compiled program."""
    lines = compiled.as_text().splitlines()
    return [line for line in lines if any(f" {opcode}(" in line for opcode in OPCODES)]


def targets(compiled: Any) -> set[str]:
    """The names of our custom calls in a compiled program."""
    words = compiled.as_text().split('custom_call_target="jaxring_')
    return {word.partition('"')[0] for word in words[1:]}


def exported(f: Any, *arguments: Any, platform: str = "cpu") -> Any:
    """A function whose program JAX has lowered already, as it does without us.

    ``platform``: "cuda" for `pbroadcast`, which JAX lowers for GPUs only. The program runs on CPUs all the same.
    """
    check = export.DisabledSafetyCheck
    checks = [check.custom_call("ragged_all_to_all"), check.platform()]
    return export.export(jax.jit(f), platforms=[platform], disabled_checks=checks)(*arguments).call


def over(where: Mesh, f: Any) -> Any:
    """A shard_map over the first dimension."""
    specs = P(where.axis_names)
    return jax.shard_map(f, mesh=where, in_specs=specs, out_specs=specs, check_vma=False)


def reshard(where: Mesh, x: Any, *spec: Any) -> Any:
    """In a program."""
    return jax.lax.with_sharding_constraint(x, NamedSharding(where, P(*spec)))


def loops(x: Any) -> Any:
    """Collectives in loops, in a loop's condition and in branches."""
    x = jax.lax.fori_loop(0, 3, lambda i, c: c / jnp.sum(c) + jnp.roll(c, 1, 0), x)
    x = jax.lax.cond(x.sum() > 0, lambda c: c - c.max(0), lambda c: jnp.cumsum(c, 1), x)
    x, _ = jax.lax.scan(lambda s, row: (s + row.max() * s.mean(), None), x, x)
    return jax.lax.while_loop(lambda c: jnp.abs(c).max() < 30, lambda c: c * 1.5 + 0.1, x)


def gradients(x: Any) -> Any:
    """What a data-parallel step needs."""
    loss = lambda w, scale: jnp.tanh(x @ w * scale).sum()  # noqa: E731
    return jax.vmap(jax.grad(loss), in_axes=(1, None))(x, 0.01)
