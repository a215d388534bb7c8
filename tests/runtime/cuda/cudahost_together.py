"""A process that runs collectives on CPUs and on GPUs: its threads and sockets, and messages of both on one link."""

from __future__ import annotations

import collections
import json
import pathlib
import threading
import time

import jax
import numpy as np

import jaxring
import jaxring._native as _native
from jaxring import _compat
from tests.runtime.cuda.cudahost_engine import RANKS, check, engine, process, processes

# More than the slots of a link hold.
_LONG = 1 << 20
_ROUNDS = 4
# They end by themselves once all processes are connected.
_PASSING = ("jaxring-link", "jaxring-plan")
_PATIENCE_S = 60


def _sockets():
    """This process's sockets of TCP."""
    tables = [pathlib.Path(f"/proc/self/net/{table}").read_text().splitlines()[1:] for table in ("tcp", "tcp6")]
    known = {f"socket:[{line.split()[9]}]" for table in tables for line in table}

    def of(fd):
        try:
            return str(fd.readlink())
        except OSError:  # the listing's own
            return ""

    return sum(of(fd) in known for fd in pathlib.Path("/proc/self/fd").iterdir())


def _wait_until(condition):
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, _native.counters()
        time.sleep(0.001)


def _threads():
    """The threads of jaxring by name: Python's, and those of the engines, which the system knows by name."""
    _wait_until(lambda: not any(thread.name in _PASSING for thread in threading.enumerate()))
    # Python names its own since 3.14.
    python = {thread.native_id: thread.name for thread in threading.enumerate()}
    tasks = [task for task in pathlib.Path("/proc/self/task").iterdir() if int(task.name) not in python]
    names = [*python.values(), *((task / "comm").read_text().strip() for task in tasks)]
    return collections.Counter(name for name in names if name.startswith("jaxring-"))


def _on_gpus(n):
    rows = np.arange(RANKS * n, dtype=np.float32).reshape(RANKS, n)
    check(lambda v: jaxring.all_reduce(v, "d"), rows, np.tile(rows.sum(0), (RANKS, 1)))


def _on_cpus(comm, n):
    got = comm.all_reduce(np.full(n, process + 1, np.int32))
    np.testing.assert_array_equal(got, processes * (processes + 1) // 2)


def count(*engines):
    """Runs collectives on these engines, and prints which threads and how many sockets the process has of it."""
    meet = _compat.distributed_state().client.wait_at_barrier
    jax.devices()
    meet("begun", 60_000)
    before = _sockets()
    if "gpu" in engines:
        engine.start()
        _on_gpus(100)
    if "cpu" in engines:
        _on_cpus(jaxring.Communicator(), 100)
    meet("counted", 60_000)
    print("COUNTED", json.dumps({"sockets": _sockets() - before, "threads": _threads()}), flush=True)
    meet("printed", 60_000)


def crossed():
    """Operations of the two engines pass each other on one link, in whichever order the processes begin them."""
    engine.start()
    comm = jaxring.Communicator()
    both = (lambda: _on_cpus(comm, _LONG), lambda: _on_gpus(_LONG))
    for run in both:
        run()
    for number in range(_ROUNDS):
        first, second = both[:: 1 if number % 2 else -1]
        if process == 0:
            # What it sends fills the link while the other process waits for the second.
            thread = threading.Thread(target=first)
            thread.start()
            if number % 2:
                sleeps = _native.counters()["sleeps"]
                _wait_until(
                    lambda then=sleeps: _native.counters()["in_flight"] and _native.counters()["sleeps"] != then
                )
            second()
            thread.join(_PATIENCE_S)
            assert not thread.is_alive(), _native.counters()
        else:
            second()
            first()
    # Small ones are played by the thread that calls, which then polls the link itself.
    for _ in range(_ROUNDS):
        _on_cpus(comm, 10)
        _on_gpus(10)
