"""Train with parameters, gradients and Adam's moments divided among the devices (FSDP, ZeRO-3), written out.

    JAX_NUM_CPU_DEVICES=4 python examples/fsdp_by_hand.py
    jaxring run -n 2 --devices-per-process 2 examples/fsdp_by_hand.py

A device keeps its part of each layer. It gathers a layer when it computes with it, forward and once more backward, and
keeps its part of the gradients' mean. The losses and the trained parameters are compared with those of one device. It
needs Optax. `examples/fsdp_nnx.py` has the compiler do the same.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring

LAYERS, ROWS, WIDTH, HIDDEN, STEPS = 3, 32, 10, 25, 5

optimizer = optax.adam(1e-2)  # element by element, so it works on any part of the parameters


def layer(params, x):
    hidden = jax.nn.gelu(x @ params["up"] + params["bias"])
    return x + hidden @ params["down"]


def init():
    """One vector for each layer, ``[layers, parameters]``, and the function that makes a layer's arrays of it."""
    random = np.random.default_rng(0)

    def one():
        return {
            "up": random.standard_normal((WIDTH, HIDDEN), np.float32) / WIDTH**0.5,
            "bias": np.zeros(HIDDEN, np.float32),
            "down": random.standard_normal((HIDDEN, WIDTH), np.float32) / HIDDEN**0.5,
        }

    layers = [one() for _ in range(LAYERS)]
    return np.stack([ravel_pytree(each)[0] for each in layers]), ravel_pytree(layers[0])[1]


@jax.custom_vjp
def gather(part):
    """All of a vector, of which each device has a part."""
    return jaxring.all_gather(part, "data", tiled=True)


def gather_forward(part):
    return gather(part), None


def gather_backward(_, gradient):
    """This device's part of the mean. It is all that the optimizer needs, and costs half of an all-reduce."""
    return (jaxring.reduce_scatter(gradient, "data", op="mean", tiled=True),)


gather.defvjp(gather_forward, gather_backward)


def loss(whole, vectors, x, target):
    # checkpoint: what `whole` gathers is dropped after the layer and gathered again in the backward pass.
    @jax.checkpoint
    def one(x, vector):
        return layer(whole(vector), x), None

    y, _ = jax.lax.scan(one, x, vectors)
    return jnp.mean((y - target) ** 2)


def step(whole, vectors, state, x, target):
    value, gradients = jax.value_and_grad(partial(loss, whole))(vectors, x, target)
    updates, state = optimizer.update(gradients, state)
    return value, optax.apply_updates(vectors, updates), state


def train(step, vectors):
    state = optimizer.init(vectors)
    random, losses = np.random.default_rng(1), []
    for _ in range(STEPS):
        x = random.standard_normal((ROWS, WIDTH), np.float32)
        value, vectors, state = step(vectors, state, x, np.sin(x))
        losses.append(float(value))
    return losses, vectors, state


def main():
    mesh = Mesh(jax.devices(), ("data",))
    vectors, unravel = init()
    count = vectors.shape[1]
    padded = np.pad(vectors, ((0, 0), (0, -count % mesh.size)))  # to parts of one length

    def fsdp_step(*args):
        value, vectors, state = step(lambda part: unravel(gather(part)[:count]), *args)
        return jaxring.all_reduce(value, "data", op="mean"), vectors, state

    # Adam's moments are divided as the parameters are; its count of steps is a number that all have.
    cut = P(None, "data")
    state_specs = jax.tree.map(lambda leaf: cut if np.ndim(leaf) else P(), optimizer.init(padded))
    sharded = jax.shard_map(
        fsdp_step,
        mesh=mesh,
        in_specs=(cut, state_specs, P("data"), P("data")),
        out_specs=(P(), cut, state_specs),
    )
    losses, parts, state = train(jax.jit(sharded), padded)
    expected_losses, expected, _ = train(jax.jit(partial(step, unravel)), vectors)

    np.testing.assert_allclose(losses, expected_losses, rtol=1e-4)
    expected = np.pad(expected, ((0, 0), (0, -count % mesh.size)))
    for shard in parts.addressable_shards:  # those of this process
        np.testing.assert_allclose(shard.data, expected[shard.index], rtol=1e-3, atol=1e-5)
    # No device has more than its share of anything.
    for leaf in jax.tree.leaves((parts, state)):
        assert leaf.ndim == 0 or leaf.addressable_shards[0].data.size * mesh.size == leaf.size
    if jax.process_index() == 0:
        print(f"{mesh.size} devices, {parts.size // mesh.size} of {parts.size} parameters each")
        print(f"loss {losses[0]:.4f} to {losses[-1]:.4f}; losses and parameters are those of one device")


if __name__ == "__main__":
    main()
