"""The shards of an array on this process's devices, which the result or a program can take as they are, or not.

JAX takes the layout and the memory kind of an array for those of its first shard. So all shards of a result, and of
what a program gets, have to have the default layout and the sharding's memory kind.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.experimental.layout import Format, Layout

from jaxring.resharding.transfer_routes import within


def in_default_layout(shard: Any) -> bool:
    """Whether its elements lie in the order of its indices."""
    return bool(shard.format.layout.major_to_minor == tuple(range(shard.ndim)))


def by_device(array: Any) -> dict[Any, jax.Array]:
    """The shards of this process's devices, in the default layout, by whose device they are on."""
    return {shard.device: _default(shard.data) for shard in array.addressable_shards}


def copied(shard: jax.Array) -> Any:
    """A copy on the same device, which shares no memory with it."""
    return jax.device_put(shard, shard.sharding, may_alias=False)


def on_the_host(shard: jax.Array) -> np.ndarray:
    """What NumPy sees of it: on CPUs its own memory, or a copy where its elements lie otherwise than NumPy's would."""
    if not in_default_layout(shard) or shard.dtype.isbuiltin != 1:
        # A copy stays with the object that was asked for it, which is not to be the operand's.
        shard = jax.make_array_from_single_device_arrays(shard.shape, shard.sharding, [shard])
    return np.asarray(shard)


def that_stay(array: Any, target: Any) -> dict[Any, jax.Array]:
    """Those that a result with sharding ``target`` can have as they are, by device."""
    if not isinstance(array, jax.Array) or array.sharding.memory_kind != target.memory_kind:
        return {}
    wanted = target.addressable_devices_indices_map(array.shape)
    return {
        shard.device: shard.data
        for shard in array.addressable_shards
        if shard.device in wanted
        and within(wanted[shard.device], array.shape) == within(shard.index, array.shape)
        and in_default_layout(shard.data)
    }


def _default(shard: Any) -> Any:
    if in_default_layout(shard):
        return shard
    order: Any = Layout(tuple(range(shard.ndim)))
    return jax.device_put(shard, Format(order, shard.sharding))
