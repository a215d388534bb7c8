"""Typed PRNG keys and integers of 4 bits, which travel as other dtypes, against `jax.lax` on these."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring

N = 4
RING = [(rank, (rank + 1) % N) for rank in range(N - 1)]  # rank 0 is no target


def plain(x):
    return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x.astype(jnp.int8)


OPERANDS = {
    "key": lambda: jax.random.split(jax.random.key(7, impl="rbg"), (N * N, 3)),
    "int4": lambda: (jnp.arange(N * N * 3) % 16 - 8).astype(jnp.int4).reshape(N * N, 3),
    "uint4": lambda: (jnp.arange(N * N * 3) % 16).astype(jnp.uint4).reshape(N * N, 3),
}


def ours(x):
    started = jaxring.all_gather_start(x, "x")
    return (
        jaxring.all_gather(x, "x", axis=1),
        jaxring.all_to_all(x, "x", 0, 1, tiled=True),
        jaxring.permute(x, "x", RING),
        jaxring.broadcast(x, "x", root=2),
        jaxring.scatter(x, "x", root=1, tiled=True),
        started.done(),
    )


def theirs(x):
    every = lax.all_gather(x, "x")
    rank = lax.axis_index("x")
    return (
        lax.all_gather(x, "x", axis=1),
        lax.all_to_all(x, "x", 0, 1, tiled=True),
        lax.ppermute(x, "x", RING),
        every[2],
        lax.dynamic_slice_in_dim(every[1], rank, 1),
        every,
    )


@pytest.mark.parametrize("kind", OPERANDS)
def test_it_moves_as_by_lax(kind):
    mesh = Mesh(np.array(jax.devices()[:N]), ("x",))
    x = OPERANDS[kind]()
    both = jax.jit(
        jax.shard_map(
            lambda v, data: (ours(v), theirs(data)), mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False
        )
    )
    for mine, reference in zip(*both(x, plain(x)), strict=True):
        assert mine.dtype == x.dtype
        np.testing.assert_array_equal(np.asarray(plain(mine)), np.asarray(reference))


def test_they_cannot_be_summed():
    mesh = Mesh(np.array(jax.devices()[:N]), ("x",))
    for operand in OPERANDS.values():
        with pytest.raises(TypeError, match=r"jaxring\.all_reduce"):
            jax.shard_map(lambda v: jaxring.all_reduce(v, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())(operand())
