"""Reductions with an epilogue under JAXRING_NAN_CHECK=error: results are looked at in their own dtype."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring import epilogues

RANKS, SIZE = 2, 70_002
# A finite float32 whose lower half is the infinity of bfloat16.
LOOKS_INFINITE = np.uint32(0x3F807F80).view(np.float32)


def over(function, *operands):
    mesh = Mesh(np.array(jax.devices()[:RANKS]), ("x",))
    run = jax.jit(jax.shard_map(function, mesh=mesh, in_specs=P("x"), out_specs=P("x")))
    return np.asarray(run(*operands))


def main() -> None:
    x = np.ones((RANKS, SIZE), np.float32)
    narrow = over(lambda v: jaxring.all_reduce(v, "x", epilogue=epilogues.cast(jnp.bfloat16)), x)
    assert (narrow == RANKS).all()

    def step(g, p):
        return jaxring.reduce_scatter(g[0], "x", tiled=True, epilogue=epilogues.sgd(p[0], 0.0))[None]

    params = np.full((RANKS, SIZE // RANKS), LOOKS_INFINITE)
    gradients = np.ones((RANKS, SIZE), jnp.bfloat16)
    np.testing.assert_array_equal(over(step, gradients, params), params)
    params[1, -1] = np.nan
    try:
        over(step, gradients, params)
    except jax.errors.JaxRuntimeError as error:
        print(error)


if __name__ == "__main__":
    main()
