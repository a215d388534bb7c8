"""Train an Equinox model, as it is, data and tensor parallel, with all of its collectives on jaxring.

    JAX_NUM_CPU_DEVICES=4 python examples/install_equinox.py
    jaxring run -n 2 --devices-per-process 2 examples/install_equinox.py

Model and training use Equinox, Optax and `jax.lax` only. `jaxring.installed` lowers their collectives to jaxring. The
losses are compared with those of one device without it. It needs Equinox and Optax.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring

FEATURES, HIDDEN, ROWS, STEPS = 6, 32, 64, 10

optimizer = optax.adam(1e-2)


class Model(eqx.Module):
    """Of one example. The hidden units are divided over the axis "model"."""

    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key)
        self.up = eqx.nn.Linear(FEATURES, HIDDEN, key=keys[0])
        self.down = eqx.nn.Linear(HIDDEN, FEATURES, use_bias=False, key=keys[1])

    def __call__(self, x):
        # By the weights and not by the layers, which hold the sizes of the whole model.
        hidden = jax.nn.gelu(self.up.weight @ x + self.up.bias)
        return jax.lax.psum(self.down.weight @ hidden, "model")


@eqx.filter_value_and_grad
def value_and_grad(model, x, y):
    return jax.lax.pmean(jnp.mean((jax.vmap(model)(x) - y) ** 2), "data")


def specs(tree):
    """How a model, or Adam's moments of it, lie on the mesh: by the names of the layers in their paths."""

    def one(path, _):
        name = jax.tree_util.keystr(path)
        if ".up" in name:
            return P("model")
        return P(None, "model") if ".down" in name else P()

    return jax.tree_util.tree_map_with_path(one, tree)


def train(mesh):
    """The losses of all steps."""
    arrays, static = eqx.partition(Model(jax.random.key(0)), eqx.is_array)
    state = optimizer.init(arrays)

    def step(arrays, state, x, y):
        value, gradients = value_and_grad(eqx.combine(arrays, static), x, y)
        updates, state = optimizer.update(gradients, state)
        return value, eqx.apply_updates(arrays, updates), state

    layout = specs(arrays), specs(state)
    sharded = jax.shard_map(step, mesh=mesh, in_specs=(*layout, P("data"), P("data")), out_specs=(P(), *layout))
    step, losses, random = jax.jit(sharded), [], np.random.default_rng(0)
    for _ in range(STEPS):
        x = random.standard_normal((ROWS, FEATURES), np.float32)
        value, arrays, state = step(arrays, state, x, np.sin(x))
        losses.append(float(value))
    return losses


def main():
    axes = ("data", "model")
    before = jaxring.counters()["operations"]
    with jaxring.installed():
        losses = train(Mesh(np.array(jax.devices()).reshape(-1, 2), axes))
    assert jaxring.counters()["operations"] - before >= STEPS, jaxring.explain()

    expected = train(Mesh(np.array(jax.local_devices()[:1]).reshape(1, 1), axes))
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    if jax.process_index() == 0:
        print(f"{jax.device_count()} devices: loss {losses[0]:.4f} to {losses[-1]:.4f}")
        print("losses are those of one device without jaxring")


if __name__ == "__main__":
    main()
