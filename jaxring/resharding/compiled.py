"""Outside of `jax.jit`: the reshards of one array that are one program, which needs no messages to be packed.

Where whole shards change their devices the program is a permutation. Other arrays that are small enough go as inside
`jax.jit`. Within one process XLA's own program does what a permutation cannot. All else goes in rounds.
"""

from __future__ import annotations

import collections
import functools
import math
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxring import collectives
from jaxring.resharding import traced
from jaxring.resharding.exchange import SITE
from jaxring.resharding.routes import Region, within
from jaxring.tracing import wire_dtypes
from jaxring.tracing.axes import called_at

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxring.resharding.facts import Facts

_AXIS = "device"
_BY_DEVICE: Any = PartitionSpec(_AXIS)  # type: ignore[no-untyped-call]
# Below this what the copies of a process cost is that they are called, and `jax.device_put` is called once.
_SMALL_BYTES = 1 << 20


@functools.lru_cache(maxsize=256)
def program(
    array: Facts, most_bytes: int, timeout: float | None, may_alias: bool
) -> Callable[[jax.Array], jax.Array] | None:
    """What moves such an array, which all processes of its devices call; None if it goes in rounds.

    A process never gets a byte that it has. Beside the result the program takes up to ``most_bytes`` of a process's
    memory. With ``may_alias`` the result may have the operand's own shards where these stay.
    """
    shape, dtype, source, target = array
    if array.nbytes == 0 or any(device.platform != "cpu" for device in source.device_set | target.device_set):
        return None
    held, wanted = (sharding.devices_indices_map(shape) for sharding in (source, target))
    here = len(array.processes) == 1
    # Where shards stay, device_put gives the result the operand's own.
    stays = any(held.get(device) == index for device, index in wanted.items())
    alone = here and (may_alias or not stays)
    apart = _apart(shape, target)
    if alone and array.nbytes < _SMALL_BYTES:
        return functools.partial(jax.device_put, device=target)
    if not apart or not shape or not _served(shape, dtype):
        return None
    origins = _origins(shape, source, target) if source.device_set == target.device_set else None
    if origins is not None and not (alone and stays):
        return _permutation(shape, target, list(held), origins, timeout, may_alias)
    if here:
        return functools.partial(jax.device_put, device=target) if alone else None
    if source.device_set != target.device_set:
        return None
    if not _over_one_mesh(source, target) or _memory(array) > most_bytes:
        return None
    return _exchange(source, target, timeout)


def _over_one_mesh(source: Any, target: Any) -> bool:
    named = all(isinstance(sharding, NamedSharding) for sharding in (source, target))
    return (
        named
        and source.mesh == target.mesh
        and all(entry is not PartitionSpec.UNCONSTRAINED for sharding in (source, target) for entry in sharding.spec)
    )


def _served(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    try:
        wire_dtypes.movable("reshard", jax.ShapeDtypeStruct(shape, dtype))  # type: ignore[no-untyped-call]
    except TypeError:
        return False
    return True


def _apart(shape: tuple[int, ...], target: Any) -> bool:
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


def _permutation(
    shape: tuple[int, ...],
    target: Any,
    devices: Sequence[Any],
    origins: Sequence[int],
    timeout: float | None,
    may_alias: bool,
) -> Callable[[jax.Array], jax.Array]:
    moving = [number for number, origin in enumerate(origins) if origin != number or not may_alias]
    here = [devices[number] for number in moving if devices[number].process_index == jax.process_index()]
    place = {number: rank for rank, number in enumerate(moving)}
    pairs = [(place[origins[number]], rank) for number, rank in place.items()]
    first, *rest = target.shard_shape(shape)
    moved: Any = None
    if here:
        mesh = Mesh(np.array([devices[number] for number in moving]), (_AXIS,))
        by_device: Any = NamedSharding(mesh, _BY_DEVICE)

        def permute(shard: Any) -> Any:
            with called_at(SITE):
                return collectives.permute(shard, _AXIS, pairs, timeout=timeout)

        moved = jax.jit(jax.shard_map(permute, mesh=mesh, in_specs=_BY_DEVICE, out_specs=_BY_DEVICE, check_vma=False))

    def run(x: jax.Array) -> jax.Array:
        shards = {shard.device: shard.data for shard in x.addressable_shards}
        if here:
            whole = (first * len(moving), *rest)
            stacked = jax.make_array_from_single_device_arrays(whole, by_device, [shards[device] for device in here])
            shards.update((shard.device, shard.data) for shard in moved(stacked).addressable_shards)
        return jax.make_array_from_single_device_arrays(shape, target, list(shards.values()))

    return run


def _memory(array: Facts) -> int:
    """The most bytes that an exchange takes of a process beside the result: what its devices send, and what comes."""
    held, wanted = (
        math.prod(sharding.shard_shape(array.shape)) * array.dtype.itemsize for sharding in (array.source, array.target)
    )
    copies = -(-wanted * len(array.target.device_set) // array.nbytes)
    devices = max(collections.Counter(device.process_index for device in array.target.device_set).values())
    return int(devices * (held * copies + wanted))


def _exchange(source: Any, target: Any, timeout: float | None) -> Callable[[jax.Array], jax.Array]:
    def move(x: Any) -> Any:
        with called_at(SITE):
            return traced.reshard(x, source, target, timeout)

    moved = jax.jit(move)

    def run(x: jax.Array) -> jax.Array:
        shards = [shard.data for shard in moved(x).addressable_shards]
        return jax.make_array_from_single_device_arrays(x.shape, target, shards)

    return run
