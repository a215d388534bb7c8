"""Train on a mesh of two axes, data parallel over one and tensor parallel over the other, with groups within an axis.

    JAX_NUM_CPU_DEVICES=8 python examples/mesh_2d.py
    jaxring run -n 2 --devices-per-process 4 examples/mesh_2d.py

A collective over one axis of the mesh runs among the devices that differ in that axis only, in all of these groups at
once. Smaller groups are named by ``axis_index_groups``: here a batch normalisation takes its statistics over pairs of
data-parallel devices. The losses and the trained parameters are compared with those of one device.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring

DATA, MODEL, TOGETHER = 4, 2, 2  # devices along the axes, and how many of "data" share statistics
ROWS, WIDTH, HIDDEN, STEPS, RATE, LARGEST = 32, 8, 32, 5, 0.2, 0.5

SPECS = {"up": P(None, "model"), "down": P("model")}
PAIRS = [list(range(first, first + TOGETHER)) for first in range(0, DATA, TOGETHER)]


def normalised(x, mean):
    """Each column of ``x``; ``mean`` takes the mean over the rows, of whichever devices."""
    centred = x - mean(x)
    return centred * jax.lax.rsqrt(mean(centred**2) + 1e-5)


def model(params, x, mean, divide, total):
    hidden = jax.nn.gelu(divide(normalised(x, mean)) @ params["up"])
    return total(hidden @ params["down"])


def descend(params, gradients, square):
    """SGD, with gradients whose norm over all parameters is at most LARGEST. ``square`` is the norm's square."""
    scale = RATE * jnp.minimum(1, LARGEST * jax.lax.rsqrt(square))
    return jax.tree.map(lambda p, g: p - scale * g, params, gradients)


def squares(gradients):
    return sum(jnp.sum(g**2) for g in gradients.values())


def mesh_step(params, x, target):
    def mean_of_pair(x):
        return jaxring.all_reduce(x.mean(axis=0), "data", op="mean", axis_index_groups=PAIRS)

    def loss(params, x, target):  # of this device's rows
        # Forward, the devices of "model" go separate ways at `divide` and add up at `total`; backward, the reverse.
        def divide(x):
            return jaxring.pcast(x, "model")

        def total(x):
            return jaxring.all_reduce(x, "model")

        y = model(params, x, mean_of_pair, divide, total)
        return jnp.mean((y - target) ** 2)

    value, gradients = jaxring.data_parallel.value_and_grad(loss, "data")(params, x, target)
    # Along "model" each device has other parameters, and along "data" the same.
    return value, descend(params, gradients, jaxring.all_reduce(squares(gradients), "model"))


def single_step(params, x, target):
    def loss(params):
        # The rows of a pair of devices are neighbours.
        parts = jnp.split(x, DATA // TOGETHER)
        y = [model(params, part, lambda x: x.mean(axis=0), lambda x: x, lambda x: x) for part in parts]
        return jnp.mean((jnp.concatenate(y) - target) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    return value, descend(params, gradients, squares(gradients))


def train(step):
    random = np.random.default_rng(0)
    params = {
        "up": random.standard_normal((WIDTH, HIDDEN), np.float32) / WIDTH**0.5,
        "down": random.standard_normal((HIDDEN, WIDTH), np.float32) / HIDDEN**0.5,
    }
    losses = []
    for _ in range(STEPS):
        x = random.standard_normal((ROWS, WIDTH), np.float32)
        value, params = step(params, x, np.abs(x))
        losses.append(float(value))
    return losses, params


def main():
    mesh = Mesh(np.array(jax.devices()).reshape(DATA, MODEL), ("data", "model"))
    step = jax.shard_map(mesh_step, mesh=mesh, in_specs=(SPECS, P("data"), P("data")), out_specs=(P(), SPECS))
    losses, params = train(jax.jit(step))
    expected_losses, expected_params = train(jax.jit(single_step))

    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    for name, param in params.items():
        for shard in param.addressable_shards:  # those of this process
            np.testing.assert_allclose(shard.data, expected_params[name][shard.index], rtol=1e-4, atol=1e-6)
    if jax.process_index() == 0:
        print(f"{DATA} x {MODEL} devices, statistics over {PAIRS}: loss {losses[0]:.4f} to {losses[-1]:.4f}")
        print("losses and parameters are those of one device")


if __name__ == "__main__":
    main()
