"""The engine on NumPy buffers, a thread for each rank, without JAX programs: times candidates of the tuner."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import jax
import numpy as np

import jaxring._native as _native
from jaxring.plan.collectives import COLLECTIVES
from jaxring.runtime import service
from jaxring.runtime.call import CallSpec
from jaxring.settings import settings
from jaxring.world import launch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.bench.tuning.cell import Cell


class Backend:
    """One process's ranks: one for each of its devices."""

    def __init__(self, peer: str) -> None:
        del peer
        launch.initialize()
        service.ensure_started()
        devices = sorted(jax.devices("cpu"), key=lambda device: (device.process_index, device.id))
        self._devices = tuple(device.id for device in devices)
        self._local = [r for r, device in enumerate(devices) if device.process_index == jax.process_index()]
        self.ranks = len(devices)
        self._pool = ThreadPoolExecutor(len(self._local))
        self._begin = threading.Barrier(len(self._local))
        self._calls = 0

    def register(self, modules: Sequence[str]) -> None:
        """Imports the modules that register algorithms of the user's own, also from the current folder."""
        if modules:
            sys.path.insert(0, "")
        for name in modules:
            importlib.import_module(name)

    def prepare(self, cell: Cell) -> str:
        """Makes the buffers and the calls of each candidate. Returns ""."""
        facts = COLLECTIVES[cell.collective]
        self._reduces = facts.reduces
        count = cell.nbytes // 4
        block = count // facts.in_blocks(self.ranks)
        self._in = [np.ones(count, np.float32) for _ in self._local]
        self._out = [np.zeros(block * facts.out_blocks(self.ranks), np.float32) for _ in self._local]
        self._made = []
        for algorithm, protocol in cell.candidates:
            self._calls += 1
            spec = CallSpec(
                collective=cell.collective,
                op="sum" if facts.reduces else None,
                dtype="float32",
                shape=(self.ranks, block) if facts.blocks_in else (count,),
                block=block,
                axes="ranks",
                algorithm=algorithm,
                protocol=protocol,
                timeout=settings().timeout,
                site="jaxring tune",
                call=self._calls,
                devices=self._devices,
                program="",
            )
            text, ranks, limit = spec.to_json(), list(range(self.ranks)), settings().timeout
            first, *others = self._local
            call = _native.BufferCall(text, ranks, first, self._devices[first], limit)
            self._made.append([call, *(call.beside(rank, self._devices[rank]) for rank in others)])
        return ""

    def times(self, candidate: int, count: int, batch: int, cpus: Sequence[int] = ()) -> list[float]:
        """Seconds of one call, of each of ``count`` batches, as the slowest of this process's ranks has it.

        ``cpus``: on which each rank of the job begins; from there the kernel may move it.
        """

        def rank(place: int) -> list[float]:
            call, x, y = self._made[candidate][place], self._in[place], self._out[place]
            if cpus:
                allowed = os.sched_getaffinity(0)
                os.sched_setaffinity(0, {cpus[self._local[place]]})
                os.sched_setaffinity(0, allowed)
            found = []
            for _ in range(count):
                self._begin.wait()
                begun = time.perf_counter()
                for _ in range(batch):
                    call(x, y)
                found.append((time.perf_counter() - begun) / batch)
            return found

        every = list(self._pool.map(rank, range(len(self._local))))
        return [max(each) for each in zip(*every, strict=True)]

    def wrong(self) -> int:
        """The elements of the last results that are not what every rank's ones give. Clears the results."""
        right = self.ranks if self._reduces else 1
        found = sum(int(np.sum(y != right)) for y in self._out)
        for y in self._out:
            y[:] = 0
        return found

    def processors(self) -> int:
        """Those that this process may use, as a mask."""
        return sum(1 << cpu for cpu in os.sched_getaffinity(0))
