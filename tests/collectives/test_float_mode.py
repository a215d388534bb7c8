"""The floating-point mode of what follows a collective: XLA's, on whichever thread it runs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring

RANKS, STEPS, RUNS = 4, 4, 25


@pytest.mark.parametrize("length", [8, 100_000], ids=["small", "long"])
def test_subnormals_after_a_collective_are_what_they_are_without(length):
    """XLA's threads flush them to zero. The thread that ends a collective runs the rest of each device's program."""
    small = np.float32(1e-37)
    without = np.asarray(jax.jit(lambda x: x * np.float32(1e-3))(jnp.full(1, small)))[0]

    def rank(x):
        found = []
        for _ in range(STEPS):
            x = jaxring.all_reduce(x, "x", "max")
            found.append(x * np.float32(1e-3))
        return jnp.stack(found)

    mesh = Mesh(np.array(jax.devices()[:RANKS]), ("x",))
    specs = {"in_specs": P("x"), "out_specs": P(None, "x"), "check_vma": False}
    f = jax.jit(jax.shard_map(rank, mesh=mesh, **specs))
    for _ in range(RUNS):
        np.testing.assert_array_equal(f(np.full(RANKS * length, small)), without)
