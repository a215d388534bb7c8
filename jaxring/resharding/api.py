"""`jaxring.reshard`: its arguments, what they mean on each process, and the result."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from jaxring.resharding import compiled, rounds, traced
from jaxring.resharding.facts import Facts
from jaxring.tracing import checks
from jaxring.tracing.axes import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxring.resharding.routes import Routes

Tree = TypeVar("Tree")

_ROUND_BYTES = 4 << 20
_LEAST_ROUND_BYTES = 64 << 10
_MOST_ROUND_BYTES = 1 << 30  # a round's offsets are int32, and a round may hold more than it was asked to
# What rounds take beside the result, in round_bytes: two messages each way, and what the transport has of one.
_ROUNDS_TAKE = 5
# A program costs a call for each array, and rounds a little for each array beside a few calls. So of a tree of more
# arrays than this those of fewer bytes go in rounds.
_FEW_ARRAYS = 4
_LARGE_BYTES = 1 << 20


def reshard(
    tree: Tree,
    to_sharding: Any,
    *,
    from_sharding: Any = None,
    round_bytes: int = _ROUND_BYTES,
    timeout: float | None = None,
    may_alias: bool = False,
) -> Tree:
    """``tree`` with ``to_sharding`` in place of the shardings that its arrays have, as `jax.device_put` would give it.

    The two shardings may be over different meshes, of the same processes, of others, or of some of them. Each byte that
    a process needs and does not hold is sent to it once. Every process that has a part of the arrays or of the result
    calls it, with the same shapes, dtypes and shardings, in the same order. It returns when the data is there. Operand
    and result can be donated to a program without harm to each other, unless ``may_alias`` allows otherwise.

    Inside `jax.jit`, on traced arrays, both shardings are `jax.sharding.NamedSharding`s over one mesh, and the exchange
    is a step of the program; it can be differentiated any number of times. Under `jax.vmap` the batch is one more
    dimension, sharded over ``spmd_axis_name`` or as its type says. Keys of `jax.random` can be moved there, and
    integers of 4 bits, as bytes.

    Outside of `jax.jit` it takes up to five times ``round_bytes`` beside the arrays: an array whose whole shards change
    their devices is one permutation, small arrays over one mesh are one exchange, and all others go in rounds. Inside,
    it is one collective, whose memory is of the size of the arrays' blocks. docs/concepts/resharding.md says how it
    works, and what it costs.

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
        may_alias: Outside of `jax.jit`: whether a shard of the result may be the operand's own where it stays, as those
            of `jax.device_put` may be. Donating either array then deletes both.

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
    facts = tuple(_checked(leaf, to) for leaf, to in zip(leaves, targets, strict=True))
    result: Tree = jax.tree.unflatten(shape, _move(facts, leaves, round_bytes, timeout, may_alias))
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


def _checked(leaf: Any, target: Any) -> Facts:
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
    if not isinstance(leaf, jax.Array) and source.addressable_devices:
        raise ValueError(
            f"jaxring.reshard: process {jax.process_index()} has a part of {leaf}; pass the jax.Array in its place. A "
            "jax.ShapeDtypeStruct is for processes without one."
        )
    for sharding in (source, target):
        sharding.shard_shape(leaf.shape)  # ValueError where it does not divide the shape
    return Facts(tuple(leaf.shape), np.dtype(leaf.dtype), source, target)


class _Plan(NamedTuple):
    """How these processes move a tree: by a program for each array, or None; the others in rounds."""

    processes: list[int]
    routes: Routes
    programs: tuple[Callable[[jax.Array], jax.Array] | None, ...]


@functools.lru_cache(maxsize=64)
def _plan(facts: tuple[Facts, ...], round_bytes: int, timeout: float | None, may_alias: bool) -> _Plan:
    routes = rounds.planned(facts, round_bytes)
    few = len(facts) <= _FEW_ARRAYS
    # A program has all processes of its array wait for each other, so none moves what stays in each of several.
    travel = {piece.leaf for stream in routes.streams.values() for piece in stream}
    programs = [
        compiled.program(each, _ROUNDS_TAKE * round_bytes, timeout, may_alias)
        if (few or each.nbytes >= _LARGE_BYTES) and (number in travel or len(each.processes) == 1)
        else None
        for number, each in enumerate(facts)
    ]
    processes = sorted({process for each in facts for process in each.processes})
    return _Plan(processes, routes, tuple(programs))


def _move(
    facts: Sequence[Facts], arrays: Sequence[Any], round_bytes: int, timeout: float | None, may_alias: bool
) -> list[Any]:
    plan = _plan(tuple(facts), round_bytes, timeout, may_alias)
    rounds.agree(plan.processes, plan.routes, timeout)
    results = [
        program(array) if program is not None and isinstance(array, jax.Array) else each.absent
        for each, array, program in zip(facts, arrays, plan.programs, strict=True)
    ]
    rest = [number for number, program in enumerate(plan.programs) if program is None]
    if rest:
        moved = rounds.move([facts[n] for n in rest], [arrays[n] for n in rest], round_bytes, timeout)
        for number, result in zip(rest, moved, strict=True):
            results[number] = result
    return jax.block_until_ready(results)  # type: ignore[no-untyped-call, no-any-return]
