"""Arrays that are resharded in rounds: routes, copies at their ends, and messages between processes."""

from __future__ import annotations

import collections
import contextlib
import functools
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxring.resharding import shards
from jaxring.resharding.copies import Copier, Parts, aligned, extent, unit
from jaxring.resharding.exchange import Exchange
from jaxring.resharding.transfer_routes import Leaf, plan, within

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jaxring.resharding.facts import Facts
    from jaxring.resharding.shards import Shard
    from jaxring.resharding.transfer_routes import Block, Layout, Region, Routes


@functools.lru_cache(maxsize=64)
def planned(arrays: tuple[Facts, ...], round_bytes: int) -> Routes:
    """The routes of all of them, the same in all processes."""
    leaves = [
        Leaf(a.shape, a.dtype.name, a.dtype.itemsize, _layout(a.source, a.shape), _layout(a.target, a.shape))
        for a in arrays
    ]
    return plan(leaves, round_bytes)


def agree(processes: Sequence[int], found: Routes, digest: int, calls: int, timeout: float | None) -> int:
    """The least of the processes' ``calls``; JaxringError names those whose ``digest`` is another.

    Nothing is compared, and 0 returned, where no bytes travel and in a process that has no part of anything.
    """
    if found.rounds and jax.process_index() in processes:
        return _exchange(processes, found, timeout).agree(digest, calls)
    return 0


def move(
    arrays: Sequence[Facts], leaves: Sequence[Any], round_bytes: int, timeout: float | None, may_alias: bool
) -> list[Any]:
    """The results. Every process that has a part of one calls it, after they have agreed."""
    found, mine = planned(tuple(arrays), round_bytes), jax.process_index()
    there = [shards.of(leaf) for leaf in leaves]
    stay = [shards.that_stay(of_it, a) if may_alias else {} for a, of_it in zip(arrays, there, strict=True)]
    results: list[Parts] = [
        {region: aligned(extent(region), unit(a.dtype)) for region in _needed(a, kept)}
        for a, kept in zip(arrays, stay, strict=True)
    ]
    copier = Copier(found, [_held(a, of_it) for a, of_it in zip(arrays, there, strict=True)], results)
    with contextlib.closing(copier):
        if found.rounds:
            processes = sorted({process for a in arrays for process in a.processes})
            if mine in processes:
                _between(found, processes, copier, timeout)
        copier.local(mine)
    made = [_result(a, parts, kept) for a, parts, kept in zip(arrays, results, stay, strict=True)]
    # No transfer is left to wait for on CPUs; GPUs must have read the host's memory before it is given back.
    return jax.block_until_ready(made)  # type: ignore[no-untyped-call, no-any-return]


def _exchange(processes: Sequence[int], found: Routes, timeout: float | None) -> Exchange:
    return _among(tuple(_cpu(process) for process in processes), found.capacity, timeout)


@functools.lru_cache(maxsize=64)
def _among(devices: tuple[Any, ...], capacity: int, timeout: float | None) -> Exchange:
    return Exchange(devices, capacity, timeout)


def _layout(sharding: Any, shape: tuple[int, ...]) -> Layout:
    found: dict[int, dict[Region, None]] = collections.defaultdict(dict)
    for device, index in sharding.devices_indices_map(shape).items():
        found[device.process_index][within(index, shape)] = None
    return {process: tuple(regions) for process, regions in found.items()}


def _needed(a: Facts, kept: Mapping[Any, Any]) -> set[Region]:
    """The regions that devices of this process need and do not keep."""
    return {region for device, region in shards.regions(a.target, a.shape).items() if device not in kept}


def _held(a: Facts, there: Sequence[Shard]) -> Parts:
    """The parts that this process has, in the host's memory; on CPUs this is the devices' own."""
    found: Parts = {}
    for shard in there:
        if shard.region not in found:
            found[shard.region] = shards.on_the_host(shard).view(unit(a.dtype))
    return found


def _between(found: Routes, processes: Sequence[int], copier: Copier, timeout: float | None) -> None:
    mine = jax.process_index()
    outgoing = [_by_round(found, mine, process) for process in processes]
    incoming = [_by_round(found, process, mine) for process in processes]

    def pack(number: int, memory: np.ndarray) -> np.ndarray:
        copier.pack((block for blocks in outgoing for block in blocks[number]), memory)
        out, into = (
            [sum(block.nbytes for block in blocks[number]) for blocks in ends] for ends in (outgoing, incoming)
        )
        # A rank's bytes lie behind those of the ranks before it, at both ends.
        begins, lands = (np.cumsum([0, *sizes[:-1]]) for sizes in (out, into))
        return np.array([begins, out, lands, into], np.int32)

    def unpack(number: int, memory: np.ndarray) -> None:
        copier.unpack((block for blocks in incoming for block in blocks[number]), memory)

    _exchange(processes, found, timeout).run(found.rounds, pack, unpack)


def _by_round(found: Routes, source: int, target: int) -> list[list[Block]]:
    """The blocks that one process sends another, in each round."""
    rounds: list[list[Block]] = [[] for _ in range(found.rounds)]
    for number, block in found.blocks(source, target):
        rounds[number].append(block)
    return rounds


def _cpu(process: int) -> Any:
    return min((d for d in jax.devices("cpu") if d.process_index == process), key=lambda d: d.id)


def _result(a: Facts, parts: Parts, kept: Mapping[Any, jax.Array]) -> Any:
    """The array of these parts, whose memory it takes over, and of the shards that stay."""
    here = shards.regions(a.target, a.shape)
    if not here:
        return a.absent

    def part(index: Any) -> np.ndarray:
        # Devices that share a region on CPUs share its memory, too: XLA does not write to memory that it was lent.
        return parts[within(index, a.shape)].view(a.dtype)

    if not kept:
        return jax.make_array_from_callback(a.shape, a.target, part)
    made = [
        kept[device]
        if device in kept
        else shards.from_the_host(device, parts[region].view(a.dtype), a.target.memory_kind)
        for device, region in here.items()
    ]
    return jax.make_array_from_single_device_arrays(a.shape, a.target, made)
