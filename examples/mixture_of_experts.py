"""Train a mixture of experts, several experts per device, whose tokens travel by jaxring.moe.

    JAX_NUM_CPU_DEVICES=4 python examples/mixture_of_experts.py
    jaxring run -n 2 --devices-per-process 2 examples/mixture_of_experts.py

A router sends each token to two experts. As many tokens travel as each expert is sent: none is dropped, and nothing is
padded on the way. The losses and the trained parameters are compared with those of one device that has all experts.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring

EXPERTS, CHOICES, TOKENS, WIDTH, HIDDEN, STEPS, RATE = 8, 2, 64, 8, 16, 5, 0.3

SPECS = {"router": P(), "up": P("expert"), "down": P("expert")}


def route(router, x):
    """The experts of each token, and the weights of their answers: both [tokens, CHOICES]."""
    return jax.lax.top_k(jax.nn.softmax(x @ router), CHOICES)[::-1]


def experts_of_all(params, x):
    """What the tokens' experts answer: all experts answer all tokens, and most answers count nothing."""
    ids, weights = route(params["router"], x)
    share = jnp.zeros((len(x), EXPERTS)).at[jnp.arange(len(x))[:, None], ids].set(weights)
    hidden = jax.nn.gelu(jnp.einsum("td,edh->eth", x, params["up"]))
    return jnp.einsum("et,eth,ehd->td", share.T, hidden, params["down"])


def experts_elsewhere(params, x):
    """The same with ``x[tokens / devices, width]``, this device's tokens, and its share of the experts."""
    ids, weights = route(params["router"], x)
    sent = jaxring.moe.dispatch(x, ids, "expert", EXPERTS)
    # Rows for one expert lie together: ragged_dot multiplies those of each by its own matrix.
    hidden = jax.nn.gelu(jax.lax.ragged_dot(sent.tokens, params["up"], sent.counts))
    answers = jax.lax.ragged_dot(hidden, params["down"], sent.counts)
    return jaxring.moe.combine(answers, sent, weights)


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


def train(step):
    random = np.random.default_rng(0)
    params = {
        "router": random.standard_normal((WIDTH, EXPERTS), np.float32),
        "up": random.standard_normal((EXPERTS, WIDTH, HIDDEN), np.float32) / WIDTH**0.5,
        "down": random.standard_normal((EXPERTS, HIDDEN, WIDTH), np.float32) / HIDDEN**0.5,
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
    losses, params = train(jax.jit(step))
    expected_losses, expected_params = train(jax.jit(single_step))

    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    for name, param in params.items():
        for shard in param.addressable_shards:  # those of this process
            np.testing.assert_allclose(shard.data, expected_params[name][shard.index], rtol=1e-4, atol=1e-6)
    if jax.process_index() == 0:
        print(f"{EXPERTS} experts on {mesh.size} devices, {TOKENS} tokens: loss {losses[0]:.4f} to {losses[-1]:.4f}")
        print("losses and parameters are those of one device")


if __name__ == "__main__":
    main()
