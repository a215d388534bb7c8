"""mpi4jax inside jit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import mpi4jax
import numpy as np
from mpi4py import MPI

from jaxring.bench.backends.raw_mpi import OPS
from jaxring.bench.work import expected, operand

if TYPE_CHECKING:
    from jaxring.bench.work import Case


class Backend:
    """One process's part of a job."""

    def __init__(self, peer: str) -> None:
        del peer
        self._world = MPI.COMM_WORLD
        self.ranks, self._rank = self._world.Get_size(), self._world.Get_rank()

    def prepare(self, case: Case) -> str:
        """Compiles the case. Returns why it cannot be served, or ""."""
        world = self._world
        calls: dict[str, Any] = {
            "all_gather": lambda x: mpi4jax.allgather(x, comm=world).reshape(-1),
            "all_to_all": lambda x: mpi4jax.alltoall(x.reshape(self.ranks, -1), comm=world).reshape(-1),
            "broadcast": lambda x: mpi4jax.bcast(x, 0, comm=world),
        }
        if case.op in OPS:
            calls["all_reduce"] = lambda x: mpi4jax.allreduce(x, op=OPS[case.op], comm=world)
        if case.collective not in calls:
            return f"no {case.op} {case.collective}"
        call = calls[case.collective]

        def chained(x: Any) -> Any:
            for _ in range(case.chain):
                x = call(x)
            return x

        self._case = case
        self._run = jax.jit(chained, donate_argnums=(0,) if case.inplace else ())
        self._x = jax.numpy.zeros(case.count(self.ranks), case.dtype)
        return ""

    def step(self) -> None:
        """Runs the case once and waits for its end."""
        y = jax.block_until_ready(self._run(self._x))
        if self._case.inplace:
            self._x = y

    def wrong(self) -> int:
        """The number of wrong elements in this process's result."""
        if self._case.chain > 1:
            return 0
        y = self._run(jax.numpy.asarray(operand(self._case, self.ranks, self._rank)))
        return int(np.sum(np.asarray(y) != expected(self._case, self.ranks, self._rank)))

    def choice(self) -> str:
        """Nothing: MPI does not report its algorithm."""
        return ""
