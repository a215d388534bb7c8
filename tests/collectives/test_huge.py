"""More than 2^31 bytes per rank: offsets that 32 bits do not hold."""

from __future__ import annotations

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxring
from tests.collectives.cases.coll_ranks import Ranks
from tests.compiling import LONG

# Made and checked a block after the other: XLA would keep the indices of all, in four bytes each.
BLOCKS, BLOCK = 174, 12_345_679
COUNT = BLOCKS * BLOCK
assert 2**31 < COUNT < 2**32

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 12 << 30, reason="needs 12 GiB of memory"
    ),
]


def value(rank, block):
    """A block of a rank's bytes, which depend on all bits of their place."""
    at = jax.lax.iota(jnp.uint32, BLOCK) + jnp.uint32(BLOCK) * block
    return ((at * 7 + (at >> 13) + (at >> 27) * 5 + rank * 31) & 0xFF).astype(jnp.uint8)


@pytest.mark.parametrize("what", ["all_reduce", "permute"])
def test_over_two_gib_of_bytes(what):
    ranks = Ranks(jax.devices()[:2])

    def rank():
        return jax.lax.axis_index("x").astype(jnp.uint32)

    def call(x):
        return jaxring.all_reduce(x, "x") if what == "all_reduce" else jaxring.permute(x, "x", [(0, 1), (1, 0)])

    blocks = np.arange(BLOCKS, dtype=np.uint32)

    def make():
        return jax.lax.map(lambda block: value(rank(), block), blocks).reshape(COUNT)

    def wrong(y):
        def of(block, found):
            if what == "all_reduce":
                expected = value(jnp.uint32(0), block) + value(jnp.uint32(1), block)
            else:
                expected = value(1 - rank(), block)
            return jnp.sum(found != expected, dtype=jnp.uint32)

        return jnp.sum(jax.lax.map(lambda pair: of(*pair), (blocks, y.reshape(BLOCKS, BLOCK))))[None]

    options = {"mesh": ranks.mesh, "check_vma": False, "out_specs": P("x")}
    jit = functools.partial(jax.jit, compiler_options=LONG)
    x = jit(jax.shard_map(make, in_specs=(), **options))()
    assert x.shape == (2 * COUNT,)
    y = jit(jax.shard_map(call, in_specs=P("x"), **options), donate_argnums=0)(x)
    assert y.shape == (2 * COUNT,)
    np.testing.assert_array_equal(jit(jax.shard_map(wrong, in_specs=P("x"), **options))(y), [0, 0])
