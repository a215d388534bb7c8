"""A program of one collective over all devices of the job: jaxring's, or `jax.lax`'s on XLA's own backends."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring.bench.work import expected, operand, ring

if TYPE_CHECKING:
    from collections.abc import Callable

    from jax.sharding import Mesh

    from jaxring.bench.work import Case

_LAX_REDUCE = {"sum": lax.psum, "max": lax.pmax, "min": lax.pmin, "mean": lax.pmean}


class OneCollective:
    """The compiled case, and its operand."""

    def __init__(self, case: Case, call: Callable[[Any], Any], mesh: Mesh) -> None:
        def chained(x: Any) -> Any:
            for _ in range(case.chain):
                x = call(x)
            return x

        self._case, self._mesh, self._ranks = case, mesh, mesh.size
        self._run = program(mesh, chained, donate_argnums=(0,) if case.inplace else ())
        self._x = place(mesh, lambda n: np.zeros(n, np.dtype(jax.numpy.dtype(case.dtype))), case.count(mesh.size))
        self._y: Any = None

    def step(self) -> None:
        """Runs the case once and waits for its end."""
        self._y = self._run(self._x)
        jax.block_until_ready(self._y)
        if self._case.inplace:
            # The data are zeros, so a result can be the next operand any number of times.
            self._x = self._y

    def wrong(self) -> int:
        """The number of wrong elements in this process's results, on data with exact sums."""
        case, ranks = self._case, self._ranks
        if case.chain > 1:
            return 0
        count = case.count(ranks)

        def row(at: Any) -> np.ndarray:
            return operand(case, ranks, (at[0].start or 0) // count)

        x = jax.make_array_from_callback((ranks * count,), _sharding(self._mesh), row)
        wrong = 0
        for shard in self._run(x).addressable_shards:
            assert shard.index is not None
            rank = (shard.index[0].start or 0) // shard.data.shape[0]
            wrong += int(np.sum(np.asarray(shard.data) != expected(case, ranks, rank)))
        return wrong

    def choice(self) -> str:
        """Algorithm, protocol and transport of the last program, where it was ours."""
        plans = jaxring.plans()
        if not plans:
            return ""
        last = plans[-1]
        return f"{last.algorithm}/{last.protocol}/{'+'.join(last.transports)}"


def program(mesh: Mesh, call: Callable[[Any], Any], **options: Any) -> Any:
    """``call`` on each device's part."""
    spec = P(mesh.axis_names)
    return jax.jit(jax.shard_map(call, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False), **options)


def place(mesh: Mesh, make: Callable[[int], np.ndarray], count: int) -> jax.Array:
    """``make(count)`` on each device."""
    return jax.make_array_from_callback((mesh.size * count,), _sharding(mesh), lambda _: make(count))


def jaxring_call(case: Case, mesh: Mesh) -> Callable[[Any], Any] | None:
    """A device's part of the case."""
    (axis,) = mesh.axis_names
    calls: dict[str, Callable[[Any], Any]] = {
        "all_reduce": lambda x: jaxring.all_reduce(x, axis, case.op),
        "all_gather": lambda x: jaxring.all_gather(x, axis, tiled=True),
        "reduce_scatter": lambda x: jaxring.reduce_scatter(x, axis, case.op, tiled=True),
        "all_to_all": lambda x: jaxring.all_to_all(x, axis, 0, 0, tiled=True),
        "permute": lambda x: jaxring.permute(x, axis, ring(mesh.size)),
        "broadcast": lambda x: jaxring.broadcast(x, axis),
    }
    return calls[case.collective]


def lax_call(case: Case, mesh: Mesh) -> Callable[[Any], Any] | None:
    """The same by JAX alone; None where it has no such collective."""
    (axis,) = mesh.axis_names
    calls: dict[str, Callable[[Any], Any]] = {
        "all_gather": functools.partial(lax.all_gather, axis_name=axis, tiled=True),
        "all_to_all": lambda x: lax.all_to_all(x, axis, 0, 0, tiled=True),
        "permute": lambda x: lax.ppermute(x, axis, ring(mesh.size)),
    }
    if case.op in _LAX_REDUCE:
        calls["all_reduce"] = functools.partial(_LAX_REDUCE[case.op], axis_name=axis)
    if case.op == "sum":
        calls["reduce_scatter"] = functools.partial(lax.psum_scatter, axis_name=axis, tiled=True)
    return calls.get(case.collective)


def _sharding(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, P(mesh.axis_names))
