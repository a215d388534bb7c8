"""Data-parallel training with the same bits on any number of devices, also after a restart on another number.

    JAX_NUM_CPU_DEVICES=8 python examples/reproducible_training.py
    jaxring run -n 2 --devices-per-process 2 examples/reproducible_training.py

Two things make gradients depend on the number of devices. One is the order in which they are summed:
`jaxring.reproducible_sum` gives the exact sum, rounded once, which has no order. The other is what JAX itself computes:
a matrix product over 16 rows may round otherwise than two over 8 rows each, so what is summed must be computed in
pieces of one shape, however many of them a device has. Here the batch is cut into groups of two examples, and
`jax.lax.map` computes the gradient of one group after another. (`jax.vmap` over groups would be one large product
again. A loop over a single group may be compiled as no loop, so each device has at least two groups.) What follows the
sum, the optimizer's step, is computed by all devices alike from the same values.

The parameters are compared, bit for bit, with those of one device without jaxring, where Python's `math.fsum` adds the
groups' gradients.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring

GROUPS, ROWS, INPUTS, HIDDEN = 16, 2, 12, 32  # a batch is GROUPS groups of ROWS examples
STEPS, RATE, MOMENTUM = 6, 0.05, 0.9


def initial():
    """Parameters and momentum, which a checkpoint would hold."""
    rng = np.random.default_rng(0)
    shapes = {"w1": (INPUTS, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, 1)}
    parameters = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    return parameters, jax.tree.map(np.zeros_like, parameters)


def batch(step):
    """The global batch of a step, the same on any number of devices: [groups, rows, ...]."""
    x = np.random.default_rng(step).normal(size=(GROUPS, ROWS, INPUTS)).astype(np.float32)
    return x, np.sin(x.sum(-1, keepdims=True)).astype(np.float32)


def loss(parameters, x, y):
    """Of one group, summed over its examples."""
    hidden = jnp.tanh(x @ parameters["w1"] + parameters["b1"])
    return jnp.sum((hidden @ parameters["w2"] - y) ** 2)


def gradients_of_groups(parameters, x, y):
    """One after another; the first dimension of each counts groups."""
    return jax.lax.map(lambda group: jax.grad(loss)(parameters, *group), (x, y))


def update(state, total):
    """A step of SGD with momentum by the sum of all groups' gradients."""
    parameters, momentum = state
    momentum = jax.tree.map(lambda m, g: MOMENTUM * m + g / (GROUPS * ROWS), momentum, total)
    return jax.tree.map(lambda p, m: p - RATE * m, parameters, momentum), momentum


def train(state, steps, devices):
    """Trains on these devices, each of which has its part of the groups of every batch."""
    mesh = Mesh(np.array(devices), ("data",))
    # The gradients are this device's own: without types, JAX sums nothing by itself.
    gradients = jax.shard_map(
        lambda p, x, y: jaxring.reproducible_sum(gradients_of_groups(p, x, y), "data", 0),
        mesh=mesh,
        in_specs=(P(), P("data"), P("data")),
        out_specs=P(),
        check_vma=False,
    )
    # The step is a program of its own, so that it is compiled alike for any number of devices.
    gradients, step = jax.jit(gradients), jax.jit(update)
    everywhere, cut = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))

    def put(tree, sharding):
        return jax.tree.map(lambda a: jax.make_array_from_callback(a.shape, sharding, a.__getitem__), tree)

    state = put(state, everywhere)
    for number in steps:
        state = step(state, gradients(state[0], *put(batch(number), cut)))
    return jax.tree.map(lambda a: np.asarray(a.addressable_shards[0].data), state)


def train_alone(state, steps):
    """The same on one device without jaxring. fsum's sums are exact, and here their double is a float's or close."""
    gradients, step = jax.jit(gradients_of_groups), jax.jit(update)
    exact = np.frompyfunc(lambda *terms: math.fsum(terms), GROUPS, 1)
    for number in steps:
        parts = jax.tree.map(np.asarray, gradients(state[0], *batch(number)))
        state = step(state, jax.tree.map(lambda g: np.asarray(exact(*g), np.float64).astype(np.float32), parts))
    return jax.tree.map(np.asarray, state)


def same_bits(what, state, expected):
    jax.tree.map(functools.partial(np.testing.assert_array_equal, strict=True, err_msg=what), state, expected)
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        assert one.tobytes() == other.tobytes(), what


def main():
    devices = jax.devices()
    counts = [n for n in (1, 2, 4, 8) if n <= len(devices)] if jax.process_count() == 1 else [len(devices)]
    expected = train_alone(initial(), range(STEPS))
    for n in counts:
        same_bits(f"on {n} devices", train(initial(), range(STEPS), devices[:n]), expected)
    # A job that stops halfway on all devices, and goes on with the state on the smallest number.
    half = STEPS // 2
    stopped = train(initial(), range(half), devices)
    same_bits("after a restart", train(stopped, range(half, STEPS), devices[: counts[0]]), expected)
    if jax.process_index() == 0:
        text = ", ".join(map(str, counts))
        print(f"{STEPS} steps on {text} devices, and with a restart: all bits are those of one device")


if __name__ == "__main__":
    main()
