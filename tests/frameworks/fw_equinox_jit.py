"""An Equinox transformer block with an Optax optimizer under plain `filter_jit`: tensor parallel by shardings alone."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

WIDTH, HEADS, LENGTH, ROWS = 32, 4, 8, 16


class Block(eqx.Module):
    attention: eqx.nn.MultiheadAttention
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    norms: list[eqx.nn.LayerNorm]

    def __init__(self, key):
        keys = jax.random.split(key, 3)
        self.attention = eqx.nn.MultiheadAttention(HEADS, WIDTH, key=keys[0])
        self.up = eqx.nn.Linear(WIDTH, 4 * WIDTH, use_bias=False, key=keys[1])
        self.down = eqx.nn.Linear(4 * WIDTH, WIDTH, use_bias=False, key=keys[2])
        self.norms = [eqx.nn.LayerNorm(WIDTH) for _ in range(2)]

    def __call__(self, x):
        y = jax.vmap(self.norms[0])(x)
        x = x + self.attention(y, y, y)
        y = jax.vmap(self.norms[1])(x)
        return x + jax.vmap(self.down)(jax.nn.gelu(jax.vmap(self.up)(y)))


def shardings(model, mesh):
    """Heads and hidden units lie over "model": the layers before them are cut by outputs, those after by inputs."""

    def one(path, leaf):
        name = jax.tree_util.keystr(path)
        if not eqx.is_array(leaf):
            return None
        if any(part in name for part in ("query_proj", "key_proj", "value_proj", "up")):
            return NamedSharding(mesh, P("model"))
        by_inputs = leaf.ndim == 2 and any(part in name for part in ("output_proj", "down"))
        return NamedSharding(mesh, P(None, "model") if by_inputs else P())

    return jax.tree_util.tree_map_with_path(one, model)


def train(steps):
    """The losses of predicting each sequence's next element."""
    # As many devices for a model as divide its heads; the rest see other rows.
    parts = min(HEADS, jax.device_count())
    mesh = jax.make_mesh((jax.device_count() // parts, parts), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    optimizer = optax.adam(1e-3)

    @eqx.filter_jit
    def create():
        model = Block(jax.random.key(0))
        return eqx.filter_shard(model, shardings(model, mesh))

    @eqx.filter_jit
    def step(model, state, x):
        def loss(model):
            return jnp.mean((jax.vmap(model)(x[:, :-1]) - x[:, 1:]) ** 2)

        value, gradients = eqx.filter_value_and_grad(loss)(model)
        updates, state = optimizer.update(gradients, state)
        return value, eqx.apply_updates(model, updates), state

    model = create()
    state = eqx.filter_jit(optimizer.init)(eqx.filter(model, eqx.is_array))
    random = np.random.default_rng(0)
    rows, losses = NamedSharding(mesh, P("data")), []
    for _ in range(steps):
        batch = np.cumsum(random.standard_normal((ROWS, LENGTH + 1, WIDTH), np.float32), axis=1)
        x = jax.make_array_from_callback(batch.shape, rows, batch.__getitem__)
        value, model, state = step(model, state, x)
        losses.append(float(value))
    return losses
