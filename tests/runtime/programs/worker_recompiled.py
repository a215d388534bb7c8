"""One process compiles a program more often than the others do: `jaxring run` this with the way in which it does."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxring

mesh = jax.sharding.Mesh(jax.devices(), ("x",))
me, n = jax.process_index(), len(jax.devices())


@jax.jit
def twice(v):
    """Lowered once and called twice: two calls of a program that have one spec."""
    return jaxring.all_reduce(v * 2, "x")


def local(v):
    # The tuple's leaves share a call.
    low, high = jaxring.all_reduce((jnp.sin(v), v), "x", "max")
    return twice(v) + twice(v + 1) + low + high


def mapped(f=local):
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P()))


def value(y):
    return float(np.asarray(y.addressable_shards[0].data)[0])


values = np.arange(float(n), dtype=np.float32)
x = jax.make_array_from_callback((n,), jax.NamedSharding(mesh, P("x")), lambda at: values[at])
right = 2 * values.sum() + 2 * (values + 1).sum() + np.sin(values).max() + values.max()


def steps(f, count=3):
    for _ in range(count):
        assert abs(value(f(x)) - right) < 1e-4


f = mapped()
kept = []
if me == 0:
    f.lower(x).compile().memory_analysis()
    mapped().lower(x).compile().memory_analysis()
steps(f)
f = mapped()
if me == 0:
    f.lower(x).compile()
    jax.clear_caches()
steps(f)
f = mapped()
if me == 1:
    kept = [mapped().lower(x).compile() for _ in range(3)]
    kept += [f.lower(x).compile({"xla_cpu_enable_fast_math": False}) for _ in range(3)]
steps(f)
for turn in range(3):  # one process alone forgets what has run, in the midst of it
    if me == turn % 2:
        jax.clear_caches()
    steps(f, 2)
if me == 0:  # and one runs what it compiled ahead
    f = kept = mapped().lower(x).compile()
steps(f)
if "differ" in sys.argv:
    # Programs that are truly different are told still, also behind all this.
    other = mapped(lambda v: jaxring.all_reduce(v, "x", "min" if me == 0 else "max") + twice(v))
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="the processes run different programs"):
        other(x).block_until_ready()
    print("told", flush=True)
else:
    print("right", flush=True)
