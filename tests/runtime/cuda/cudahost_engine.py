"""The ranks of this process, as its command line has it, their engine, and functions run on them.

To be imported before jax and jaxring are: engines set the environment up for these.
"""

from __future__ import annotations

import os
import re
import sys

case, process, processes, devices, port = sys.argv[1], *(int(a) for a in sys.argv[2:6])
REAL = "TEST_CUDA_FAKE" not in os.environ
if REAL:
    import cudahost_real as engine
else:
    import cudahost_fake as engine
import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

engine.configure(process, processes, devices, port, case == "gone")
RANKS = processes * devices
mesh = Mesh(np.array(jax.devices()), ("d",))


def over(function, x):
    """`function` on each rank's row of ``x``; the rows of this process's ranks."""
    run = jax.jit(jax.shard_map(function, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))
    sharding = jax.sharding.NamedSharding(mesh, P("d"))
    given = jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])
    return {s.index[0].start: np.asarray(s.data) for s in run(given).addressable_shards}


def check(function, x, expected):
    got = over(function, x)
    assert len(got) == devices
    for start, rows in got.items():
        np.testing.assert_array_equal(rows, expected[start : start + len(rows)])


def error_of(run):
    """The text of the error that ``run`` ends with when it runs; one while it is traced is a fault of the test."""
    try:
        jax.block_until_ready(run())
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        text = str(error)
        # Some of XLA's errors come as a ValueError, with the name of their code.
        if isinstance(error, jax.errors.JaxRuntimeError) or re.match(r"[A-Z_]+: ", text):
            return text
        raise
    raise AssertionError("no error")
