"""Train a mixture of experts, one expert per device, whose tokens travel by ragged_all_to_all.

    JAX_NUM_CPU_DEVICES=4 python examples/mixture_of_experts.py
    jaxring run -n 2 --devices-per-process 2 examples/mixture_of_experts.py

A router sends each token to one expert. As many tokens travel as each expert is sent: none is dropped, and nothing is
padded on the way. The losses and the trained parameters are compared with those of one device that has all experts.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring

TOKENS, WIDTH, HIDDEN, STEPS, RATE = 64, 8, 16, 5, 0.3

SPECS = {"router": P(), "up": P("expert"), "down": P("expert")}


def route(router, x):
    """The expert of each token and the weight of its answer."""
    probabilities = jax.nn.softmax(x @ router)
    return probabilities.argmax(axis=-1), probabilities.max(axis=-1)


def experts_of_all(params, x):
    """What the tokens' experts answer, with all experts at hand."""
    expert, weight = route(params["router"], x)
    hidden = jax.nn.gelu(jnp.einsum("td,tdh->th", x, params["up"][expert]))
    return weight[:, None] * jnp.einsum("th,thd->td", hidden, params["down"][expert])


def experts_elsewhere(params, x):
    """The same with ``x[tokens / devices, width]``, this device's tokens, and one expert on each device."""
    size, rank = jax.lax.axis_size("expert"), jax.lax.axis_index("expert")
    expert, weight = route(params["router"], x)

    order = jnp.argsort(expert)  # tokens for one expert lie together
    counts = jnp.bincount(expert, length=size).astype(jnp.int32)
    # Who sends how many to whom: [from, to]. Tokens lie at their expert in the order of the devices that they are from.
    table = jaxring.all_gather(counts, "expert")
    starts = jnp.cumsum(counts) - counts
    positions = jnp.cumsum(table, axis=0) - table

    # Room for all tokens, in case that all go to one expert.
    room = jnp.zeros((size * len(x), WIDTH))
    arrived = jaxring.ragged_all_to_all(
        x[order], room, starts, counts, positions[rank], table[:, rank], axis_name="expert"
    )
    answers = jax.nn.gelu(arrived @ params["up"][0]) @ params["down"][0]

    # Back by the same table: what came from a device goes there, to where its tokens for this expert begin.
    begins = jnp.cumsum(table, axis=1) - table
    returned = jaxring.ragged_all_to_all(
        answers,
        jnp.zeros_like(x),
        positions[:, rank],
        table[:, rank],
        begins[:, rank],
        counts,
        axis_name="expert",
    )
    return weight[:, None] * jnp.zeros_like(x).at[order].set(returned)


def loss(experts, params, x, target):
    return jnp.mean((x + experts(params, x) - target) ** 2)


def descend(params, gradients):
    return jax.tree.map(lambda p, g: p - RATE * g, params, gradients)


def divided_step(params, x, target):
    # All devices have the router: its gradients by their tokens are added up where pcast is. An expert has been sent
    # the tokens of all devices, so its gradient is a sum over these as well. Each device's share of the loss is the
    # mean over its tokens, divided by the number of devices.
    def mine(params):
        params = params | {"router": jaxring.pcast(params["router"], "expert")}
        return loss(experts_elsewhere, params, x, target) / jax.lax.axis_size("expert")

    value, gradients = jax.value_and_grad(mine)(params)
    return jaxring.all_reduce(value, "expert"), descend(params, gradients)


def single_step(params, x, target):
    value, gradients = jax.value_and_grad(lambda params: loss(experts_of_all, params, x, target))(params)
    return value, descend(params, gradients)


def train(step, experts):
    random = np.random.default_rng(0)
    params = {
        "router": random.standard_normal((WIDTH, experts), np.float32),
        "up": random.standard_normal((experts, WIDTH, HIDDEN), np.float32) / WIDTH**0.5,
        "down": random.standard_normal((experts, HIDDEN, WIDTH), np.float32) / HIDDEN**0.5,
    }
    losses = []
    for _ in range(STEPS):
        x = random.standard_normal((TOKENS, WIDTH), np.float32)
        value, params = step(params, x, np.abs(x))
        losses.append(float(value))
    return losses, params


def main():
    mesh = Mesh(jax.devices(), ("expert",))
    specs = (SPECS, P("expert"), P("expert"))
    step = jax.shard_map(divided_step, mesh=mesh, in_specs=specs, out_specs=(P(), SPECS))
    losses, params = train(jax.jit(step), mesh.size)
    expected_losses, expected_params = train(jax.jit(single_step), mesh.size)

    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    for name, param in params.items():
        for shard in param.addressable_shards:  # those of this process
            np.testing.assert_allclose(shard.data, expected_params[name][shard.index], rtol=1e-4, atol=1e-6)
    if jax.process_index() == 0:
        print(f"{mesh.size} experts, {TOKENS} tokens: loss {losses[0]:.4f} to {losses[-1]:.4f}")
        print("losses and parameters are those of one device")


if __name__ == "__main__":
    main()
