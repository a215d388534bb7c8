"""Each collective's value, JVP, VJP, second derivatives and vmap are those of jax.lax, for both check_vma modes."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from tests.tracing.autodiff.ad_table import CASES, N, close, data, mesh, quick


def derivatives(op, spread, x, t, ct):
    """What a program can make of ``op``, a function of a rank's value; ``spread`` runs such functions on all ranks."""

    def curved(v):
        return op(jnp.sin(v) + v * v)

    def pull(f):
        return jax.grad(lambda v, c: jnp.sum(f(v) * c))

    def twice(v, c, u):
        return jax.jvp(lambda w: pull(curved)(w, c), (v,), (u,))[1]

    def loss(v, c):
        return jnp.sum(spread(curved)(v) ** 2 * c)

    return {
        "value": spread(op)(x),
        "jvp inside": spread(lambda v, u: jax.jvp(op, (v,), (u,))[1])(x, t),
        "jvp outside": jax.jvp(spread(op), (x,), (t,))[1],
        "vjp inside": spread(pull(op))(x, ct),
        "vjp inside of one cotangent": spread(lambda v: pull(op)(v, ct[0]))(x),
        "vjp outside": jax.vjp(spread(op), x)[1](ct)[0],
        "forward over reverse inside": spread(twice)(x, ct, t),
        "reverse over reverse outside": jax.grad(lambda v: jnp.vdot(jax.grad(loss)(v, ct), t))(x),
        "vmap inside": spread(jax.vmap(op, in_axes=1, out_axes=1))(jnp.stack([x, t, x * t], 2)),
        "vmap outside": jax.vmap(spread(op), in_axes=-1)(jnp.stack([x, t, x * t], -1)),
        "vjp of vmap": jax.grad(lambda v: loss_of(jax.vmap(spread(curved), in_axes=-1)(v)))(jnp.stack([x, t], -1)),
    }


def loss_of(y):
    return jnp.sum(y**2 * jnp.arange(y.size).reshape(y.shape))


def operands(case, op):
    """Values, tangents and cotangents for N ranks."""
    x, t = data(case, N), np.random.default_rng(1).normal(size=(N, *case.shape))
    out = jax.eval_shape(jax.vmap(op, axis_name="x"), x)
    return x, t, np.random.default_rng(2).normal(size=out.shape)


@pytest.mark.parametrize("check_vma", [False, True])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(7)
def test_over_a_mesh(name, check_vma):
    case = CASES[name]

    def spread(f):
        def mapped(*args):
            return f(*(v[0] for v in args))[None]

        return jax.shard_map(mapped, mesh=mesh("x"), in_specs=P("x"), out_specs=P("x"), check_vma=check_vma)

    args = operands(case, lambda v: case.theirs(v, "x"))
    ours, theirs = (
        quick(functools.partial(derivatives, lambda v, f=f: f(v, "x"), spread))(*args) for f in (case.ours, case.theirs)
    )
    close(ours, theirs, name)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(7)
def test_over_a_vmapped_axis(name):
    """No mesh, and nothing native: the collective's own axis is vmapped, under jit and eagerly."""
    case = CASES[name]

    def spread(f):
        return jax.vmap(f, axis_name="x")

    other = case.vmapped or case.theirs
    args = operands(case, lambda v: other(v, "x"))
    ours = quick(functools.partial(derivatives, lambda v: case.ours(v, "x"), spread))
    theirs = quick(functools.partial(derivatives, lambda v: other(v, "x"), spread))
    close(ours(*args), theirs(*args), name)
    assert "custom-call" not in ours.lower(*args).as_text("hlo")
    close(spread(lambda v: case.ours(v, "x"))(args[0]), theirs(*args)["value"], name)
