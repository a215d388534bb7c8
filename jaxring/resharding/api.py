"""`jaxring.reshard`: its arguments, what they mean on each process, and the result."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from jaxring import _compat
from jaxring.resharding import outside_jit, traced
from jaxring.resharding.facts import Facts
from jaxring.tracing import checks
from jaxring.tracing.axes import shown

Tree = TypeVar("Tree")

_ROUND_BYTES = 4 << 20
_LEAST_ROUND_BYTES = 64 << 10
_MOST_ROUND_BYTES = 1 << 30  # a round's offsets are int32, and a round may hold more than it was asked to


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
    calls it, with the same shapes, dtypes, shardings and ``round_bytes``, in the same order. It returns when the data
    is there. The result shares no memory with the operand, unless ``may_alias`` allows it, and has the default layout.

    Inside `jax.jit`, on traced arrays, both shardings are `jax.sharding.NamedSharding`s over one mesh, and the exchange
    is a step of the program; it can be differentiated any number of times. Under `jax.vmap` the batch is one more
    dimension, sharded over ``spmd_axis_name`` or as its type says. Keys of `jax.random` can be moved there, and
    integers of 4 bits, as bytes.

    Outside of `jax.jit` a process copies what it has and needs, once, and what comes from other processes travels in
    rounds, which take up to five times ``round_bytes`` beside the result. On CPUs an array that has been moved often
    enough, or is large, goes between processes by a program of its own where one serves: a permutation of whole shards,
    which takes nothing beside the result, or an exchange within one mesh, which takes as much as rounds at most. Inside
    `jax.jit` it is one collective, whose memory is of the size of the arrays' blocks. docs/concepts/resharding.md says
    how it works, and what it costs.

    Args:
        tree: A pytree of `jax.Array` of any shape, outside of `jax.jit` of any dtype but those of keys of `jax.random`
            (reshard their `jax.random.key_data`), in any layout and memory kind. A process that has no part of an array
            gives a `jax.ShapeDtypeStruct` with its sharding, or a `jax.Array` without local shards. Inside `jax.jit` at
            least one array must be traced.
        to_sharding: A `jax.sharding.Sharding`, or a tree of them that ``tree`` begins like.
        from_sharding: Inside `jax.jit` only: the sharding that an array has, or a tree of them. None takes it from the
            array's type, which says it where all axes of the mesh are explicit.
        round_bytes: Outside of `jax.jit`: about how many bytes a process sends and receives in a round, between 64 KiB
            and 1 GiB.
        timeout: Seconds for each step: outside of `jax.jit` the check of the arguments, each round and each
            array's program; inside, the collective. None: JAXRING_TIMEOUT.
        may_alias: Outside of `jax.jit`: whether a shard of the result may be the operand's own where it stays, as those
            of `jax.device_put` may be, so that donating either array deletes both; and, on CPUs, whether one that
            changes its device within a process may lie in the operand's memory, which a donation then leaves alone.
            Processes may differ in it.

    Returns:
        The tree of arrays with the new shardings. In a process that has no part of a result, it is a
        `jax.ShapeDtypeStruct` with its sharding.

    Raises:
        TypeError: For leaves and shardings that are none; inside `jax.shard_map`; inside `jax.jit` where no array is
            traced, for a sharding that is not known, and for a dtype that collectives do not have, such as int2.
        ValueError: For a shape that a sharding does not divide, a part that is not given, and ``round_bytes`` or
            ``timeout`` out of range; inside `jax.jit` for shardings over two meshes, one that leaves a dimension
            unconstrained, and a batch sharded over an axis that they use.
        jaxring.JaxringError: Where processes differ in shapes, dtypes, shardings or ``round_bytes``, and anything has
            to travel.
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
    if leaves and _compat.operations_are_staged():
        raise TypeError(
            "jaxring.reshard: inside jax.jit it moves traced arrays, and these are not; pass them as arguments of the "
            "function that is compiled, or reshard them outside of it."
        )
    with _compat.without_mesh():
        return jax.tree.unflatten(shape, outside_jit.move(facts, leaves, round_bytes, timeout, may_alias))  # type: ignore[no-any-return]


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
