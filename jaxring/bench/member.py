"""One process of one peer's job: does what the controller says, and sleeps in between.

    python -m jaxring.bench.member PEER

BENCH_CONTROLLER (the path of a socket), BENCH_KEY (hex) and BENCH_CONTROLLER_PID name the controller.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from multiprocessing.connection import Client
from typing import Any

from jaxring.bench.peers import CALLS, MPICH, OPEN_MPI, PEERS
from jaxring.launcher import lifeline

ADDRESS, KEY, PID = "BENCH_CONTROLLER", "BENCH_KEY", "BENCH_CONTROLLER_PID"


def main() -> None:
    """Answers requests until the controller ends the connection."""
    peer = (PEERS | {CALLS.name: CALLS})[sys.argv[1]]
    if peer.launcher:
        # What `jaxring run` would say, for those peers that JAX has to introduce to each other.
        rank = {OPEN_MPI: "OMPI_COMM_WORLD_RANK", MPICH: "PMI_RANK"}[peer.launcher]
        os.environ["JAX_PROCESS_ID"] = os.environ[rank]
    else:  # mpirun's processes are mpirun's children, and it ends them
        lifeline.die_with(int(os.environ[PID]))
    with Client(os.environ[ADDRESS], authkey=bytes.fromhex(os.environ[KEY])) as controller:
        backend = importlib.import_module(f"jaxring.bench.backends.{peer.backend}").Backend(peer.name)
        controller.send((int(os.environ["JAX_PROCESS_ID"]), backend.ranks))
        while True:
            try:
                name, arguments = controller.recv()
            except (EOFError, ConnectionResetError):
                break
            controller.send(answer(backend, name, arguments))
    # MPI in jaxlib is finalised before its communicators are freed, which Open MPI calls an error.
    sys.stdout.flush()
    os._exit(0)


def answer(backend: Any, name: str, arguments: Any) -> Any:
    """What a backend says to a request."""
    if name == "prepare":
        return backend.prepare(arguments)
    if name == "run":
        return _times(backend.step, *arguments)
    return getattr(backend, name)(*(arguments or ()))


def _times(step: Any, count: int, batch: int) -> list[float]:
    """Seconds of an iteration, of each of ``count`` batches of so many one after another."""
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        for _ in range(batch):
            step()
        times.append((time.perf_counter() - begin) / batch)
    return times


if __name__ == "__main__":
    main()
