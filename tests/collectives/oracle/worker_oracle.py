"""Sums under JAXRING_CHECKSUM=oracle, one of them wrong on rank 1: worker_oracle.py install|plain EXECUTION."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring.tracing import calls
from jaxring.world import launch

WAY, WRONG = sys.argv[1], int(sys.argv[2])
right = calls.apply


def wrong(name, x, axes, options):
    """As a compiler's or a processor's fault would leave it; the operand is the number of the execution."""
    y = right(name, x, axes, options)
    return y.at[3].add(jnp.where((jax.lax.axis_index("x") == 1) & (x[0] == WRONG), 1.0, 0.0))


def step(v):
    return jax.lax.psum(v, "x") if WAY == "install" else jaxring.all_reduce(v, "x")


launch.initialize()
calls.apply = wrong
if WAY == "install":
    jaxring.install()
n = jax.device_count()
mesh = jax.make_mesh((n,), ("x",))
sums = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=WAY == "plain"))
try:
    for execution in range(6):
        values = np.full(8, execution, np.float32)
        x = jax.make_array_from_callback((8 * n,), jax.NamedSharding(mesh, P("x")), lambda _, v=values: v)
        sums(x).block_until_ready()
        jax.effects_barrier()
except Exception as error:
    print(f"execution {execution}: {error}", flush=True)
else:
    print("no error", flush=True)
