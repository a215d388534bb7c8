"""`jaxring.sharded` under jit of grad, against plain JAX on one device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from jaxring import sharded

X = np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)
# What a call over the four blocks of the first dimension means, as a function of the whole array.
CALLS = {
    "all_reduce": ({}, lambda a: a.reshape(4, 16, 4).sum(0)),
    "all_gather": ({}, lambda a: a),
    "reduce_scatter": ({}, lambda a: a.reshape(4, 16, 4).sum(0)),
    "all_to_all": ({"split_axis": 0, "concat_axis": 0}, lambda a: a.reshape(4, 4, 4, 4).swapaxes(0, 1).reshape(64, 4)),
    "permute": ({"perm": [(i, (i + 1) % 4) for i in range(4)]}, lambda a: jnp.roll(a, 16, 0)),
    "broadcast": ({"root": 1}, lambda a: a[16:32]),
}


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", CALLS)
def test_gradients(name, kind):
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"), axis_types=(kind, kind))
    options, meaning = CALLS[name]

    def loss(collective):
        def f(a):
            y = collective(jnp.sin(a))
            return jnp.sum(jnp.cos(y) * jnp.arange(y.size, dtype=y.dtype).reshape(y.shape))

        return f

    ours = jax.jit(jax.grad(loss(lambda a: getattr(sharded, name)(a, mesh, "x", **options))))(X)
    theirs = jax.grad(loss(meaning))(X)
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-4, atol=1e-3)
