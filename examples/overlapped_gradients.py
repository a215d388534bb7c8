"""Train data parallel, each gradient on its way while the backward pass computes those of the layers before it.

    JAX_NUM_CPU_DEVICES=4 python examples/overlapped_gradients.py
    jaxring run -n 2 --devices-per-process 2 examples/overlapped_gradients.py

overlap_gradients puts the gradients into buckets, in the order of the backward pass, and starts the all-reduce of each
bucket when it is full. The losses and the trained parameters are compared with those of one device.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring

ROWS, WIDTH, LAYERS, STEPS, RATE = 32, 64, 6, 5, 0.1


def init():
    random = np.random.default_rng(0)
    weights = random.standard_normal((LAYERS, WIDTH, WIDTH), np.float32) / WIDTH**0.5
    return [{"w": w, "b": np.zeros(WIDTH, np.float32)} for w in weights]


def batches():
    random = np.random.default_rng(1)
    for _ in range(STEPS):
        x = random.standard_normal((ROWS, WIDTH), np.float32)
        yield x, np.sin(x)


def loss(params, x, target):
    y = x
    for layer in params:
        y = y + jax.nn.gelu(y @ layer["w"] + layer["b"])
    return jnp.mean((y - target) ** 2)


def train_step(value_and_grad, params, x, target):
    value, gradients = value_and_grad(params, x, target)
    return value, jax.tree.map(lambda p, g: p - RATE * g, params, gradients)


def train(step):
    params, losses = init(), []
    for x, target in batches():
        value, params = step(params, x, target)
        losses.append(float(value))
    return losses, params


def main():
    mesh = Mesh(jax.devices(), ("data",))
    # A bucket for each layer: in a model of useful size the default, JAXRING_FUSION_BYTES, holds as much.
    ours = jaxring.overlap_gradients(jax.value_and_grad(loss), "data", bucket_bytes=4 * WIDTH * WIDTH)

    def divided(params, x, target):
        return train_step(ours, params, x, target)

    specs = (P(), P("data"), P("data"))
    losses, params = train(jax.jit(jax.shard_map(divided, mesh=mesh, in_specs=specs, out_specs=P())))

    def single(params, x, target):
        return train_step(jax.value_and_grad(loss), params, x, target)

    expected_losses, expected_params = train(jax.jit(single))
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    for param, expected in zip(jax.tree.leaves(params), jax.tree.leaves(expected_params), strict=True):
        np.testing.assert_allclose(param.addressable_data(0), expected, rtol=1e-4, atol=1e-6)
    if jax.process_index() == 0:
        print(f"{mesh.size} devices, {LAYERS} layers: loss {losses[0]:.4f} to {losses[-1]:.4f}")
        print("losses and parameters are those of one device")


if __name__ == "__main__":
    main()
