"""Train data parallel with Optax: two lines differ from a program for one device.

    JAX_NUM_CPU_DEVICES=4 python examples/data_parallel_optax.py
    jaxring run -n 2 --devices-per-process 2 examples/data_parallel_optax.py

The losses are compared with those of one device that sees the whole batch. It needs Optax.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring

ROWS, FEATURES, HIDDEN, STEPS = 64, 8, 32, 20

optimizer = optax.adamw(1e-2)


def loss(params, x, y):
    hidden = jax.nn.gelu(x @ params["inner"])
    return jnp.mean((hidden @ params["outer"] - y) ** 2)


def step(value_and_grad, params, state, x, y):
    value, gradients = value_and_grad(params, x, y)
    updates, state = optimizer.update(gradients, state, params)
    return value, optax.apply_updates(params, updates), state


def single_step(*args):
    return step(jax.value_and_grad(loss), *args)


def parallel_step(*args):
    # x and y are this device's rows. Loss and gradients are the mean over all devices, the same bits on each.
    return step(jaxring.data_parallel.value_and_grad(loss, "data"), *args)


def train(step):
    random = np.random.default_rng(0)
    params = {
        "inner": random.standard_normal((FEATURES, HIDDEN), np.float32) / FEATURES**0.5,
        "outer": random.standard_normal((HIDDEN, FEATURES), np.float32) / HIDDEN**0.5,
    }
    state = optimizer.init(params)
    losses = []
    for _ in range(STEPS):
        x = random.standard_normal((ROWS, FEATURES), np.float32)
        value, params, state = step(params, state, x, np.sin(x))
        losses.append(float(value))
    return losses


def main():
    mesh = Mesh(jax.devices(), ("data",))
    sharded = jax.shard_map(parallel_step, mesh=mesh, in_specs=(P(), P(), P("data"), P("data")), out_specs=P())
    losses = train(jax.jit(sharded))
    np.testing.assert_allclose(losses, train(jax.jit(single_step)), rtol=1e-4)
    if jax.process_index() == 0:
        print(f"{mesh.size} devices, {ROWS // mesh.size} rows each: loss {losses[0]:.4f} to {losses[-1]:.4f}")
        print("losses are those of one device")


if __name__ == "__main__":
    main()
