"""More ranks than cores: `python worker_ranks.py many` and `... late FOLDER`."""

from __future__ import annotations

import pathlib
import resource
import sys
import time

import jax

import jaxring
from tests.stress.stress_ranks import AXIS, check, over, put, rows, same, start


def many() -> None:
    """A 1 MiB all_reduce by each algorithm."""
    mesh = start()
    n = mesh.size
    a = rows(n, 1 << 18, "float32")
    total = same(a.sum(0), n)
    x = put(mesh, a)
    algorithms = ["ring", "tree", "direct", None]
    if n > jax.process_count() > 1:
        algorithms.append("hier_ring")
    for algorithm in algorithms:
        run = over(mesh, lambda x, how=algorithm: jaxring.all_reduce(x, AXIS, algorithm=how))
        for result in [run(x) for _ in range(3)]:
            check(result, total, algorithm)
        print(algorithm, flush=True)


def late(folder: str) -> None:
    """The last process comes two seconds after the others wait; those say how much CPU time they used up to the end."""
    mesh = start()
    n = mesh.size
    run = over(mesh, lambda x: jaxring.all_reduce(x, AXIS))
    inputs = [put(mesh, rows(n, length, "int32", length)) for length in (1, 1 << 16)]
    for x in inputs:
        jax.block_until_ready(run(x))  # compiled and connected
    here, last = jax.process_index(), jax.process_count() - 1
    for turn, x in enumerate(inputs):
        flags = [pathlib.Path(folder) / f"waits{turn}.{process}" for process in range(last)]
        begin, used = time.monotonic(), cpu_seconds()
        if here < last:
            flags[here].touch()
        else:
            while not all(flag.exists() for flag in flags):
                time.sleep(0.01)
            time.sleep(2)
        jax.block_until_ready(run(x))
        print(f"waited {time.monotonic() - begin} used {cpu_seconds() - used}", flush=True)


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
    print("checked")
