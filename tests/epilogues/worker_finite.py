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

    def adam(g, p):
        moments = jnp.zeros_like(p[0])
        new, mu, nu = jaxring.reduce_scatter(
            g[0], "x", tiled=True, epilogue=epilogues.adam(p[0], moments, moments, 1, 1e-3)
        )
        return jnp.stack([new, mu, nu])[None]

    # The square of such a gradient overflows, and with it the second moment, by which the step becomes 0.
    try:
        over(adam, np.full((RANKS, SIZE), 1e20, np.float32), np.ones((RANKS, SIZE // RANKS), np.float32))
    except jax.errors.JaxRuntimeError as error:
        print(error)


if __name__ == "__main__":
    main()
