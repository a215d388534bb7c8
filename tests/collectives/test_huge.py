"""More than 2^31 bytes per rank: offsets that 32 bits do not hold."""

from __future__ import annotations

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from coll_ranks import Ranks
from jax.sharding import PartitionSpec as P

import jaxring

COUNT = 2**31 + 12_345_677

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 18 << 30, reason="needs 18 GiB of memory"
    ),
]


def value(rank):
    """A rank's bytes, which depend on all bits of their place."""
    at = jax.lax.iota(jnp.uint32, COUNT)  # COUNT < 2^32
    return ((at * 7 + (at >> 13) + (at >> 27) * 5 + rank * 31) & 0xFF).astype(jnp.uint8)


@pytest.mark.parametrize("what", ["all_reduce", "permute"])
def test_over_two_gib_of_bytes(what):
    ranks = Ranks(jax.devices()[:2])

    def rank():
        return jax.lax.axis_index("x").astype(jnp.uint32)

    def call(x):
        return jaxring.all_reduce(x, "x") if what == "all_reduce" else jaxring.permute(x, "x", [(0, 1), (1, 0)])

    def wrong(y):
        # Computed again and compared in one pass, so that it takes no memory.
        expected = value(jnp.uint32(0)) + value(jnp.uint32(1)) if what == "all_reduce" else value(1 - rank())
        return jnp.sum(y != expected, dtype=jnp.uint32)[None]

    options = {"mesh": ranks.mesh, "check_vma": False, "out_specs": P("x")}
    x = jax.jit(jax.shard_map(lambda: value(rank()), in_specs=(), **options))()
    assert x.shape == (2 * COUNT,)
    y = jax.jit(jax.shard_map(call, in_specs=P("x"), **options), donate_argnums=0)(x)
    assert y.shape == (2 * COUNT,)
    np.testing.assert_array_equal(jax.jit(jax.shard_map(wrong, in_specs=P("x"), **options))(y), [0, 0])
