"""A process of two: over_worker.py FOLDER. Process 1 begins its second launch when process 0's step has run."""

from __future__ import annotations

import pathlib
import sys
import time

import jax
import numpy as np
from jax.sharding import Mesh

import jaxring
from tests.overlap.over_program import operand, program


def main() -> None:
    """The first launch plans and joins; the second is the one that is looked at."""
    flag = pathlib.Path(sys.argv[1]) / "flag"
    me, armed, seen = jax.process_index(), False, []

    def between(_: int, in_flight: int) -> None:
        if armed and me == 0:
            seen.append(in_flight)
            flag.touch()

    devices = sorted(jax.devices(), key=lambda d: d.process_index)
    mesh = Mesh(devices, ("r",))
    run = program(mesh, jaxring.all_reduce_start, lambda _: None, between, timeout=40, ordered=True)
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("r"))
    whole = operand(2)
    x = jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])
    run(x).block_until_ready()
    armed = True
    while me == 1 and not flag.exists():
        time.sleep(0.01)
    y = run(x)
    assert np.isfinite(np.asarray(y.addressable_shards[0].data)).all()
    assert seen == ([1] if me == 0 else []), seen


if __name__ == "__main__":
    main()
