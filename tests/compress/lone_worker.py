"""A process of two, whose compressed all-reduces send codes. One is killed, and the other goes on alone.

Run by test_processes.py.
"""

from __future__ import annotations

import os
import pathlib
import signal
import time

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

import jaxring
import jaxring.optax
from tests.stress.stress_ranks import AXIS, put, rows, start

LONG_S = 1e6
COUNT = 5000


def main() -> None:
    mesh = start()
    transformation = jaxring.optax.compressed_mean(AXIS, "int8")

    def both(v):
        total = jaxring.all_reduce(v, AXIS, compress="int8")
        mean, state = transformation.update(v[0], transformation.init(v[0]))
        return total, mean[None], jax.tree.leaves(state)[-1]

    call = jax.jit(jax.shard_map(both, mesh=mesh, in_specs=P(AXIS), out_specs=P(AXIS), check_vma=False))
    x = put(mesh, rows(mesh.size, COUNT))

    def local():
        return [np.asarray(each.addressable_shards[0].data)[0] for each in jax.block_until_ready(call(x))]

    total, mean, kept = local()
    assert np.all(np.isfinite(total))
    assert np.any(kept != 0)
    if jax.process_index() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        local()
    except (ValueError, jax.errors.JaxRuntimeError) as error:
        print(f"failed: {error}", flush=True)
    print(f"members {jaxring.shrink(LONG_S).processes}", flush=True)
    total, mean, kept = local()
    mine = np.asarray(x.addressable_shards[0].data)[0]
    np.testing.assert_array_equal(total, mine)
    np.testing.assert_array_equal(mean, mine)
    np.testing.assert_array_equal(kept, 0)
    print("alone", flush=True)


if __name__ == "__main__":
    main()
    while not (pathlib.Path(os.environ["FOLDER"]) / "over").exists():
        time.sleep(0.05)
    os._exit(0)
