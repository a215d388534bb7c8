"""Train a transformer block whose heads and hidden units are divided among the devices (tensor parallel, as Megatron).

    JAX_NUM_CPU_DEVICES=4 python examples/tensor_parallel.py
    jaxring run -n 2 --devices-per-process 2 examples/tensor_parallel.py

Attention and MLP each need one all-reduce forward and one backward. The losses and the trained parameters are compared
with those of the same block on one device.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring

ROWS, LENGTH, WIDTH, HEADS, STEPS, RATE = 4, 16, 32, 8, 5, 0.1

# Each device has all of the norms, and its share of the heads and hidden units.
SPECS = {
    "norm_attention": P(),
    "qkv": P(None, None, "model"),
    "projection": P("model"),
    "norm_mlp": P(),
    "up": P(None, "model"),
    "down": P("model"),
}


def init():
    random = np.random.default_rng(0)

    def normal(*shape, fan_in):
        return (random.standard_normal(shape) / fan_in**0.5).astype(np.float32)

    return {
        "norm_attention": np.ones(WIDTH, np.float32),
        "qkv": normal(3, WIDTH, HEADS, WIDTH // HEADS, fan_in=WIDTH),
        "projection": normal(HEADS, WIDTH // HEADS, WIDTH, fan_in=WIDTH),
        "norm_mlp": np.ones(WIDTH, np.float32),
        "up": normal(WIDTH, 4 * WIDTH, fan_in=WIDTH),
        "down": normal(4 * WIDTH, WIDTH, fan_in=4 * WIDTH),
    }


def batches():
    random = np.random.default_rng(1)
    for _ in range(STEPS):
        x = random.standard_normal((ROWS, LENGTH, WIDTH), np.float32)
        yield x, np.roll(x, 1, axis=1)  # to learn: the element before


def norm(x, gain):
    return gain * x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def attention(x, qkv, projection):
    q, k, v = jnp.einsum("btd,cdhk->cbthk", x, qkv)
    scores = jnp.einsum("bqhk,bshk->bhqs", q, k) / q.shape[-1] ** 0.5
    causal = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9))
    return jnp.einsum("bhqs,bshk,hkd->bqd", weights, v, projection)


def mlp(x, up, down):
    return jax.nn.gelu(x @ up) @ down


def block(params, x, divide, total):
    """``divide`` is where the devices go separate ways, ``total`` where their results are added up."""
    y = divide(norm(x, params["norm_attention"]))
    x = x + total(attention(y, params["qkv"], params["projection"]))
    y = divide(norm(x, params["norm_mlp"]))
    return x + total(mlp(y, params["up"], params["down"]))


def train_step(divide, total, params, x, target):
    def loss(params):
        return jnp.mean((block(params, x, divide, total) - target) ** 2)

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
    # pcast does nothing forward; backward it adds up the gradients of the devices' shares. all_reduce is the reverse.
    step = partial(train_step, lambda x: jaxring.pcast(x, "model"), lambda x: jaxring.all_reduce(x, "model"))
    sharded = jax.shard_map(step, mesh=mesh, in_specs=(SPECS, P(), P()), out_specs=(P(), SPECS))
    losses, params = train(jax.jit(sharded))

    same = partial(train_step, lambda x: x, lambda x: x)
    expected_losses, expected_params = train(jax.jit(same))

    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    for name, param in params.items():
        for shard in param.addressable_shards:  # those of this process
            np.testing.assert_allclose(shard.data, expected_params[name][shard.index], rtol=1e-4, atol=1e-6)
    if jax.process_index() == 0:
        print(f"{mesh.size} devices, {HEADS // mesh.size} heads each: loss {losses[0]:.4f} to {losses[-1]:.4f}")
        print("losses and parameters are those of one device")


if __name__ == "__main__":
    main()
