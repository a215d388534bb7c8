"""Parameters and Optax's state in plain `jit`, sharded by the compiler alone: only the batch is placed by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

FEATURES, HIDDEN, ROWS = 24, 48, 64


def train(steps):
    """The losses of a regression."""
    axes = ("rows", "columns")
    mesh = jax.make_mesh((jax.device_count() // 2, 2), axes, axis_types=(AxisType.Auto,) * 2)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    cut = NamedSharding(mesh, P(*axes))

    @jax.jit
    def create(key):
        shapes = [(FEATURES, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, FEATURES)]
        keys = jax.random.split(key, len(shapes))
        layers = [jax.random.normal(k, s) / s[0] ** 0.5 for k, s in zip(keys, shapes, strict=True)]
        layers = jax.lax.with_sharding_constraint(layers, cut)
        return layers, optimizer.init(layers)

    @jax.jit
    def step(layers, state, x):
        def loss(layers):
            y = x
            for layer in layers[:-1]:
                y = jax.nn.gelu(y @ layer)
            return jnp.mean((y @ layers[-1] - jnp.roll(x, 1, 1)) ** 2)

        value, gradients = jax.value_and_grad(loss)(layers)
        updates, state = optimizer.update(gradients, state, layers)
        return value, optax.apply_updates(layers, updates), state

    layers, state = create(jax.random.key(0))
    random, losses = np.random.default_rng(0), []
    for _ in range(steps):
        batch = random.standard_normal((ROWS, FEATURES), np.float32)
        x = jax.make_array_from_callback(batch.shape, cut, batch.__getitem__)
        value, layers, state = step(layers, state, x)
        losses.append(float(value))
    return losses
