"""jaxring, and JAX on XLA's own backends: programs over all devices of the job."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh

import jaxring
from jaxring.bench.backends.jax_alone import CollectivesAlone
from jaxring.bench.backends.jax_collective import OneCollective, jaxring_call, lax_call, place, program
from jaxring.bench.backends.jax_whole import WholeProgram
from jaxring.bench.programs import Program
from jaxring.bench.programs.operand import AXIS
from jaxring.runtime import service
from jaxring.world import launch

if TYPE_CHECKING:
    from jaxring.bench.work import Case


class Backend:
    """One process's part of a job. ``peer`` is a name of `jaxring.bench.peers.PEERS`."""

    def __init__(self, peer: str) -> None:
        self._ours = peer == "jaxring"
        if peer == "mpi":
            jax.config.update("jax_cpu_collectives_implementation", "mpi")
        if int(os.environ["JAX_NUM_PROCESSES"]) > 1:
            launch.initialize()
        self._mesh = Mesh(np.array(jax.devices()), (AXIS,))
        self.ranks = self._mesh.size
        self._prepared: OneCollective | WholeProgram | CollectivesAlone
        if peer == "mpi":
            # The first collective over MPI must be small, because it begins on another thread.
            first = program(self._mesh, lambda x: lax.psum(x, AXIS))
            jax.block_until_ready(first(place(self._mesh, np.zeros, 1)))

    def prepare(self, case: Case | Program) -> str:
        """Compiles the case. Returns why it cannot be served, or ""."""
        if isinstance(case, Program):
            if case.alone:
                jaxring.uninstall()
                self._prepared = CollectivesAlone(case, self._mesh, self._install)
            else:
                self._install()
                self._prepared = WholeProgram(case, self._mesh)
            return ""
        call = (jaxring_call if self._ours else lax_call)(case, self._mesh)
        if call is None:
            return f"no {case.op} {case.collective}"
        self._prepared = OneCollective(case, call, self._mesh)
        return ""

    def _install(self) -> None:
        if self._ours:
            jaxring.install(whole_program=True)

    def step(self) -> None:
        """Runs the case once and waits for its end."""
        self._prepared.step()

    def wrong(self) -> int:
        """The number of wrong elements in this process's results."""
        return self._prepared.wrong()

    def choice(self) -> str:
        """What was chosen for the case."""
        return self._prepared.choice()

    def listens(self) -> list[str]:
        """The addresses at which this process accepts connections of its peers."""
        return [f"{address}:{port}" for _, address, port in service.job().addresses()]
