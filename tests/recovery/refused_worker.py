"""A process of three, of which the last one ends after it has published itself, before anybody is linked with it.

The others find that it refuses connections, and go on without it. Run by test_recovery.py.
"""

from __future__ import annotations

import os
import pathlib
import time

import jax
import numpy as np

import jaxring
from jaxring.world import World
from tests.stress.stress_ranks import AXIS, over, put, rows, start

LAST = 2
LONG_S = 1e6


def main() -> None:
    mesh = start()
    if jax.process_index() == LAST:
        World.serve = lambda _: os._exit(0)
    call = over(mesh, lambda v: jaxring.all_reduce(v, AXIS))
    try:
        jax.block_until_ready(call(put(mesh, rows(mesh.size, 8))))
    except (ValueError, jax.errors.JaxRuntimeError) as error:
        print(error, flush=True)
    print(f"members {jaxring.shrink(LONG_S).processes}", flush=True)
    total = call(put(mesh, np.ones((mesh.size, 8), np.float32)))
    print(f"sum {np.asarray(total.addressable_shards[0].data)[0, 0]:g}", flush=True)


if __name__ == "__main__":
    main()
    # When the coordinator's process ends, jax.distributed ends the others, and it waits for the one that is gone.
    while not (pathlib.Path(os.environ["FOLDER"]) / "over").exists():
        time.sleep(0.05)
    os._exit(0)
