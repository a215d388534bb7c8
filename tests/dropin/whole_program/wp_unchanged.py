"""A script that imports jax alone: a sum of the partitioner's and a psum of its own, on all devices."""

import os
import sys

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

if "JAX_NUM_PROCESSES" in os.environ:
    jax.distributed.initialize(
        num_processes=int(os.environ["JAX_NUM_PROCESSES"]), process_id=int(os.environ["JAX_PROCESS_ID"])
    )
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
