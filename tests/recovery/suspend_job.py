"""Gives back links' memory and takes it again, as the system counts it. Run by test_recovery.py: suspend_job.py KIND,
where KIND is that of the links' memory in /proc/self/status.
"""

from __future__ import annotations

import sys

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from tests.recovery.held import held, resident, settled, soon

KIND, LIMIT_S, WIDTH = sys.argv[1], 100.0, 1 << 18
N = jax.device_count()
MESH = jax.make_mesh((N,), ("x",))
BY_RANK = NamedSharding(MESH, P("x"))


def call(function):
    return jax.jit(jax.shard_map(function, mesh=MESH, in_specs=P("x"), out_specs=P("x"), check_vma=False))


CALLS = [call(lambda v: jaxring.all_reduce(v, "x")), call(lambda v: jaxring.all_gather(v, "x"))]


def work():
    """Links to all other processes carry some MB."""
    x = jax.make_array_from_callback((N, WIDTH), BY_RANK, lambda i: np.full((1, WIDTH), i[0].start, np.float32))
    for _ in range(2):
        reduced, _ = jax.block_until_ready([each(x) for each in CALLS])
    assert np.all(np.asarray(reduced.addressable_data(0)) == N * (N - 1) / 2)


without = settled()  # jax.distributed has begun, and no process has made a link
work()
for _ in range(3):
    before, in_use, of_links = settled(), resident(KIND), jaxring.counters()["link_bytes"]
    assert of_links > 1 << 20
    assert before.sockets > without.sockets, (before, without)
    assert before.shared > without.shared or KIND != "RssShmem", (before, without)

    jaxring.suspend(LIMIT_S)
    soon(lambda: held() == without, lambda: (held(), without))
    # Not all of it was ever written to.
    soon(lambda: in_use - resident(KIND) > of_links / 8, lambda: (in_use, resident(KIND), of_links))  # noqa: B023
    assert jaxring.counters()["link_bytes"] == 0

    jaxring.resume(LIMIT_S)
    given_back = resident(KIND)
    work()
    soon(lambda: held() == before, lambda: (held(), before))  # noqa: B023
    assert resident(KIND) - given_back > of_links / 8
    assert jaxring.counters()["link_bytes"] == of_links
print("given back and taken again", flush=True)
