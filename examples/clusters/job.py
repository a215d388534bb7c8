"""A job that checks itself, for any launcher: what to run first on a new cluster.

    srun python examples/clusters/job.py
    mpirun -n 4 python examples/clusters/job.py
    jaxring run -n 4 examples/clusters/job.py

Each process adds its number and all others', inside a compiled program, and compares with the sum that it knows. It
prints which way the bytes went, and on which host it ran.
"""

from __future__ import annotations

import os
import socket

import jax

# What Kubeflow's Trainer sets. Of these JAX reads the address alone; Slurm and Open MPI it knows.
NAMES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
if not jax.distributed.is_initialized():  # `jaxring run` has done it
    address, count, process = (os.environ.get(name) for name in NAMES)
    if address and count and process:
        jax.distributed.initialize(address, int(count), int(process))
    else:
        jax.distributed.initialize()

import numpy as np  # noqa: E402 - the job comes before anything else of JAX
from jax.sharding import Mesh  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import jaxring  # noqa: E402


def main() -> None:
    """Raises AssertionError where the sum is another."""
    mesh = Mesh(np.array(jax.devices()), ("data",))

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=P("data"), out_specs=P())
    def total(x: jax.Array) -> jax.Array:
        return jaxring.all_reduce(x, "data")

    ranks = jax.device_count()
    own = np.repeat(np.arange(1.0, ranks + 1, dtype=np.float32)[:, None], 4, axis=1)
    numbers = jax.make_array_from_callback(own.shape, jax.NamedSharding(mesh, P("data")), own.__getitem__)
    found = np.asarray(total(numbers).addressable_data(0))
    expected = ranks * (ranks + 1) / 2
    assert (found == expected).all(), f"the sum is {found}, not {expected}"
    where = f"process {jax.process_index()} of {jax.process_count()} on {socket.gethostname()}"
    print(f"{where}: the sum over {ranks} ranks is that of NumPy, {expected:g}", flush=True)
    if jax.process_index() == 0:
        print(jaxring.explain(), flush=True)


if __name__ == "__main__":
    main()
