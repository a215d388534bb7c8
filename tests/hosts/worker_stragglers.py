"""A training loop of a job: `python worker_stragglers.py FOLDER`. It goes on until there is a file `end` in FOLDER.

Each step computes, then sums gradients. While there is a file `input PROCESS`, that process sleeps before each step, as
where its input is late.
"""

from __future__ import annotations

import pathlib
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import jaxring
from jaxring.world import launch

INPUT_S = 0.15
# So much is read of the files that they cost nothing.
EVERY_S = 0.2
WIDTH, GRADIENTS = 192, 1 << 19


def main(folder: pathlib.Path) -> None:
    launch.initialize()
    n, me = jax.device_count(), jax.process_index()
    mesh = jax.make_mesh((n,), ("data",))

    def step(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        for _ in range(8):
            w = jnp.tanh(w @ w)
        return w, jaxring.all_reduce(x + w.sum() * 0, "data")

    spec = PartitionSpec("data")
    run = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(spec, spec), out_specs=(spec, PartitionSpec())))

    def put(shape: tuple[int, ...]) -> jax.Array:
        whole = (n * shape[0], *shape[1:])
        return jax.make_array_from_callback(
            whole, NamedSharding(mesh, spec), lambda _: np.ones(shape, np.float32) / 192
        )

    w, x = put((WIDTH, WIDTH)), put((GRADIENTS,))
    looked, sleeps, steps = 0.0, False, 0
    while True:
        if time.monotonic() - looked > EVERY_S:
            looked = time.monotonic()
            sleeps = (folder / f"input {me}").exists()
            print(f"step {steps}", flush=True)
        if sleeps:
            time.sleep(INPUT_S)
        w, total = run(w, x)
        # All processes end after the same step: process 0 says so to the others by what it adds.
        ends = float(jax.block_until_ready(total).addressable_data(0)[0]) < 0
        steps += 1
        if ends:
            return
        if me == 0 and (folder / "end").exists():
            x = jax.make_array_from_callback(
                (n * GRADIENTS,), NamedSharding(mesh, spec), lambda _: np.full(GRADIENTS, -1000, np.float32)
            )


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
