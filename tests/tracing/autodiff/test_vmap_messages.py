"""Messages and ragged parts: batches of them, and derivatives of the ragged."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxring
from tests.tracing.autodiff.ad_table import N, close, mesh, quick


def ranks_of_x(f, *args):
    def mapped(*values):
        return jax.tree.map(lambda leaf: leaf[None], f(*(v[0] for v in values)))

    return quick(jax.shard_map(mapped, mesh=mesh("x"), in_specs=P("x"), out_specs=P("x")))(*args)


def test_send_and_recv_carry_the_batch():
    x = np.arange(N * 6.0).reshape(N, 3, 2)
    ring = [(i, (i + 1) % N) for i in range(N)]

    def message(v):
        token = jaxring.send(v, "x", ring)
        twice, token = jaxring.recv(v, "x", ring, token)
        same, _ = jaxring.recv(v[0], "x", ring, jaxring.send(1.5 + 0 * v[0], "x", ring, token))
        return twice, same

    for axis in (0, 1):
        got, same = ranks_of_x(jax.vmap(message, in_axes=axis, out_axes=(axis, 0)), x)
        np.testing.assert_array_equal(got, np.roll(x, 1, axis=0))
        np.testing.assert_array_equal(same, np.full((N, x.shape[1 + axis]), 1.5))
    for f in (lambda v: jaxring.send(v, "i", ring), lambda v: jaxring.recv(v, "i", ring)):
        with pytest.raises(NotImplementedError, match=r"jaxring\.(send|recv): axis 'i'.*jaxring\.permute"):
            jax.vmap(f, axis_name="i")(x)


SIZES = np.array([[1, 0, 2, 1], [2, 1, 0, 0], [0, 3, 1, 1], [1, 1, 1, 2]])  # [from, to] in rows


def vectors(sizes):
    """input_offsets, send_sizes, output_offsets and recv_sizes of all ranks: parts lie one after the other."""
    lands = np.cumsum(sizes, 0) - sizes
    return np.cumsum(sizes, 1) - sizes, sizes, lands, sizes.T


def ragged(v, out, *vecs):
    return jaxring.ragged_all_to_all(v, out, *vecs, axis_name="x")


def ragged_reference(x, out, sizes):
    offsets, _, lands, _ = vectors(sizes)
    for i, j in np.ndindex(N, N):
        rows = x[i, offsets[i, j] : offsets[i, j] + sizes[i, j]]
        out = out.at[j, lands[i, j] : lands[i, j] + sizes[i, j]].set(rows)
    return out


def test_ragged_derivatives():
    rng = np.random.default_rng(0)
    x, out, t, u = (jnp.asarray(rng.normal(size=(N, rows, 3))) for rows in (6, 7, 6, 7))
    vecs = vectors(SIZES)

    def derivatives(f):
        def loss(v, o):
            return jnp.sum(f(jnp.sin(v), o * o) ** 2 * u)

        return {
            "value": f(x, out),
            "jvp": jax.jvp(f, (x, out), (t, u))[1],
            "jvp of one": jax.jvp(lambda v: f(v, out), (x,), (t,))[1],
            "vjp": jax.grad(loss, (0, 1))(x, out),
            "second": jax.jvp(jax.grad(loss, (0, 1)), (x, out), (t, u))[1],
        }

    for check_vma in (False, True):
        mapped = jax.shard_map(
            lambda v, o, *vecs: ragged(v[0], o[0], *(w[0] for w in vecs))[None],
            mesh=mesh("x"),
            in_specs=P("x"),
            out_specs=P("x"),
            check_vma=check_vma,
        )
        ours = quick(lambda m=mapped: derivatives(lambda v, o: m(v, o, *vecs)))()
        close(ours, quick(lambda: derivatives(lambda v, o: ragged_reference(v, o, SIZES)))())


def test_ragged_batches():
    rng = np.random.default_rng(0)
    x, out = rng.normal(size=(N, 6, 2, 3)), rng.normal(size=(N, 7, 2, 3))
    both = (SIZES, SIZES[::-1])
    shared = ranks_of_x(jax.vmap(ragged, in_axes=(1, 1, *[None] * 4), out_axes=1), x, out, *vectors(SIZES))
    close(shared, jnp.stack([ragged_reference(x[:, :, k], jnp.asarray(out[:, :, k]), SIZES) for k in (0, 1)], 2))
    own = [np.stack(pair, 1) for pair in zip(*map(vectors, both), strict=True)]
    apart = ranks_of_x(jax.vmap(ragged, in_axes=(1, 1, 0, 0, 0, 0), out_axes=1), x, out, *own)
    close(apart, jnp.stack([ragged_reference(x[:, :, k], jnp.asarray(out[:, :, k]), s) for k, s in enumerate(both)], 2))
    with pytest.raises(NotImplementedError, match=r"jaxring\.ragged_all_to_all: axis 'x'"):
        jax.vmap(ragged, axis_name="x")(x, out, *vectors(SIZES))
