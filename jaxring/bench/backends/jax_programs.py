"""jaxring, and `jax.lax` on XLA's own backends: programs of one collective over all devices of the job."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring.bench.work import expected, operand, ring
from jaxring.runtime import service
from jaxring.world import launch

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxring.bench.work import Case

_AXIS = "rank"
_LAX_REDUCE = {"sum": lax.psum, "max": lax.pmax, "min": lax.pmin, "mean": lax.pmean}


class Backend:
    """One process's part of a job. ``peer`` is a name of `jaxring.bench.peers.PEERS`."""

    def __init__(self, peer: str) -> None:
        self._ours = peer == "jaxring"
        if peer == "mpi":
            jax.config.update("jax_cpu_collectives_implementation", "mpi")
        if int(os.environ["JAX_NUM_PROCESSES"]) > 1:
            launch.initialize()
        self._mesh = Mesh(np.array(jax.devices()), (_AXIS,))
        self.ranks = self._mesh.size
        if peer == "mpi":
            # The first collective over MPI must be small, because it begins on another thread.
            jax.block_until_ready(self._program(lambda x: lax.psum(x, _AXIS))(self._place(np.zeros, 1)))

    def prepare(self, case: Case) -> str:
        """Compiles the case. Returns why it cannot be served, or ""."""
        call = (_jaxring_call if self._ours else _lax_call)(case, self.ranks)
        if call is None:
            return f"no {case.op} {case.collective}"

        def chained(x: Any) -> Any:
            for _ in range(case.chain):
                x = call(x)
            return x

        self._case = case
        donated = (0,) if case.inplace else ()
        self._run = self._program(chained, donate_argnums=donated)
        self._x = self._place(lambda n: np.zeros(n, np.dtype(jax.numpy.dtype(case.dtype))), case.count(self.ranks))
        self._y: Any = None
        return ""

    def step(self) -> None:
        """Runs the case once and waits for its end."""
        self._y = self._run(self._x)
        jax.block_until_ready(self._y)
        if self._case.inplace:
            # The data are zeros, so a result can be the next operand any number of times.
            self._x = self._y

    def wrong(self) -> int:
        """The number of wrong elements in this process's results, on data with exact sums."""
        case = self._case
        if case.chain > 1:
            return 0
        rows = {rank: operand(case, self.ranks, rank) for rank in range(self.ranks)}
        count = case.count(self.ranks)

        def row(at: Any) -> np.ndarray:
            return rows[(at[0].start or 0) // count]

        x = jax.make_array_from_callback((self.ranks * count,), NamedSharding(self._mesh, P(_AXIS)), row)
        wrong = 0
        for shard in self._run(x).addressable_shards:
            assert shard.index is not None
            rank = (shard.index[0].start or 0) // shard.data.shape[0]
            wrong += int(np.sum(np.asarray(shard.data) != expected(case, self.ranks, rank)))
        return wrong

    def choice(self) -> str:
        """Algorithm, protocol and transport of the last program."""
        plans = jaxring.plans() if self._ours else []
        if not plans:
            return ""
        last = plans[-1]
        return f"{last.algorithm}/{last.protocol}/{'+'.join(last.transports)}"

    def listens(self) -> list[str]:
        """The addresses at which this process accepts connections of its peers."""
        return [f"{address}:{port}" for _, address, port in service.job().addresses()]

    def _program(self, call: Callable[[Any], Any], **options: Any) -> Any:
        spec = P(_AXIS)
        mapped = jax.shard_map(call, mesh=self._mesh, in_specs=spec, out_specs=spec, check_vma=False)
        return jax.jit(mapped, **options)

    def _place(self, make: Callable[[int], np.ndarray], count: int) -> jax.Array:
        sharding = NamedSharding(self._mesh, P(_AXIS))
        return jax.make_array_from_callback((self.ranks * count,), sharding, lambda _: make(count))


def _jaxring_call(case: Case, ranks: int) -> Callable[[Any], Any] | None:
    calls: dict[str, Callable[[Any], Any]] = {
        "all_reduce": lambda x: jaxring.all_reduce(x, _AXIS, case.op),
        "all_gather": lambda x: jaxring.all_gather(x, _AXIS, tiled=True),
        "reduce_scatter": lambda x: jaxring.reduce_scatter(x, _AXIS, case.op, tiled=True),
        "all_to_all": lambda x: jaxring.all_to_all(x, _AXIS, 0, 0, tiled=True),
        "permute": lambda x: jaxring.permute(x, _AXIS, ring(ranks)),
        "broadcast": lambda x: jaxring.broadcast(x, _AXIS),
    }
    return calls[case.collective]


def _lax_call(case: Case, ranks: int) -> Callable[[Any], Any] | None:
    calls: dict[str, Callable[[Any], Any]] = {
        "all_gather": functools.partial(lax.all_gather, axis_name=_AXIS, tiled=True),
        "all_to_all": lambda x: lax.all_to_all(x, _AXIS, 0, 0, tiled=True),
        "permute": lambda x: lax.ppermute(x, _AXIS, ring(ranks)),
    }
    if case.op in _LAX_REDUCE:
        calls["all_reduce"] = functools.partial(_LAX_REDUCE[case.op], axis_name=_AXIS)
    if case.op == "sum":
        calls["reduce_scatter"] = functools.partial(lax.psum_scatter, axis_name=_AXIS, tiled=True)
    return calls.get(case.collective)
