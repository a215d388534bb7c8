"""What each process of a job runs whose operation fails: `python worker_replay.py CASE`."""

from __future__ import annotations

import importlib
import sys

import jax
import numpy as np

import jaxring
from tests.stress.stress_ranks import AXIS, over, put, start


def ragged(x):
    """Rank r sends j + 1 rows of two to rank j, from row 10 j on; they land at row 10 r."""
    r, n = jax.lax.axis_index(AXIS), jax.lax.axis_size(AXIS)
    peers = np.arange(n)
    return jaxring.ragged_all_to_all(
        x.reshape(-1, 2),
        np.zeros((100, 2), x.dtype),
        10 * peers,
        peers + 1,
        np.full(n, 10) * r,
        np.ones(n, int) * (r + 1),
        axis_name=AXIS,
    )


def main(case: str) -> None:
    mesh = start()
    rows = np.repeat(np.arange(1, mesh.size + 1, dtype=np.float32)[:, None], 1000, axis=1)
    if case == "nan":
        rows[3, 7] = np.nan
    algorithm = None
    if case == "own":
        rows[3, 7] = np.inf
        algorithm = "test_chain"
        importlib.import_module("tests.user.test_user_algorithm")
    if case == "ragged":
        rows[3, 2 * 20] = np.nan  # in what rank 2 gets
        run = over(mesh, ragged)
    else:
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
