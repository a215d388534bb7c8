"""Outside of `jax.jit`: an array whose shards change devices within a process and are not cut, by XLA's copies."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from jaxring.resharding import shards

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jaxring.resharding.facts import Facts

# XLA takes 0.2 ms to begin with each shard, so fewer bytes are sooner copied by NumPy.
_LEAST_BYTES = 4 << 20


def move(array: Facts, leaf: Any, may_alias: bool) -> jax.Array | None:
    """The result. Shards that stay are the operand's with ``may_alias``, else copies.

    None where a device of this process needs another part than one shard of this process, two need the same one, or
    the array is small.
    """
    found, stay, moving = _origins(array)
    if not found or not isinstance(leaf, jax.Array) or array.nbytes < _LEAST_BYTES:
        return None
    held = shards.by_device(leaf)
    made = {device: held[origin] for device, origin in found.items()}
    made.update(zip(moving, jax.device_put([made[device] for device in moving], moving), strict=True))
    if not may_alias:
        made.update({device: shards.copied(made[device]) for device in stay})
    return jax.make_array_from_single_device_arrays(array.shape, array.target, list(made.values()))


class _Origins(NamedTuple):
    """For each of this process's devices the one whose shard it gets; which of them keep theirs, and which do not."""

    of: Mapping[Any, Any]
    stay: list[Any]
    moving: list[Any]


@functools.lru_cache(maxsize=256)
def _origins(array: Facts) -> _Origins:
    """Nothing if that cannot be."""
    held = {region: device for device, region in shards.regions(array.source, array.shape).items()}
    wanted = shards.regions(array.target, array.shape)
    once = len(set(wanted.values())) == len(wanted)
    if array.source.memory_kind != array.target.memory_kind or not once or not held.keys() >= set(wanted.values()):
        return _Origins({}, [], [])
    of = {device: held[region] for device, region in wanted.items()}
    stay = [device for device, origin in of.items() if device == origin]
    return _Origins(of, stay, [device for device in of if device not in stay])
