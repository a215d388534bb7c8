"""A process of a job that grows, loses a process and grows again. Run by test_grow.py as

    grow_job.py NAME COORDINATOR NUMBER SIZE COORDINATOR OF THE NEXT JOB ...

Each of the jobs trains five steps on the same rows, which its processes divide among them. NAME "victim" kills itself
in the third step of the second job. The first job begins with zeros; processes that join get the state from process 0.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring import _native

STEPS, ROWS, RATE, LIMIT_S = 5, 24, 0.05, 100.0
GENERATOR = np.random.default_rng(7)
X = GENERATOR.standard_normal((ROWS, 4)).astype(np.float32)
Y = (X @ np.array([1, -2, 3, 0.5]) + 0.1 * GENERATOR.standard_normal(ROWS)).astype(np.float32)


class Programs:
    """What this job's devices run, one a process."""

    def __init__(self) -> None:
        self.n = jax.device_count()
        self.mesh = jax.make_mesh((self.n,), ("x",))
        self.all_reduce = self._call(lambda v: jaxring.all_reduce(v, "x"))
        self.from_first = self._call(lambda v: jaxring.broadcast(v, "x", root=0))

    def _call(self, function):
        mapped = jax.jit(jax.shard_map(function, mesh=self.mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))

        def call(own):
            shape, by_device = (self.n, *own.shape), NamedSharding(self.mesh, P("x"))
            operand = jax.make_array_from_callback(shape, by_device, lambda _: own[None])
            return np.asarray(mapped(operand).addressable_shards[0].data)[0]

        return call

    def step(self, w):
        """One step of gradient descent on this process's rows, summed over all."""
        mine = slice(jax.process_index(), None, self.n)
        gradient = X[mine].T @ (X[mine] @ w - Y[mine])
        return w - np.float32(RATE / ROWS) * self.all_reduce(gradient.astype(np.float32))


def train(programs, state, until, victim_at):
    """State (steps, weights) after `until` steps, or as far as it came before a process was lost."""
    while state[0] < until:
        if state[0] == victim_at:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            state = (state[0] + 1, programs.step(state[1]))
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            print(f"lost at step {state[0]}: {str(error)[:60]}", flush=True)
            break
    return state


def main(name, first, number, size, *later):
    joins = name.startswith("joiner")
    jax.distributed.initialize(first, int(size), int(number), initialization_timeout=int(LIMIT_S))
    if joins:
        print(f"joined {jaxring.rebuild(LIMIT_S).processes}", flush=True)
    state = (0, np.zeros(4, np.float32))
    for job, coordinator in enumerate(("", *later)):
        if coordinator:
            print(f"grown to {jaxring.rebuild(LIMIT_S, size=3, coordinator=coordinator).processes}", flush=True)
        programs = Programs()
        if coordinator or joins:
            told = programs.from_first(np.array([state[0], *state[1]], np.float32))
            state = (int(told[0]), told[1:])
        until = STEPS * (3 - len(later) + job)
        state = train(programs, state, until, STEPS + 2 if name == "victim" else -1)
    print(f"end {state[0]} {state[1].tobytes().hex()}", flush=True)
    # Process 0 holds the coordination service, so it ends last. The others leave the service before they tell that they
    # end: recoverable processes do not wait for one another in JAX's shutdown.
    while jax.process_index() == 0 and len(_native.gone()) < 2:
        time.sleep(0.05)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
