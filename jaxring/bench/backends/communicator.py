"""`jaxring.Communicator` on NumPy buffers, without a JAX program: measures the engine by itself."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

import jaxring
from jaxring.bench.work import expected, operand, ring
from jaxring.world import launch

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxring.bench.work import Case


class Backend:
    """One process's part of a job."""

    def __init__(self, peer: str) -> None:
        del peer
        launch.initialize()
        self._comm = jaxring.Communicator()
        self.ranks, self._rank = self._comm.size, self._comm.rank

    def prepare(self, case: Case) -> str:
        """Makes the buffers. Returns why the case cannot be served, or ""."""
        self._case = case
        self._in = operand(case, self.ranks, self._rank)
        self._expected = expected(case, self.ranks, self._rank)
        if case.inplace and case.collective != "all_reduce":
            return "a Communicator runs only all_reduce in place"
        if case.collective in ("reduce_scatter", "all_to_all"):
            self._in = self._in.reshape(self.ranks, -1)
        shape = (self.ranks, -1) if case.collective in ("all_gather", "all_to_all") else (-1,)
        self._out = self._in if case.inplace else np.zeros_like(self._expected).reshape(shape)
        self._call = self._made()
        return ""

    def step(self) -> None:
        """Runs the case once and waits for its end."""
        for _ in range(self._case.chain):
            self._call()

    def _made(self) -> Callable[[], object]:
        case, x, out, comm = self._case, self._in, self._out, self._comm
        if case.reduces:
            return functools.partial(getattr(comm, case.collective), x, out, case.op)
        if case.collective == "permute":
            return functools.partial(comm.permute, x, ring(self.ranks), out)
        return functools.partial(getattr(comm, case.collective), x, out)

    def wrong(self) -> int:
        """The number of wrong elements in this process's result."""
        if self._case.inplace:
            return 0  # after repetitions in place the values are not those of one collective
        return int(np.sum(self._out.ravel() != self._expected))

    def choice(self) -> str:
        """Algorithm, protocol and transport of the last collective."""
        plans = jaxring.plans()
        return f"{plans[-1].algorithm}/{plans[-1].protocol}/{'+'.join(plans[-1].transports)}" if plans else ""
