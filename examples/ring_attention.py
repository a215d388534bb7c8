"""Attention over a sequence that is divided among the devices, whose keys and values go round a ring (ring attention).

    JAX_NUM_CPU_DEVICES=4 python examples/ring_attention.py
    jaxring run -n 2 --devices-per-process 2 examples/ring_attention.py

No device ever holds more than one block of keys, and no score matrix is larger than a block by a block. The output and
the gradients are compared with those of plain attention on one device.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring

LENGTH, HEADS, DEPTH = 64, 4, 8
MASKED = -1e30  # of a score; finite, so that a row without any other has a maximum


def attend(q, k, v, q_positions, k_positions):
    """Causal attention to one block of keys, before the division: largest score, sum of weights, weighted values."""
    scores = jnp.einsum("qhd,khd->hqk", q, k) / DEPTH**0.5
    scores = jnp.where(q_positions[:, None] >= k_positions, scores, MASKED)
    largest = scores.max(axis=-1)
    weights = jnp.exp(scores - largest[..., None])
    return largest, weights.sum(axis=-1), jnp.einsum("hqk,khd->hqd", weights, v)


def merge(one, other):
    """What `attend` gives for the keys of both. Where one has nothing but masked scores, its factor is zero."""
    largest = jnp.maximum(one[0], other[0])
    factors = [jnp.exp(part[0] - largest) for part in (one, other)]
    weights = sum(f * part[1] for f, part in zip(factors, (one, other), strict=True))
    values = sum(f[..., None] * part[2] for f, part in zip(factors, (one, other), strict=True))
    return largest, weights, values


def ring_attention(q, k, v, axis):
    """``q``, ``k``, ``v`` are this device's positions, ``[length / devices, heads, depth]``; so is the result."""
    size, rank = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    ring = [(i, (i + 1) % size) for i in range(size)]
    positions = jnp.arange(len(q))
    here = rank * len(q) + positions

    def one_round(number, carry):
        k, v, parts = carry
        k, v = jaxring.permute((k, v), axis, ring)  # one call for both
        origin = (rank - number) % size
        return k, v, merge(parts, attend(q, k, v, here, origin * len(q) + positions))

    # A device begins with its own keys, where every query has at least itself to attend to.
    carry = k, v, attend(q, k, v, here, here)
    _, _, (_, weights, values) = jax.lax.fori_loop(1, size, one_round, carry)
    return jnp.moveaxis(values / weights[..., None], 0, 1)


def full_attention(q, k, v):
    scores = jnp.einsum("qhd,khd->hqk", q, k) / DEPTH**0.5
    causal = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    return jnp.einsum("hqk,khd->qhd", jax.nn.softmax(jnp.where(causal, scores, MASKED)), v)


def with_gradients(attention):
    """Output, and gradients of some function of it."""

    def run(q, k, v, cotangent):
        y, pull = jax.vjp(attention, q, k, v)
        return y, *pull(cotangent)

    return run


def main():
    mesh = Mesh(jax.devices(), ("sequence",))
    arrays = np.random.default_rng(0).standard_normal((4, LENGTH, HEADS, DEPTH), np.float32)
    cut = P("sequence")

    divided = with_gradients(lambda q, k, v: ring_attention(q, k, v, "sequence"))
    results = jax.jit(jax.shard_map(divided, mesh=mesh, in_specs=cut, out_specs=cut))(*arrays)
    expected = jax.jit(with_gradients(full_attention))(*arrays)

    for what, result, right in zip(("output", "dq", "dk", "dv"), results, expected, strict=True):
        for shard in result.addressable_shards:  # those of this process
            np.testing.assert_allclose(shard.data, right[shard.index], rtol=1e-4, atol=1e-5, err_msg=what)
    if jax.process_index() == 0:
        print(f"{LENGTH} positions on {mesh.size} devices: output and gradients are those of one device")


if __name__ == "__main__":
    main()
