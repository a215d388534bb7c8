"""Outside of `jax.jit`: arrays that go between processes by a program each, which needs no messages to be packed.

Where whole shards change their devices the program is a permutation. Other arrays over one mesh that are small enough
go as inside `jax.jit`. All else goes in rounds. A program is compiled for its array alone, so it is for arrays that
are moved again and again, or are large.
"""

from __future__ import annotations

import collections
import functools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxring import collectives
from jaxring.resharding import shards, traced
from jaxring.resharding.exchange import SITE
from jaxring.resharding.transfer_routes import Region, within
from jaxring.tracing import wire_dtypes
from jaxring.tracing.axes import called_at

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxring.resharding.facts import Facts

_AXIS = "device"
_BY_DEVICE: Any = PartitionSpec(_AXIS)  # type: ignore[no-untyped-call]


class Program(NamedTuple):
    """What moves an array; ``means`` is equal in processes whose programs are.

    ``run(x, may_alias)`` is called by all processes that have a part of the array. With ``may_alias``, which is a
    process's own affair, its result may have the operand's own shards where these stay.
    """

    means: tuple[Any, ...]
    run: Callable[[jax.Array, bool], jax.Array]


@functools.lru_cache(maxsize=256)
def program(array: Facts, most_bytes: int, timeout: float | None) -> Program | None:
    """What moves an array of which a part has to travel between processes; None if it goes in rounds.

    A process never gets a byte that it has. Beside the result the program takes up to ``most_bytes`` of a process's
    memory.
    """
    shape, dtype, source, target = array
    devices = source.device_set
    if not shape or array.nbytes == 0 or devices != target.device_set or any(d.platform != "cpu" for d in devices):
        return None
    if not (shards.in_default_memory(source) and shards.in_default_memory(target)):
        return None
    if not _no_region_twice(shape, target) or not _served(shape, dtype):
        return None
    origins = _origins(shape, source, target)
    if origins is not None:
        return _permutation(array, origins, timeout)
    if _over_one_mesh(source, target) and _memory(array) <= most_bytes:
        return _exchange(array, timeout)
    return None


def _over_one_mesh(source: Any, target: Any) -> bool:
    named = all(isinstance(sharding, NamedSharding) for sharding in (source, target))
    return (
        named
        and source.mesh == target.mesh
        and all(entry is not PartitionSpec.UNCONSTRAINED for sharding in (source, target) for entry in sharding.spec)
    )


def _served(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Whether collectives have the dtype."""
    try:
        wire_dtypes.movable("reshard", jax.ShapeDtypeStruct(shape, dtype))  # type: ignore[no-untyped-call]
    except TypeError:
        return False
    return True


def _no_region_twice(shape: tuple[int, ...], target: Any) -> bool:
    """Whether no two devices of a process need the same bytes, which a program would send and keep twice."""
    count = collections.Counter(
        (device.process_index, within(index, shape)) for device, index in target.devices_indices_map(shape).items()
    )
    return max(count.values()) == 1


def _origins(shape: tuple[int, ...], source: Any, target: Any) -> list[int] | None:
    """For each device, in ``source``'s order, the number of the one whose shard it gets; each gives its shard once.

    None if that cannot be.
    """
    devices = list(source.devices_indices_map(shape))
    holders: dict[Region, list[int]] = collections.defaultdict(list)
    for number, index in enumerate(source.devices_indices_map(shape).values()):
        holders[within(index, shape)].append(number)
    origins: dict[int, int] = {}
    needs = {number: within(target.devices_indices_map(shape)[device], shape) for number, device in enumerate(devices)}

    def assign(fits: Callable[[int, int], bool]) -> None:
        for number in needs.keys() - origins.keys():
            having = holders.get(needs[number], [])
            origin = next((other for other in having if fits(other, number)), None)
            if origin is not None:
                having.remove(origin)
                origins[number] = origin

    assign(lambda origin, number: origin == number)
    assign(lambda origin, number: devices[origin].process_index == devices[number].process_index)
    assign(lambda *_: True)
    return [origins[number] for number in range(len(devices))] if len(origins) == len(devices) else None


def _permutation(array: Facts, origins: Sequence[int], timeout: float | None) -> Program:
    """Among the devices that get another one's shard."""
    shape, _, source, target = array
    devices = list(source.devices_indices_map(shape))
    moving = [number for number, origin in enumerate(origins) if origin != number]
    here = [devices[number] for number in moving if devices[number].process_index == jax.process_index()]
    place = {number: rank for rank, number in enumerate(moving)}
    pairs = [(place[origins[number]], rank) for number, rank in place.items()]
    first, *rest = target.shard_shape(shape)
    moved: Any = None
    if here:
        mesh = Mesh(np.array([devices[number] for number in moving]), (_AXIS,))
        along: Any = NamedSharding(mesh, _BY_DEVICE)

        def permute(shard: Any) -> Any:
            with called_at(SITE):
                return collectives.permute(shard, _AXIS, pairs, timeout=timeout)

        moved = jax.jit(jax.shard_map(permute, mesh=mesh, in_specs=_BY_DEVICE, out_specs=_BY_DEVICE, check_vma=False))

    def run(x: jax.Array, may_alias: bool) -> jax.Array:
        found = shards.by_device(x)
        results = {device: found[device] for device in found.keys() - set(here)}
        if not may_alias:
            results = {device: shards.copied(shard) for device, shard in results.items()}
        if here:
            whole = (first * len(moving), *rest)
            stacked = jax.make_array_from_single_device_arrays(whole, along, [found[device] for device in here])
            results.update((shard.device, shard.data) for shard in moved(stacked).addressable_shards)
        return jax.make_array_from_single_device_arrays(shape, target, list(results.values()))

    return Program(("permutation", [(devices[origins[number]].id, devices[number].id) for number in moving]), run)


def _memory(array: Facts) -> int:
    """The most bytes that an exchange takes of a process beside the result: what its devices send, and what comes."""
    held, wanted = (
        math.prod(sharding.shard_shape(array.shape)) * array.dtype.itemsize for sharding in (array.source, array.target)
    )
    copies = -(-wanted * len(array.target.device_set) // array.nbytes)
    devices = max(collections.Counter(device.process_index for device in array.target.device_set).values())
    return int(devices * (held * copies + wanted))


def _exchange(array: Facts, timeout: float | None) -> Program:
    shape, _, source, target = array

    def move(x: Any) -> Any:
        with called_at(SITE):
            return traced.reshard(x, source, target, timeout)

    moved = jax.jit(move)

    def run(x: jax.Array, may_alias: bool) -> jax.Array:
        del may_alias  # no shard of the result is one of the operand's
        operand = jax.make_array_from_single_device_arrays(shape, source, list(shards.by_device(x).values()))
        results = [shard.data for shard in moved(operand).addressable_shards]
        return jax.make_array_from_single_device_arrays(shape, target, results)

    mesh = source.mesh
    means = ("exchange", dict(mesh.shape), [device.id for device in mesh.devices.flat], source.spec, target.spec)
    return Program(means, run)
