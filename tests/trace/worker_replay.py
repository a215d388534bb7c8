"""What each process of a job runs whose operation fails: `python worker_replay.py CASE`."""

from __future__ import annotations

import importlib
import pathlib
import sys

import jax
import numpy as np
from stress_ranks import AXIS, over, put, start

import jaxring

sys.path.append(str(pathlib.Path(__file__).parents[1] / "user"))


def main(case: str) -> None:
    mesh = start()
    rows = np.repeat(np.arange(1, mesh.size + 1, dtype=np.float32)[:, None], 1000, axis=1)
    if case == "nan":
        rows[3, 7] = np.nan
    algorithm = None
    if case == "own":
        rows[3, 7] = np.inf
        algorithm = "test_chain"
        importlib.import_module("test_user_algorithm")
    run = over(mesh, lambda x: jaxring.all_reduce(x, AXIS, algorithm=algorithm), donate_argnums=0)
    raised = 0
    for shard in run(put(mesh, rows)).addressable_shards:
        try:
            np.asarray(shard.data)
        except jax.errors.JaxRuntimeError:
            raised += 1
    assert raised == len(jax.local_devices()), raised


if __name__ == "__main__":
    main(sys.argv[1])
