"""torch.distributed with its Gloo backend."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist

from jaxring.bench.work import expected, operand

if TYPE_CHECKING:
    from jaxring.bench.work import Case

_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN, "prod": dist.ReduceOp.PRODUCT}


class Backend:
    """One process's part of a job."""

    def __init__(self, peer: str) -> None:
        del peer
        torch.set_num_threads(1)
        address = os.environ["JAX_COORDINATOR_ADDRESS"]
        self.ranks, self._rank = int(os.environ["JAX_NUM_PROCESSES"]), int(os.environ["JAX_PROCESS_ID"])
        dist.init_process_group("gloo", f"tcp://{address}", rank=self._rank, world_size=self.ranks)

    def prepare(self, case: Case) -> str:
        """Makes the buffers. Returns why the case cannot be served, or ""."""
        if case.collective not in ("all_reduce", "all_gather", "broadcast") or case.op not in _OPS:
            return f"no {case.op} {case.collective}"
        if case.dtype not in ("float32", "float64", "int32", "int64", "int8", "uint8"):
            return f"not measured with {case.dtype}"
        if case.collective == "all_gather" and case.inplace:
            return "operand and result differ in size"
        self._case = case
        self._in = torch.from_numpy(operand(case, self.ranks, self._rank))
        self._out = torch.from_numpy(np.zeros_like(expected(case, self.ranks, self._rank)))
        return ""

    def step(self) -> None:
        """Runs the case once and waits for its end. Torch reduces in place; out of place includes a copy first."""
        case = self._case
        for _ in range(case.chain):
            if case.collective == "all_gather":
                dist.all_gather_into_tensor(self._out, self._in)
                continue
            if not case.inplace:
                self._out.copy_(self._in)
            if case.collective == "all_reduce":
                dist.all_reduce(self._out, _OPS[case.op])
            else:
                dist.broadcast(self._out, 0)

    def wrong(self) -> int:
        """The number of wrong elements in this process's result."""
        if self._case.inplace or self._case.chain > 1:
            return 0  # after repetitions the values are not those of one collective
        return int(np.sum(self._out.numpy() != expected(self._case, self.ranks, self._rank)))

    def choice(self) -> str:
        """Nothing: Gloo does not report its algorithm."""
        return ""
