"""Train a Flax NNX model, as it is, with all of its collectives on jaxring.

    JAX_NUM_CPU_DEVICES=4 python examples/install_nnx.py
    jaxring run -n 2 --devices-per-process 2 examples/install_nnx.py

Model and training use Flax, Optax and `jax.lax` only; one collective is within Flax, in BatchNorm. `jaxring.installed`
lowers them to jaxring. The losses are compared with those of one device without it. It needs Flax and Optax.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring

FEATURES, HIDDEN, CLASSES, ROWS, STEPS = 6, 32, 3, 64, 10


class Model(nnx.Module):
    def __init__(self, rngs):
        self.inner = nnx.Linear(FEATURES, HIDDEN, rngs=rngs)
        # With an axis name Flax takes mean and variance over the rows of all devices, by jax.lax.pmean.
        self.norm = nnx.BatchNorm(HIDDEN, axis_name="data", rngs=rngs)
        self.outer = nnx.Linear(HIDDEN, CLASSES, rngs=rngs)

    def __call__(self, x):
        return self.outer(nnx.gelu(self.norm(self.inner(x))))


def batches():
    """Points, and which of CLASSES centres each is nearest to."""
    random = np.random.default_rng(0)
    centres = random.standard_normal((CLASSES, FEATURES), np.float32)
    for _ in range(STEPS):
        x = random.standard_normal((ROWS, FEATURES), np.float32)
        yield x, ((x[:, None] - centres) ** 2).sum(axis=-1).argmin(axis=1)


def train(mesh):
    """The losses of all steps."""
    model = Model(nnx.Rngs(0))
    graph, state = nnx.split((model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)))

    def step(state, x, y):
        model, optimizer = nnx.merge(graph, state)

        def loss(model):
            each = optax.softmax_cross_entropy_with_integer_labels(model(x), y)
            return jax.lax.pmean(jnp.mean(each), "data")

        value, gradients = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value, nnx.state((model, optimizer))

    sharded = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(P(), P("data"), P("data")), out_specs=P()))
    losses = []
    for x, y in batches():
        value, state = sharded(state, x, y)
        losses.append(float(value))
    return losses


def main():
    before = jaxring.counters()["operations"]
    with jaxring.installed():
        losses = train(Mesh(jax.devices(), ("data",)))
    assert jaxring.counters()["operations"] - before >= STEPS, jaxring.explain()

    expected = train(Mesh(jax.local_devices()[:1], ("data",)))
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    if jax.process_index() == 0:
        print(f"{jax.device_count()} devices: loss {losses[0]:.4f} to {losses[-1]:.4f}")
        print("losses are those of one device without jaxring")


if __name__ == "__main__":
    main()
