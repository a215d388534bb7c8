"""The shards of an array on this process's devices, which the result or a program can take as they are, or not.

JAX takes the layout and the memory kind of an array for those of its first shard. So all shards of a result, and of
what a program gets, have to have the default layout and the sharding's memory kind.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax.experimental.layout import Format, Layout
from jax.sharding import SingleDeviceSharding

from jaxring.resharding.transfer_routes import Region, within

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jaxring.resharding.facts import Facts


class Shard(NamedTuple):
    """One of an array, on this process's device ``device``. ``plain``: its elements lie in the order of its indices."""

    device: Any
    region: Region
    data: jax.Array
    plain: bool


@functools.lru_cache(maxsize=256)
def regions(sharding: Any, shape: tuple[int, ...]) -> Mapping[Any, Region]:
    """Of which region each of this process's devices has the shard."""
    here = sharding.addressable_devices_indices_map(shape)
    return {device: within(index, shape) for device, index in here.items()}


def of(array: Any) -> list[Shard]:
    """The shards that this process has; none of what stands for an array in a process without a part of it."""
    if not isinstance(array, jax.Array):
        return []
    known, order = regions(array.sharding, array.shape), tuple(range(array.ndim))
    found = []
    for shard in array.addressable_shards:
        data: Any = shard.data
        found.append(Shard(shard.device, known[shard.device], data, data.format.layout.major_to_minor == order))
    return found


def by_device(array: Any) -> dict[Any, jax.Array]:
    """The shards of this process's devices, in the default layout, by whose device they are on."""
    return {shard.device: _default(shard) for shard in of(array)}


def in_default_memory(sharding: Any) -> bool:
    """Whether a sharding over CPUs is in the memory that CPUs have by default."""
    default = jax.local_devices(backend="cpu")[0].default_memory()
    return sharding.memory_kind in (None, default.kind)


def copied(shard: jax.Array) -> Any:
    """A copy on the same device, which shares no memory with it."""
    return jax.device_put(shard, shard.sharding, may_alias=False)


def on_the_host(shard: Shard) -> np.ndarray:
    """What NumPy sees of it: on CPUs its own memory, or a copy where its elements lie otherwise than NumPy's would."""
    return seen(shard.data, shard.plain)


def seen(data: jax.Array, plain: bool = True) -> np.ndarray:
    """The same of a shard's data."""
    if not plain or data.dtype.isbuiltin != 1:
        # A copy stays with the object that was asked for it, which is not to be the operand's.
        data = jax.make_array_from_single_device_arrays(data.shape, data.sharding, [data])
    return np.asarray(data)


def from_the_host(device: Any, part: np.ndarray, memory_kind: str | None = None) -> jax.Array:
    """An array on one device, which takes over the part's memory where it can."""
    # jax.device_put takes three times as long to begin.
    alone = SingleDeviceSharding(device, memory_kind=memory_kind)
    return jax.make_array_from_callback(part.shape, alone, lambda _: part)


def that_stay(shards: Iterable[Shard], array: Facts) -> dict[Any, jax.Array]:
    """Those that the result can have as they are, by device."""
    if array.source.memory_kind != array.target.memory_kind:
        return {}
    wanted = regions(array.target, array.shape)
    return {shard.device: shard.data for shard in shards if shard.plain and wanted.get(shard.device) == shard.region}


def _default(shard: Shard) -> Any:
    if shard.plain:
        return shard.data
    order: Any = Layout(tuple(range(shard.data.ndim)))
    return jax.device_put(shard.data, Format(order, shard.data.sharding))
