"""What `jaxring.explain(compiled)` says before a job has run and afterwards; each process is a host of its own."""

import os

os.environ["JAXRING_HOSTID"] = os.environ["JAX_PROCESS_ID"]

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring.world.launch import initialize

initialize()
mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
ones = np.ones((4, 1 << 18), np.float32)
x = jax.make_array_from_callback(ones.shape, NamedSharding(mesh, P("x")), lambda index: ones[index])
jaxring.install(whole_program=True)
compiled = jax.jit(lambda x: x.sum(0)).lower(x).compile()
before = jaxring.explain(compiled)
assert before.endswith("; as on one host: these processes have not joined each other yet"), before
compiled(x).block_until_ready()
after = jaxring.explain(compiled)
(ran,) = jaxring.plans()
how = f"; {ran.algorithm}, protocol {ran.protocol}, {ran.channels} channel(s): {ran.reason}; {ran.prediction}"
assert after.endswith(how), (after, how)
assert ran.prediction not in before, (before, after)
print("right", flush=True)
