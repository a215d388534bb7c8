"""Train a pipeline of stages, one per device, by send and recv: one forward, one backward (1F1B).

    JAX_NUM_CPU_DEVICES=4 python examples/pipeline_1f1b.py
    jaxring run -n 2 --devices-per-process 2 examples/pipeline_1f1b.py

A batch is cut into micro-batches. In each tick a stage runs one of them forward and an earlier one backward, so it
keeps the inputs of at most 2 * stages - 1 micro-batches, however many there are. The losses and the trained parameters
are compared with those of the same layers on one device, which sees the whole batch at once.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring

MICROBATCHES, ROWS, WIDTH, STEPS, RATE = 8, 4, 16, 4, 0.5
FORWARD, BACKWARD = 0, 1  # tags, which keep activations and gradients apart


def layer(params, x):
    return x + jnp.tanh(x @ params["w"] + params["b"])


def loss(y, target):
    return jnp.mean((y - target) ** 2)


def pipeline(params, xs, targets):
    """Loss and this stage's gradients, both the mean over the micro-batches ``xs[number, rows, width]``."""
    stages, stage = jax.lax.axis_size("stage"), jax.lax.axis_index("stage")
    last = stage == stages - 1
    down = [(i, i + 1) for i in range(stages - 1)]
    up = [(i + 1, i) for i in range(stages - 1)]
    slots = 2 * stages - 1

    def tick(carry, time):
        inputs, x, dy, gradients, total, token = carry

        # Micro-batch m is at stage s in tick m + s. What lies outside of 0..MICROBATCHES-1 is computed and not used.
        number = time - stage
        x = jnp.where(stage == 0, xs[jnp.clip(number, 0, MICROBATCHES - 1)], x)
        inputs = inputs.at[number % slots].set(x)
        y = layer(params, x)
        # It is on its way while this stage is at work backward: send does not wait for the receiver.
        token = jaxring.send(y, "stage", down, token, tag=FORWARD)

        # It comes back in tick m + 2 * (stages - 1) - s; at the last stage that is the tick of its way forward.
        number = time - 2 * (stages - 1) + stage
        live = (number >= 0) & (number < MICROBATCHES)
        # The layer runs again, which takes less memory than to keep what its derivative needs.
        y_again, pull = jax.vjp(layer, params, inputs[number % slots])
        value, d_loss = jax.value_and_grad(loss)(y_again, targets[jnp.clip(number, 0, MICROBATCHES - 1)])
        d_params, dx = pull(jnp.where(last, d_loss, dy))
        gradients = jax.tree.map(lambda total, part: total + jnp.where(live, part, 0), gradients, d_params)
        total += jnp.where(live & last, value, 0)
        token = jaxring.send(dx, "stage", up, token, tag=BACKWARD)

        x, token = jaxring.recv(y, "stage", down, token, tag=FORWARD)
        dy, token = jaxring.recv(dx, "stage", up, token, tag=BACKWARD)
        return (inputs, x, dy, gradients, total, token), None

    row = xs.shape[1:]
    zeros = jnp.zeros((slots, *row)), jnp.zeros(row), jnp.zeros(row), jnp.zeros(())
    # The stages' values will differ, although all begin with zeros: pcast says so to JAX's types.
    inputs, x, dy, total, token = jaxring.pcast((*zeros, jaxring.new_token()), "stage")
    carry = inputs, x, dy, jax.tree.map(jnp.zeros_like, params), total, token
    (*_, gradients, total, _), _ = jax.lax.scan(tick, carry, jnp.arange(MICROBATCHES + 2 * (stages - 1)))
    total = jaxring.broadcast(total, "stage", root=stages - 1)  # the last stage's loss, for all
    return total / MICROBATCHES, jax.tree.map(lambda g: g / MICROBATCHES, gradients)


def pipeline_step(params, xs, targets):
    mine = jax.tree.map(lambda p: p[0], params)
    value, gradients = pipeline(mine, xs, targets)
    return value, jax.tree.map(lambda p, g: p - RATE * g, params, jax.tree.map(lambda g: g[None], gradients))


def single_step(params, xs, targets):
    def whole(params):
        y, _ = jax.lax.scan(lambda x, params: (layer(params, x), None), xs.reshape(-1, WIDTH), params)
        return loss(y, targets.reshape(-1, WIDTH))

    value, gradients = jax.value_and_grad(whole)(params)
    return value, jax.tree.map(lambda p, g: p - RATE * g, params, gradients)


def train(step, stages):
    random = np.random.default_rng(0)
    w = random.standard_normal((stages, WIDTH, WIDTH)) / WIDTH**0.5
    params, losses = {"w": w.astype(np.float32), "b": np.zeros((stages, WIDTH), np.float32)}, []
    for _ in range(STEPS):
        xs = random.standard_normal((MICROBATCHES, ROWS, WIDTH), np.float32)
        value, params = step(params, xs, np.sin(xs))
        losses.append(float(value))
    return losses, params


def main():
    mesh = Mesh(jax.devices(), ("stage",))
    specs = P("stage")
    step = jax.shard_map(pipeline_step, mesh=mesh, in_specs=(specs, P(), P()), out_specs=(P(), specs))
    losses, params = train(jax.jit(step), mesh.size)
    expected_losses, expected_params = train(jax.jit(single_step), mesh.size)

    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    for name, param in params.items():
        for shard in param.addressable_shards:  # those of this process
            np.testing.assert_allclose(shard.data, expected_params[name][shard.index], rtol=1e-4, atol=1e-6)
    if jax.process_index() == 0:
        print(f"{mesh.size} stages, {MICROBATCHES} micro-batches: loss {losses[0]:.4f} to {losses[-1]:.4f}")
        print("losses and parameters are those of one device")


if __name__ == "__main__":
    main()
