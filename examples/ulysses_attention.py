"""Attention over a sequence that is divided among the devices, with all heads exchanged by all_to_all (Ulysses).

    JAX_NUM_CPU_DEVICES=4 python examples/ulysses_attention.py
    jaxring run -n 2 --devices-per-process 2 examples/ulysses_attention.py

Outside of attention each device has its positions of all heads; within it, all positions of its heads. It moves less
data than ring attention, but the number of devices has to divide that of the heads, and one device has the scores of
a head for the whole sequence. The output and the gradients are compared with those on one device.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring

LENGTH, WIDTH, HEADS = 64, 32, 8


def attention(q, k, v):
    """Causal; ``[length, heads, depth]``."""
    scores = jnp.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
    causal = jnp.tril(jnp.ones(scores.shape[1:], bool))
    return jnp.einsum("hqk,khd->qhd", jax.nn.softmax(jnp.where(causal, scores, -1e9)), v)


def ulysses(q, k, v, axis):
    # [positions here, all heads, depth] -> [all positions, heads here, depth]; the three share one call.
    q, k, v = jaxring.all_to_all((q, k, v), axis, split_axis=1, concat_axis=0, tiled=True)
    return jaxring.all_to_all(attention(q, k, v), axis, split_axis=0, concat_axis=1, tiled=True)


def layer(params, x, attend):
    """All but attention works on each position by itself, so a device needs nothing of the others for it."""
    q, k, v = jnp.einsum("td,cdhk->cthk", x, params["qkv"])
    return x + jnp.einsum("thk,hkd->td", attend(q, k, v), params["projection"])


def divided_loss(params, x):
    # Of this device's positions. data_parallel.value_and_grad takes the mean of it and of its gradients.
    return jnp.mean(layer(params, x, lambda q, k, v: ulysses(q, k, v, "sequence")) ** 2)


def single_loss(params, x):
    return jnp.mean(layer(params, x, attention) ** 2)


def main():
    mesh = Mesh(jax.devices(), ("sequence",))
    random = np.random.default_rng(0)
    depth = WIDTH // HEADS
    params = {
        "qkv": random.standard_normal((3, WIDTH, HEADS, depth), np.float32) / WIDTH**0.5,
        "projection": random.standard_normal((HEADS, depth, WIDTH), np.float32) / WIDTH**0.5,
    }
    x = random.standard_normal((LENGTH, WIDTH), np.float32)

    step = jaxring.data_parallel.value_and_grad(divided_loss, "sequence")
    sharded = jax.shard_map(step, mesh=mesh, in_specs=(P(), P("sequence")), out_specs=P())
    result = jax.jit(sharded)(params, x)
    expected = jax.jit(jax.value_and_grad(single_loss))(params, x)
    # Each process has all of the result, since it is the same on all devices.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), result, expected)
    if jax.process_index() == 0:
        print(f"{LENGTH} positions and {HEADS} heads on {mesh.size} devices: loss {float(result[0]):.6f}")
        print("loss and gradients are those of one device")


if __name__ == "__main__":
    main()
