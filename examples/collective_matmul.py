"""Train a transformer block, tensor and sequence parallel, whose transfers hide behind its matrix products.

    JAX_NUM_CPU_DEVICES=4 python examples/collective_matmul.py
    jaxring run -n 2 --devices-per-process 2 examples/collective_matmul.py

Between the products each device has some positions of all sequences, with all of their width. all_gather_matmul gathers
the positions while it multiplies them by a device's columns; matmul_reduce_scatter multiplies by its rows and sums the
devices' products on the way back. The losses and the trained parameters are compared with those of one device.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring

LENGTH, ROWS, WIDTH, HEADS, STEPS, RATE = 16, 4, 32, 8, 5, 0.1
DEPTH = WIDTH // HEADS

# Each device has all of the norms, and its share of the heads and hidden units.
SPECS = {
    "norm_attention": P(),
    "qkv": P(None, "model"),
    "projection": P("model"),
    "norm_mlp": P(),
    "up": P(None, "model"),
    "down": P("model"),
}


def init():
    random = np.random.default_rng(0)

    def normal(*shape):
        return (random.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32)

    return {
        "norm_attention": np.ones(WIDTH, np.float32),
        "qkv": normal(WIDTH, HEADS * 3 * DEPTH),
        "projection": normal(WIDTH, WIDTH),
        "norm_mlp": np.ones(WIDTH, np.float32),
        "up": normal(WIDTH, 4 * WIDTH),
        "down": normal(4 * WIDTH, WIDTH),
    }


def batches():
    random = np.random.default_rng(1)
    for _ in range(STEPS):
        x = random.standard_normal((LENGTH, ROWS, WIDTH), np.float32)
        yield x, np.roll(x, 1, axis=0)  # to learn: the element before


def norm(x, gain):
    return gain * x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def attention(qkv):
    """[positions, rows, heads * 3 * depth] to [positions, rows, heads * depth]."""
    q, k, v = jnp.moveaxis(qkv.reshape(LENGTH, ROWS, -1, 3, DEPTH), 3, 0)
    scores = jnp.einsum("qbhk,sbhk->bhqs", q, k) / DEPTH**0.5
    causal = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9))
    return jnp.einsum("bhqs,sbhk->qbhk", weights, v).reshape(LENGTH, ROWS, -1)


def block(params, x, gathered_times, times_scattered):
    """``x`` is a device's positions. The two functions multiply by a matrix, of which it has a share."""
    y = gathered_times(norm(x, params["norm_attention"]), params["qkv"])
    x = x + times_scattered(attention(y), params["projection"])
    y = gathered_times(norm(x, params["norm_mlp"]), params["up"])
    return x + times_scattered(jax.nn.gelu(y), params["down"])


def divided_step(params, x, target):
    # All devices have the norms, each for its own positions: their gradients are added up where pcast is.
    def mine(params):
        params = params | {name: jaxring.pcast(params[name], "model") for name in ("norm_attention", "norm_mlp")}
        # Four chunks, so that there is something to overlap in matrices as small as these.
        gathered_times = partial(jaxring.all_gather_matmul, axis_name="model", chunks=len(x))
        times_scattered = partial(jaxring.matmul_reduce_scatter, axis_name="model", chunks=len(x))
        error = block(params, x, gathered_times, times_scattered) - target
        return jnp.mean(error**2) / jax.lax.axis_size("model")

    value, gradients = jax.value_and_grad(mine)(params)
    return jaxring.all_reduce(value, "model"), jax.tree.map(lambda p, g: p - RATE * g, params, gradients)


def single_step(params, x, target):
    def loss(params):
        return jnp.mean((block(params, x, jnp.matmul, jnp.matmul) - target) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(lambda p, g: p - RATE * g, params, gradients)


def train(step):
    params, losses = init(), []
    for x, target in batches():
        value, params = step(params, x, target)
        losses.append(float(value))
    return losses, params


def main():
    mesh = Mesh(jax.devices(), ("model",))
    specs = (SPECS, P("model"), P("model"))
    sharded = jax.shard_map(divided_step, mesh=mesh, in_specs=specs, out_specs=(P(), SPECS))
    losses, params = train(jax.jit(sharded))
    expected_losses, expected_params = train(jax.jit(single_step))

    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    for name, param in params.items():
        for shard in param.addressable_shards:  # those of this process
            np.testing.assert_allclose(shard.data, expected_params[name][shard.index], rtol=1e-4, atol=1e-6)
    if jax.process_index() == 0:
        print(f"{mesh.size} devices, {LENGTH // mesh.size} positions each: loss {losses[0]:.4f} to {losses[-1]:.4f}")
        print("losses and parameters are those of one device")


if __name__ == "__main__":
    main()
