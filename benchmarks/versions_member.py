"""One process of a job of `benchmarks.versions`, run by the Python of the environment that is measured.

It uses what every version of jaxring has: the public collectives. Requests come as lines of JSON by standard input, and
each is answered by one line. `["prepare", KIND, BYTES]` makes the call; `["run", COUNT]` executes it that often, and is
answered with the median time of one execution in seconds.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxring

if TYPE_CHECKING:
    from collections.abc import Callable


def program(nbytes: int) -> Callable[[], Any]:
    """An all-reduce of so many bytes per rank in a jitted program."""
    mesh = Mesh(np.array(sorted(jax.devices(), key=lambda d: (d.process_index, d.id))), ("x",))
    shape = (mesh.size, max(1, nbytes // 4))
    spec = PartitionSpec("x")
    operand = jax.make_array_from_callback(
        shape, NamedSharding(mesh, spec), lambda index: np.ones(shape, np.float32)[index]
    )
    call = jax.jit(
        jax.shard_map(lambda v: jaxring.all_reduce(v, "x"), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    )
    return lambda: jax.block_until_ready(call(operand))


def communicator(nbytes: int) -> Callable[[], Any]:
    """The same on a NumPy array, outside of programs."""
    comm = jaxring.Communicator()
    operand = np.ones(max(1, nbytes // 4), np.float32)
    out = np.empty_like(operand)
    return lambda: comm.all_reduce(operand, out)


KINDS = {"program": program, "communicator": communicator}


def measure(call: Callable[[], Any], count: int) -> float:
    """The median time of one execution in seconds."""
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def main() -> None:
    """Joins the job, says which version it is, and answers until standard input ends."""
    jax.distributed.initialize(
        os.environ["JAX_COORDINATOR_ADDRESS"],
        int(os.environ["JAX_NUM_PROCESSES"]),
        int(os.environ["JAX_PROCESS_ID"]),
    )
    print(json.dumps(f"jaxring {jaxring.__version__} with jax {jax.__version__}, {jaxring.__file__}"), flush=True)
    call: Callable[[], Any] = lambda: None  # noqa: E731
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        if name == "prepare":
            call = KINDS[arguments[0]](arguments[1])
            answer = measure(call, 20)
        else:
            answer = measure(call, arguments[0])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
