"""A job whose processes all take a profile into one folder."""

import sys

import jax
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring

jax.distributed.initialize()
n = jax.device_count()
mesh = Mesh(np.array(jax.devices()), ("x",))
x = jax.make_array_from_callback((n,), jax.NamedSharding(mesh, P("x")), lambda i: np.arange(float(n))[i])
run = jax.jit(jax.shard_map(lambda v: jaxring.all_reduce(v, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()))
run(x).block_until_ready()
with jaxring.profiler.trace(sys.argv[1], create_perfetto_trace=True):
    for _ in range(20):
        run(x).block_until_ready()
