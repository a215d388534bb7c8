"""A script that imports jax alone: a sum of the partitioner's and a psum of its own, on all devices.

usage: wp_unchanged.py [COORDINATOR PROCESSES PROCESS]
"""

import sys

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

if len(sys.argv) > 1:
    jax.distributed.initialize(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
n = jax.device_count()
mesh = jax.make_mesh((n,), ("x",), axis_types=(AxisType.Auto,))
values = np.arange(n * 3, dtype=np.float32).reshape(n, 3)
x = jax.make_array_from_callback(values.shape, NamedSharding(mesh, P("x")), lambda index: values[index])


def value(y):
    return np.asarray(y.addressable_shards[0].data)


@jax.jit
def inserted(x):
    return x.sum(0)


@jax.jit
@jax.shard_map(mesh=mesh, in_specs=P("x"), out_specs=P())
def called(x):
    return jax.lax.psum(x, "x")[0]


def operations():
    jaxring = sys.modules.get("jaxring")  # which this script does not import
    return jaxring.counters()["operations"] if jaxring else 0


served = []
for program in (inserted, called):
    before = operations()
    np.testing.assert_array_equal(value(program(x)), values.sum(0))
    served.append(operations() > before)
print("right", {(False, False): "", (False, True): "lax", (True, True): "whole"}[tuple(served)], flush=True)
