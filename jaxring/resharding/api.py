"""`jaxring.reshard`: its arguments, what they mean on each process, and the result."""

from __future__ import annotations

import collections
import contextlib
import functools
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from jaxring.resharding import routes, traced
from jaxring.resharding.copies import Copier, Parts, aligned, extent, unit
from jaxring.resharding.exchange import Exchange
from jaxring.tracing import checks
from jaxring.tracing.axes import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.resharding.routes import Block, Layout, Region, Routes

Tree = TypeVar("Tree")

_ROUND_BYTES = 4 << 20
_LEAST_ROUND_BYTES = 64 << 10
_MOST_ROUND_BYTES = 1 << 30  # a round's offsets are int32, and a round may hold more than it was asked to


class _Array(NamedTuple):
    """One leaf. ``array`` is None in a process that has no part of it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    source: Any
    target: Any
    array: jax.Array | None


def reshard(
    tree: Tree,
    to_sharding: Any,
    *,
    from_sharding: Any = None,
    round_bytes: int = _ROUND_BYTES,
    timeout: float | None = None,
) -> Tree:
    """``tree`` with ``to_sharding`` in place of the shardings that its arrays have, as `jax.device_put` would give it.

    The two shardings may be over different meshes, of the same processes, of others, or of some of them. Each byte that
    a process needs and does not hold is sent to it once. Every process that has a part of the arrays or of the result
    calls it, with the same shapes, dtypes and shardings, in the same order. It returns when the data is there. Operand
    and result can be donated to a program without harm to each other.

    Inside `jax.jit`, on traced arrays, both shardings are `jax.sharding.NamedSharding`s over one mesh, and the exchange
    is a step of the program; it can be differentiated any number of times. Under `jax.vmap` the batch is one more
    dimension, sharded over ``spmd_axis_name`` or as its type says. Keys of `jax.random` can be moved there, and
    integers of 4 bits, as bytes.

    Outside of `jax.jit` the exchange goes in rounds, for which it takes five times ``round_bytes`` beside the arrays;
    inside, it is one collective, whose memory is of the size of the arrays' blocks. docs/concepts/resharding.md says
    how it works, and what it costs.

    Args:
        tree: A pytree of `jax.Array` of any shape, outside of `jax.jit` of any dtype but those of keys of `jax.random`
            (reshard their `jax.random.key_data`). A process that has no part of an array gives a `jax.ShapeDtypeStruct`
            with its sharding.
        to_sharding: A `jax.sharding.Sharding`, or a tree of them that ``tree`` begins like.
        from_sharding: Inside `jax.jit` only: the sharding that an array has, or a tree of them. None takes it from the
            array's type, which says it where all axes of the mesh are explicit.
        round_bytes: Outside of `jax.jit`: about how many bytes a process sends and receives in a round, between 64 KiB
            and 1 GiB.
        timeout: Seconds for each round, or inside `jax.jit` for the collective. None: JAXRING_TIMEOUT.

    Returns:
        The tree of arrays with the new shardings. In a process that has no part of a result, it is a
        `jax.ShapeDtypeStruct` with its sharding.

    Raises:
        TypeError: For leaves and shardings that are none; inside `jax.shard_map`; inside `jax.jit` for a sharding that
            is not known, and for a dtype that collectives do not have, such as int2.
        ValueError: For a shape that a sharding does not divide, a part that is not given, and ``round_bytes`` or
            ``timeout`` out of range; inside `jax.jit` for shardings over two meshes, one that leaves a dimension
            unconstrained, and a batch sharded over an axis that they use.
        jaxring.JaxringError: Where processes ask for different things and anything has to travel.
        jax.errors.JaxRuntimeError: Where a process fails or does not call it.

    Examples:
        From any sharding to one by rows:

            params = jaxring.reshard(params, NamedSharding(mesh, P("data")))
    """
    round_bytes = checks.integer("jaxring.reshard: round_bytes", round_bytes)
    if not _LEAST_ROUND_BYTES <= round_bytes <= _MOST_ROUND_BYTES:
        raise ValueError(
            f"jaxring.reshard: round_bytes={round_bytes} must be {_LEAST_ROUND_BYTES} at least and {_MOST_ROUND_BYTES} "
            "at most."
        )
    timeout = None if timeout is None else checks.seconds("jaxring.reshard", timeout)
    leaves, shape = jax.tree.flatten(tree)
    targets = _for_each("to_sharding", to_sharding, tree)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        sources = [None] * len(leaves) if from_sharding is None else _for_each("from_sharding", from_sharding, tree)
        moved = [
            traced.reshard(checks.array("reshard", leaf), source, target, timeout)
            for leaf, source, target in zip(leaves, sources, targets, strict=True)
        ]
        return jax.tree.unflatten(shape, moved)  # type: ignore[no-any-return]
    if from_sharding is not None:
        raise ValueError("jaxring.reshard: from_sharding is for use inside jax.jit; an array outside has its sharding.")
    arrays = [_checked(leaf, to) for leaf, to in zip(leaves, targets, strict=True)]
    result: Tree = jax.tree.unflatten(shape, _move(arrays, round_bytes, timeout))
    return result


def _for_each(name: str, shardings: Any, tree: Any) -> list[Any]:
    """The sharding of each leaf, by the argument of that name."""
    found: list[Any] = []

    def spread(sharding: Any, part: Any) -> None:
        if not isinstance(sharding, Sharding):
            raise TypeError(
                f"jaxring.reshard: {name} must be a jax.sharding.Sharding or a tree of them, not {shown(sharding)}."
            )
        found.extend([sharding] * len(jax.tree.leaves(part)))

    jax.tree.map(spread, shardings, tree, is_leaf=lambda x: isinstance(x, Sharding))
    return found


def _checked(leaf: Any, target: Any) -> _Array:
    if not isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct)):
        raise TypeError(
            "jaxring.reshard: a leaf must be a jax.Array, or a jax.ShapeDtypeStruct with a sharding, not "
            f"{shown(leaf)}."
        )
    if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
        raise TypeError(f"jaxring.reshard: {leaf.dtype} cannot be moved; reshard jax.random.key_data of it.")
    source: Any = leaf.sharding
    if not isinstance(source, Sharding):
        raise TypeError(f"jaxring.reshard: {leaf} has no sharding, which would say where the array's parts are.")
    array = leaf if isinstance(leaf, jax.Array) else None
    if array is None and source.addressable_devices:
        raise ValueError(
            f"jaxring.reshard: process {jax.process_index()} has a part of {leaf}; pass the jax.Array in its place. A "
            "jax.ShapeDtypeStruct is for processes without one."
        )
    for sharding in (source, target):
        sharding.shard_shape(leaf.shape)  # ValueError where it does not divide the shape
    return _Array(tuple(leaf.shape), np.dtype(leaf.dtype), source, target, array)


def _region(index: Sequence[slice], shape: tuple[int, ...]) -> Region:
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


def _layout(sharding: Any, shape: tuple[int, ...]) -> Layout:
    found: dict[int, dict[Region, None]] = collections.defaultdict(dict)
    for device, index in sharding.devices_indices_map(shape).items():
        found[device.process_index][_region(index, shape)] = None
    return {process: tuple(regions) for process, regions in found.items()}


@functools.lru_cache(maxsize=64)
def _planned(arrays: tuple[tuple[tuple[int, ...], np.dtype[Any], Any, Any], ...], round_bytes: int) -> Routes:
    """The routes of arrays of these shapes, dtypes, sources and targets."""
    leaves = [
        routes.Leaf(shape, dtype.name, dtype.itemsize, _layout(source, shape), _layout(to, shape))
        for shape, dtype, source, to in arrays
    ]
    return routes.plan(leaves, round_bytes)


def _move(arrays: Sequence[_Array], round_bytes: int, timeout: float | None) -> list[Any]:
    facts = tuple((a.shape, a.dtype, a.source, a.target) for a in arrays)
    found, mine = _planned(facts, round_bytes), jax.process_index()
    held = [_held(a) for a in arrays]
    results: list[Parts] = [
        {region: aligned(extent(region), unit(a.dtype)) for region in leaf.target.get(mine, ())}
        for a, leaf in zip(arrays, found.leaves, strict=True)
    ]
    copier = Copier(found, held, results)
    with contextlib.closing(copier):
        layouts = [layout for leaf in found.leaves for layout in (leaf.source, leaf.target)]
        processes = sorted({process for layout in layouts for process in layout})
        if found.rounds and mine in processes:
            _between(found, processes, copier, timeout)
        copier.local(mine)
    return [_result(a, parts) for a, parts in zip(arrays, results, strict=True)]


def _held(a: _Array) -> Parts:
    """The parts that this process has, in the host's memory; on CPUs this is the devices' own."""
    found: Parts = {}
    for shard in () if a.array is None else a.array.addressable_shards:
        region = _region(shard.index, a.shape)
        if region not in found:
            found[region] = np.asarray(shard.data).view(unit(a.dtype))
    return found


def _between(found: Routes, processes: Sequence[int], copier: Copier, timeout: float | None) -> None:
    mine = jax.process_index()
    exchange = Exchange([_cpu(process) for process in processes], found.capacity, timeout)
    exchange.agree(found.digest)
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

    exchange.run(found.rounds, pack, unpack)


def _by_round(found: Routes, source: int, target: int) -> list[list[Block]]:
    """The blocks that one process sends another, in each round."""
    rounds: list[list[Block]] = [[] for _ in range(found.rounds)]
    for number, block in found.blocks(source, target):
        rounds[number].append(block)
    return rounds


def _cpu(process: int) -> Any:
    return min((d for d in jax.devices("cpu") if d.process_index == process), key=lambda d: d.id)


def _result(a: _Array, parts: Parts) -> Any:
    if not a.target.addressable_devices:
        struct: Any = jax.ShapeDtypeStruct
        return struct(a.shape, a.dtype, sharding=a.target)
    # Devices that share a region on CPUs share its memory, too: XLA does not write to memory that it was lent.
    shards = [
        jax.device_put(parts[_region(index, a.shape)].view(a.dtype), SingleDeviceSharding(device))
        for device, index in a.target.addressable_devices_indices_map(a.shape).items()
    ]
    # No transfer is left to wait for on CPUs; GPUs must have read the host's memory before it is given back.
    return jax.block_until_ready(  # type: ignore[no-untyped-call]
        jax.make_array_from_single_device_arrays(a.shape, a.target, shards)
    )
