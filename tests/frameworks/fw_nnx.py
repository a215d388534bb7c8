"""A Flax NNX model with an Optax optimizer, data and tensor parallel by `jax.lax` collectives alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import lax
from jax.sharding import PartitionSpec as P

from tests.frameworks import fw_task


class Model(nnx.Module):
    def __init__(self, rngs):
        self.up = nnx.Linear(fw_task.INPUTS, fw_task.HIDDEN, rngs=rngs)
        self.down = nnx.Linear(fw_task.HIDDEN, fw_task.CLASSES, use_bias=False, rngs=rngs)

    def __call__(self, x):
        return lax.psum(self.down(nnx.gelu(self.up(x))), "model")


def train(mesh):
    """The losses of all steps."""
    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(3e-2), wrt=nnx.Param)
    graph, state = nnx.split((model, optimizer))
    specs = fw_task.specs(state, features_last=True)

    def step(state, x, y):
        model, optimizer = nnx.merge(graph, state)

        def loss(model):
            each = optax.softmax_cross_entropy_with_integer_labels(model(x), y)
            return lax.pmean(jnp.mean(each), "data")

        value, grads = nnx.value_and_grad(loss)(model)
        optimizer.update(model, grads)
        return value, nnx.state((model, optimizer))

    sharded = jax.jit(
        jax.shard_map(step, mesh=mesh, in_specs=(specs, fw_task.DATA, fw_task.DATA), out_specs=(P(), specs))
    )
    losses = []
    for x, y in fw_task.batches():
        value, state = sharded(state, x, y)
        losses.append(float(value))
    return losses
