"""Train on some processes, sample on others: parameters go from one mesh to the other by `jaxring.reshard`.

    JAX_NUM_CPU_DEVICES=4 python examples/reshard_sampler.py
    jaxring run -n 2 --devices-per-process 2 examples/reshard_sampler.py

The first half of the devices trains a model whose parameters are cut by rows (FSDP). After some steps the second half
gets them cut by columns, as tensor parallelism has them, and computes the model's answers. Both are compared with a
single device, which does the same.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring

WIDTH, ROWS, ROUNDS, STEPS = 64, 32, 3, 4


def init():
    keys = jax.random.split(jax.random.key(0), 2)
    return {
        "up": jax.random.normal(keys[0], (WIDTH, 2 * WIDTH)) / WIDTH**0.5,
        "down": jax.random.normal(keys[1], (2 * WIDTH, WIDTH)) / WIDTH**0.5,
    }


def apply(params, x):
    return jnp.tanh(x @ params["up"]) @ params["down"]


def batch(step):
    x = np.random.default_rng(step).standard_normal((ROWS, WIDTH)).astype(np.float32)
    return x, np.sin(x)


@jax.jit
def reference_step(params, x, y):
    gradients = jax.grad(lambda p: jnp.mean((apply(p, x) - y) ** 2))(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)


def trainer(mesh):
    """A step on parameters that are cut by rows, each rank with its rows of the batch."""

    @partial(jax.shard_map, mesh=mesh, in_specs=(P("fsdp"), P("fsdp"), P("fsdp")), out_specs=P("fsdp"), check_vma=False)
    def step(params, x, y):
        whole = jaxring.all_gather(params, "fsdp", tiled=True)
        gradients = jax.grad(lambda p: jnp.mean((apply(p, x) - y) ** 2))(whole)
        mine = jaxring.reduce_scatter(gradients, "fsdp", "mean", tiled=True)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, mine)

    return jax.jit(step)


def sampler(mesh):
    """Answers by tensor parallelism: "up" is cut by columns, "down" by rows."""

    @partial(jax.shard_map, mesh=mesh, in_specs=({"up": P(None, "tp"), "down": P("tp")}, P()), out_specs=P())
    def answer(params, x):
        return jaxring.all_reduce(apply(params, x), "tp")

    return jax.jit(answer)


def main():
    devices = np.array(sorted(jax.devices(), key=lambda d: (d.process_index, d.id)))
    half = len(devices) // 2
    training, sampling = Mesh(devices[:half], ("fsdp",)), Mesh(devices[half:], ("tp",))
    by_rows = NamedSharding(training, P("fsdp"))
    for_sampler = {"up": NamedSharding(sampling, P(None, "tp")), "down": NamedSharding(sampling, P("tp"))}
    trains, samples = bool(by_rows.addressable_devices), bool(for_sampler["up"].addressable_devices)
    same = init()
    if trains:
        params = jax.device_put(same, by_rows)
        step = trainer(training)
    else:  # this process has no part of them, but knows where they are
        params = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, p.dtype, sharding=by_rows), same)
    speaks = devices[half].process_index == jax.process_index()  # of the samplers, the first process
    number = 0
    for round_ in range(ROUNDS):
        for _ in range(STEPS):
            data = batch(number)
            same = reference_step(same, *data)
            if trains:
                params = step(params, *(jax.device_put(v, by_rows) for v in data))
            number += 1
        there = jaxring.reshard(params, for_sampler)
        if samples:
            questions = batch(1000 + round_)[0]
            found = sampler(sampling)(there, jax.device_put(questions, NamedSharding(sampling, P())))
            error = float(np.max(np.abs(np.asarray(found.addressable_shards[0].data) - apply(same, questions))))
            assert error < 1e-4, f"an answer of the sampler differs by {error:.2g} from that of one device"
            if speaks:
                print(f"round {round_}: largest difference of an answer {error:.2g}", flush=True)
    if speaks:
        print("what the sampler answers is that of one device")


if __name__ == "__main__":
    main()
