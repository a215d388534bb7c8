"""MPI on NumPy buffers, without JAX: measures the library that the other MPI peers use."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from jaxring.bench.work import expected, operand

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxring.bench.work import Case

OPS = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN, "prod": MPI.PROD}


class Backend:
    """One process's part of a job."""

    def __init__(self, peer: str) -> None:
        del peer
        self._world = MPI.COMM_WORLD
        self.ranks, self._rank = self._world.Get_size(), self._world.Get_rank()

    def prepare(self, case: Case) -> str:
        """Makes the buffers. Returns why the case cannot be served, or ""."""
        reduces = case.collective in ("all_reduce", "reduce_scatter")
        if case.dtype not in ("float32", "float64", "int32", "int64", "int8", "uint8"):
            return f"MPI has no {case.dtype}"
        if reduces and case.op not in OPS:
            return f"MPI has no {case.op}"
        self._case = case
        self._in = operand(case, self.ranks, self._rank)
        self._out = np.zeros_like(expected(case, self.ranks, self._rank))
        if case.inplace and self._in.shape != self._out.shape:
            return "operand and result differ in size"
        self._call = self._made()
        return ""

    def step(self) -> None:
        """Runs the case once and waits for its end."""
        for _ in range(self._case.chain):
            self._call()

    def _made(self) -> Callable[[], object]:
        case, world, out = self._case, self._world, self._out
        x: Any = MPI.IN_PLACE if case.inplace else self._in
        if case.collective == "all_reduce":
            return functools.partial(world.Allreduce, x, out, OPS[case.op])
        if case.collective == "reduce_scatter":
            return functools.partial(world.Reduce_scatter_block, self._in, out, OPS[case.op])
        if case.collective == "all_gather":
            return functools.partial(world.Allgather, self._in, out)
        if case.collective == "all_to_all":
            return functools.partial(world.Alltoall, x, out)
        if case.collective == "broadcast":
            return self._broadcast
        to, of = (self._rank + 1) % self.ranks, (self._rank - 1) % self.ranks
        return functools.partial(world.Sendrecv, self._in, to, recvbuf=out, source=of)

    def _broadcast(self) -> None:
        if self._rank == 0:
            self._out[:] = self._in
        self._world.Bcast(self._out)

    def wrong(self) -> int:
        """The number of wrong elements in this process's result."""
        if self._case.inplace:
            return 0  # after repetitions in place the values are not those of one collective
        return int(np.sum(self._out != expected(self._case, self.ranks, self._rank)))

    def choice(self) -> str:
        """Nothing: MPI does not report its algorithm."""
        return ""
