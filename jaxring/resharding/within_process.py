"""Outside of `jax.jit`: an array on CPUs of which no byte leaves its process, where little or nothing has to be copied.

`jax.device_put` takes some 0.2 ms for a small array, most of which is not copying. So what is the same in every call
for such an array is found once: which part of which shard goes where. A whole shard that changes its device needs no
copy where operand and result may share memory, since all CPU devices of a process have one memory.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from jaxring.resharding import shards
from jaxring.resharding.copies import aligned, extent, inside, unit
from jaxring.resharding.transfer_routes import Leaf, elements, plan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jaxring.resharding.facts import Facts

# More is sooner copied by several threads.
_MOST_COPIED = 4 << 20
# To make an array of shards that lie in different memory takes 0.05 ms more than to copy these bytes.
_LEAST_SHARED = 256 << 10


class _Copy(NamedTuple):
    """Of the part ``source`` of a device's shard to the place ``to`` of new memory."""

    number: int
    to: Any
    device: Any
    source: Any


class _Way(NamedTuple):
    """How this process's devices get their shards of the result.

    ``shared``: of a device the one whose shard it gets, in the same memory. ``new``: of each other device the number of
    its part among those of the shapes ``shapes``, which ``copies`` fill. ``by_start``: the same by where a part begins
    in the whole array; empty where shards are shared. ``read``: devices whose shards are read by the host.
    """

    shared: Mapping[Any, Any]
    new: Mapping[Any, int]
    by_start: Mapping[tuple[int, ...], int]
    shapes: Sequence[tuple[int, ...]]
    copies: Sequence[_Copy]
    read: frozenset[Any]


def move(array: Facts, leaf: Any, may_alias: bool) -> jax.Array | None:
    """The result, or None where much has to be copied, or where the array lies otherwise than NumPy's would."""
    way = _way(array, may_alias) if isinstance(leaf, jax.Array) else None
    if way is None or leaf.format.layout.major_to_minor != tuple(range(len(array.shape))):
        return None
    held = {shard.device: shard.data for shard in leaf.addressable_shards}
    dtype, moved_as = array.dtype, unit(array.dtype)
    seen = {device: shards.seen(held[device]).view(moved_as) for device in way.read}
    new = [aligned(shape, moved_as) for shape in way.shapes]
    for number, to, device, source in way.copies:
        new[number][to] = seen[device][source]
    if not way.shared:
        begins: Any = lambda index: tuple(part.start or 0 for part in index)  # noqa: E731
        part: Any = lambda index: new[way.by_start[begins(index)]].view(dtype)  # noqa: E731
        return jax.make_array_from_callback(array.shape, array.target, part)
    made = [
        held[device] if device == other else shards.from_the_host(device, seen[other].view(dtype))
        for device, other in way.shared.items()
    ]
    made += [shards.from_the_host(device, new[number].view(dtype)) for device, number in way.new.items()]
    return jax.make_array_from_single_device_arrays(array.shape, array.target, made)


@functools.lru_cache(maxsize=256)
def _way(array: Facts, may_alias: bool) -> _Way | None:
    """None where an array of this kind cannot go so."""
    shape, dtype, source, target = array
    if array.nbytes == 0 or any(device.platform != "cpu" for device in source.device_set | target.device_set):
        return None
    if not (shards.in_default_memory(source) and shards.in_default_memory(target)):
        return None
    held, wanted = shards.regions(source, shape), shards.regions(target, shape)
    if not held or not wanted:
        return None
    holder = {region: device for device, region in held.items()}
    shared = {
        device: device if held.get(device) == region else holder[region]
        for device, region in wanted.items()
        if may_alias and region in holder
    }
    if sum(elements(wanted[device]) for device in shared) * dtype.itemsize <= _LEAST_SHARED:
        shared = {}
    regions = list(dict.fromkeys(region for device, region in wanted.items() if device not in shared))
    if sum(map(elements, regions)) * dtype.itemsize > _MOST_COPIED:
        return None
    # As if this were the only process, since no byte comes from another one.
    leaf = Leaf(shape, dtype.name, dtype.itemsize, {0: tuple(holder)}, {0: tuple(regions)})
    copies = [
        _Copy(
            regions.index(piece.wanted),
            inside(piece.wanted, piece.region),
            holder[piece.held],
            inside(piece.held, piece.region),
        )
        for piece in plan([leaf], array.nbytes).copies.get(0, ())
    ]
    return _Way(
        shared,
        {device: regions.index(region) for device, region in wanted.items() if device not in shared},
        {} if shared else {tuple(start for start, _ in region): number for number, region in enumerate(regions)},
        [extent(region) for region in regions],
        copies,
        frozenset(copy.device for copy in copies) | {other for device, other in shared.items() if device != other},
    )
