"""Train with Adam's moments divided among the devices (ZeRO-1), and have the reduce-scatter apply Adam's step.

    JAX_NUM_CPU_DEVICES=4 python examples/zero_fused_adam.py
    jaxring run -n 2 --devices-per-process 2 examples/zero_fused_adam.py

Each device keeps its part of the parameters and of the moments. It gathers the parameters, computes gradients on its
part of the batch, and keeps its part of their mean. The step is an epilogue of that reduce-scatter: the mean goes from
the fold into the step without being written to memory. The trained parameters are compared with those of one device by
Optax.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring

ROWS, WIDTH, HIDDEN, STEPS, RATE = 32, 10, 25, 8, 1e-2


def loss(params, x, target):
    y = jax.nn.gelu(x @ params["up"]) @ params["down"]
    return jnp.mean((y - target) ** 2)


def init():
    random = np.random.default_rng(0)
    return {
        "up": random.standard_normal((WIDTH, HIDDEN), np.float32) / WIDTH**0.5,
        "down": random.standard_normal((HIDDEN, WIDTH), np.float32) / HIDDEN**0.5,
    }


def batches():
    random = np.random.default_rng(1)
    for _ in range(STEPS):
        x = random.standard_normal((ROWS, WIDTH), np.float32)
        yield x, np.sin(x)


def main():
    mesh = Mesh(jax.devices(), ("data",))
    vector, unravel = ravel_pytree(init())
    padded = np.pad(vector, (0, -vector.size % mesh.size))  # to parts of one length

    def step(number, part, mu, nu, x, target):
        whole = jaxring.all_gather(part, "data", tiled=True)
        gradient = jax.grad(lambda v: loss(unravel(v[: vector.size]), x, target))(whole)
        adam = jaxring.epilogues.adam(part, mu, nu, number, RATE)
        return jaxring.reduce_scatter(gradient, "data", op="mean", tiled=True, epilogue=adam)

    cut = P("data")
    train = jax.jit(
        jax.shard_map(step, mesh=mesh, in_specs=(P(), cut, cut, cut, cut, cut), out_specs=(cut, cut, cut)),
        donate_argnums=(1, 2, 3),  # the new parameters and moments take the memory of the old ones
    )
    sharding = jax.sharding.NamedSharding(mesh, cut)
    own = [jax.make_array_from_callback(padded.shape, sharding, v.__getitem__) for v in (padded, *[0 * padded] * 2)]
    for number, (x, target) in enumerate(batches(), 1):
        own = train(jnp.int32(number), *own, x, target)

    optimizer = optax.adam(RATE)
    params = init()
    state = optimizer.init(params)
    for x, target in batches():
        updates, state = optimizer.update(jax.grad(loss)(params, x, target), state)
        params = optax.apply_updates(params, updates)
    expected = np.pad(ravel_pytree(params)[0], (0, padded.size - vector.size))
    for shard in own[0].addressable_shards:  # those of this process
        np.testing.assert_allclose(shard.data, expected[shard.index], rtol=1e-3, atol=1e-5)
    if jax.process_index() == 0:
        print(f"{mesh.size} devices, {STEPS} steps: the parameters are those of one device")


if __name__ == "__main__":
    main()
