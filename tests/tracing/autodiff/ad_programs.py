"""Programs with collectives in them, to be run with ours and with jax.lax's."""

from __future__ import annotations

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxring
from tests.tracing.autodiff.ad_table import N

OURS = types.SimpleNamespace(
    psum=jaxring.all_reduce,
    pmean=functools.partial(jaxring.all_reduce, op="mean"),
    all_gather=jaxring.all_gather,
    psum_scatter=jaxring.reduce_scatter,
    ppermute=jaxring.permute,
    all_to_all=jaxring.all_to_all,
    vary=jaxring.pcast,
)
LAX = types.SimpleNamespace(
    psum=lax.psum,
    pmean=lax.pmean,
    all_gather=lax.all_gather,
    psum_scatter=lax.psum_scatter,
    ppermute=lax.ppermute,
    all_to_all=lax.all_to_all,
    vary=lambda v, axis: lax.pcast(v, axis, to="varying") if axis not in jax.typeof(v).manual_axis_type.varying else v,
)
RING = [(i, (i + 1) % N) for i in range(N)]
W = np.random.default_rng(0).normal(size=(8, 8)) / 3
X = np.random.default_rng(1).normal(size=(8, 8))


def layer(ops, w, x):
    """A fully sharded layer: w in rows over the ranks, x too."""
    return jnp.tanh(x @ ops.all_gather(w, "x", tiled=True))


def data_parallel(ops, w, x):
    """The loss of a replicated w."""
    return ops.pmean(jnp.mean(jnp.tanh(x @ ops.vary(w, "x")) ** 2), "x")


def sharded(ops, w, x):
    """A loss that goes through every collective that lax has."""
    y = layer(ops, w, x)
    y = y + ops.ppermute(y, "x", RING)
    y = ops.all_to_all(y, "x", 1, 1, tiled=True) * y
    z = ops.psum_scatter(y @ y.T @ jnp.ones((2, 8)), "x", scatter_dimension=1, tiled=True)
    return ops.psum(jnp.sum(z**2), "x")


def scanned(ops, w, x):
    """A ring: x goes round while parts of w are used."""

    def step(carry, k):
        x, total = carry
        return (ops.ppermute(x, "x", RING), total + jnp.sin(x @ w.T) * k), ops.psum(jnp.sum(x * k), "x")

    (_, total), sums = lax.scan(step, (x, ops.vary(jnp.zeros((2, 2)), "x")), jnp.linspace(0.5, 1.0, N))
    return ops.psum(jnp.sum(total**2), "x") + jnp.sum(sums**2)


def remat(ops, w, x):
    inner = jax.checkpoint(lambda w, x: layer(ops, w, layer(ops, w, x)))
    return ops.psum(jnp.sum(inner(w, x) ** 2), "x")


def remat_saving_nothing(ops, w, x):
    return jax.checkpoint(functools.partial(sharded, ops), policy=jax.checkpoint_policies.nothing_saveable)(w, x)


def scan_of_remat(ops, w, x):
    def step(x, _):
        return jax.checkpoint(lambda v: layer(ops, w, v))(x), None

    return ops.psum(jnp.sum(lax.scan(step, x, length=3)[0] ** 2), "x")


def custom_vjp(ops, w, x):
    """Both ways written by hand, a collective in each."""

    @jax.custom_vjp
    def gathered(w):
        return ops.all_gather(w, "x", tiled=True)

    def forward(w):
        return gathered(w), jnp.sum(w)

    def backward(total, ct):
        return (ops.psum_scatter(ct, "x", tiled=True) * jnp.tanh(total),)

    gathered.defvjp(forward, backward)
    return ops.psum(jnp.sum(jnp.tanh(x @ gathered(w)) ** 2), "x")


def custom_jvp(ops, w, x):
    """A derivative of its own, which has a collective and is transposed."""

    @jax.custom_jvp
    def f(v):
        return ops.all_gather(v, "x", tiled=True)

    @f.defjvp
    def _jvp(primals, tangents):
        return f(*primals), 2.0 * ops.all_gather(tangents[0], "x", tiled=True)

    return ops.psum(jnp.sum(jnp.sin(x @ f(w)) ** 2), "x")


def with_jit_and_cond(ops, w, x):
    y = jax.jit(functools.partial(layer, ops))(w, x)
    big = ops.psum(jnp.sum(y), "x") > 0
    y = lax.cond(big, lambda v: ops.ppermute(v, "x", RING), lambda v: 2.0 * v, y)
    return ops.psum(jnp.sum(y**2), "x")


LOSSES = [sharded, scanned, remat, remat_saving_nothing, scan_of_remat, custom_vjp, custom_jvp, with_jit_and_cond]
