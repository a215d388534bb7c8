"""An Equinox model with an Optax optimizer, data and tensor parallel by `jax.lax` collectives alone."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from tests.frameworks import fw_task


class Model(eqx.Module):
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key)
        self.up = eqx.nn.Linear(fw_task.INPUTS, fw_task.HIDDEN, key=keys[0])
        self.down = eqx.nn.Linear(fw_task.HIDDEN, fw_task.CLASSES, use_bias=False, key=keys[1])

    def __call__(self, x):
        # Of one example: the collective is under vmap.
        return lax.psum(self.down.weight @ jax.nn.gelu(self.up.weight @ x + self.up.bias), "model")


@eqx.filter_value_and_grad
def loss(model, x, y):
    each = optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(x), y)
    return lax.pmean(jnp.mean(each), "data")


def train(mesh):
    """The losses of all steps."""
    optimizer = optax.adam(3e-2)
    model = Model(jax.random.key(0))
    state = optimizer.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit
    def step(model, state, x, y):
        arrays, static = eqx.partition(model, eqx.is_array)
        specs = fw_task.specs((arrays, state), features_last=False)

        def local(arrays, state, x, y):
            model = eqx.combine(arrays, static)
            value, grads = loss(model, x, y)
            updates, state = optimizer.update(grads, state)
            return value, eqx.filter(eqx.apply_updates(model, updates), eqx.is_array), state

        sharded = jax.shard_map(
            local, mesh=mesh, in_specs=(*specs, fw_task.DATA, fw_task.DATA), out_specs=(P(), *specs)
        )
        value, arrays, state = sharded(arrays, state, x, y)
        return value, eqx.combine(arrays, static), state

    losses = []
    for x, y in fw_task.batches():
        value, model, state = step(model, state, x, y)
        losses.append(float(value))
    return losses
