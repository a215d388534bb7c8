"""Programs with the collectives in them give what the same programs give with jax.lax's."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring.plan.algorithms import serving
from tests.tracing.autodiff.ad_programs import LAX, LOSSES, OURS, RING, W, X, data_parallel, sharded
from tests.tracing.autodiff.ad_table import N, close, mesh, quick


def over_ranks(ops, loss, check_vma, w_axis="x"):
    local, specs = functools.partial(loss, ops), (P(w_axis), P("x"))
    return jax.shard_map(local, mesh=mesh("x"), in_specs=specs, out_specs=P(), check_vma=check_vma)


@pytest.mark.parametrize("check_vma", [False, True])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda f: f.__name__)
@pytest.mark.sampled(3)
def test_gradients(loss, check_vma):
    """jit of grad of shard_map, and shard_map of grad."""

    def both(ops):
        outside = jax.value_and_grad(over_ranks(ops, loss, check_vma), (0, 1))
        inside = jax.shard_map(
            jax.grad(functools.partial(loss, ops), (0, 1)),
            mesh=mesh("x"),
            in_specs=P("x"),
            out_specs=P("x"),
            check_vma=check_vma,
        )
        return quick(lambda w, x: (outside(w, x), inside(w, x)))(W, X)

    close(both(OURS), both(LAX))


@pytest.mark.parametrize("check_vma", [False, True])
def test_replicated_parameters(check_vma):
    def both(ops):
        outside = jax.grad(over_ranks(ops, data_parallel, check_vma, None))
        inside = jax.shard_map(
            lambda w, x: jax.grad(functools.partial(data_parallel, ops))(w, x)[None],
            mesh=mesh("x"),
            in_specs=(P(), P("x")),
            out_specs=P("x"),
            check_vma=check_vma,
        )
        return quick(lambda w, x: (outside(w, x), inside(w, x)))(W, X)

    close(both(OURS), both(LAX))


@pytest.mark.parametrize("check_vma", [False, True])
@pytest.mark.sampled(2)
def test_higher_derivatives(check_vma):
    w, x = jnp.asarray(W[:4, :2]), jnp.asarray(X[:4, :4])

    def all_of_them(ops):
        f = over_ranks(ops, lambda ops, w, x: sharded_small(ops, w, x), check_vma)
        _, linear = jax.linearize(f, w, x)
        return {
            "hessian": jax.hessian(f)(w, x),
            "jacfwd of jacrev": jax.jacfwd(jax.jacrev(f, 1), 0)(w, x),
            "jacfwd": jax.jacfwd(f)(w, x),
            "linear": linear(w * 0.5, x),
            "transposed": jax.linear_transpose(linear, w, x)(jnp.float64(2.0)),
        }

    def run(ops):
        return quick(lambda: all_of_them(ops))()

    close(run(OURS), run(LAX))


def sharded_small(ops, w, x):
    y = jnp.sin(x @ ops.all_gather(w, "x", tiled=True))
    y = ops.psum(y, "x") * ops.psum_scatter(jnp.concatenate([y] * N), "x", tiled=True)
    return ops.psum(jnp.sum(y * ops.ppermute(y, "x", RING)), "x")


@pytest.mark.parametrize("check_vma", [False, True])
@pytest.mark.sampled(2)
def test_eagerly(check_vma):
    """Without any jit: values, and gradients outside and inside of shard_map."""

    def loss(ops, w, x):
        return ops.psum(jnp.sum(ops.all_gather(w, "x") * x), "x")

    def run(ops):
        f = over_ranks(ops, loss, check_vma)
        inside = jax.shard_map(
            jax.grad(functools.partial(loss, ops)),
            mesh=mesh("x"),
            in_specs=P("x"),
            out_specs=P("x"),
            check_vma=check_vma,
        )
        return f(w, x), jax.grad(f)(w, x), inside(w, x)

    w, x = W[0, :4], X[:4, :1]
    close(run(OURS), run(LAX))


def test_pmap():
    def run(ops):
        f = jax.pmap(jax.value_and_grad(functools.partial(sharded, ops), (0, 1)), axis_name="x")
        return f(W.reshape(N, 2, 8), X.reshape(N, 2, 8))

    close(run(OURS), run(LAX))


@pytest.mark.parametrize("check_vma", [False, True])
def test_partially_manual_meshes(check_vma):
    """One axis is left to the partitioner. lax differentiates it too, so both are compared."""

    def loss(ops, w, x):
        y = jnp.tanh(x @ ops.all_gather(w, "x", tiled=True))
        z = ops.psum_scatter(y.T @ y, "x", tiled=True)
        return ops.psum(jnp.sum(z**2), "x")

    def run(ops):
        f = jax.shard_map(
            functools.partial(loss, ops),
            mesh=mesh("x", "y"),
            in_specs=P("x"),
            out_specs=P(),
            axis_names={"x"},
            check_vma=check_vma,
        )
        return quick(jax.value_and_grad(f, (0, 1)))(W, X), quick(jax.vmap(f, in_axes=(None, 0)))(W, np.stack([X, -X]))

    close(run(OURS), run(LAX))


def test_explicit_axes_stay_outside():
    """An axis with explicit shardings that the region leaves: results keep their type in the dimensions that stay."""
    grid = jax.make_mesh((2, 2), ("x", "y"), devices=jax.devices()[:N])
    x = jax.device_put(X, jax.NamedSharding(grid, P("x", "y")))

    def f(v):
        gathered = jaxring.all_gather(v, "x")
        assert jax.typeof(gathered).sharding.spec == P(None, None, "y")
        return jaxring.reduce_scatter(jnp.sin(gathered), "x")

    mapped = jax.shard_map(f, mesh=grid, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    value, gradient = jax.jit(lambda v: (mapped(v), jax.grad(lambda u: jnp.sum(mapped(u) * X))(v)))(x)
    close(value, 2 * np.sin(X))
    close(gradient, 2 * np.cos(X) * X)


def test_donation():
    """A training step whose parameters are donated, many times."""
    f = over_ranks(OURS, data_parallel, True, None)
    g = over_ranks(LAX, data_parallel, True, None)
    step = jax.jit(lambda w, x: w - 0.1 * jax.grad(f)(w, x), donate_argnums=0)
    other = jax.jit(lambda w, x: w - 0.1 * jax.grad(g)(w, x))
    spread = jax.NamedSharding(mesh("x"), P())
    w, v = (jax.device_put(W, spread) for _ in range(2))
    for _ in range(5):
        before = w
        w, v = step(w, X), other(v, X)
        assert before.is_deleted()
    close(w, v)


def test_shapes_without_running():
    for check_vma in (False, True):
        ours, theirs = (
            jax.eval_shape(jax.value_and_grad(over_ranks(ops, sharded, check_vma), (0, 1)), W, X) for ops in (OURS, LAX)
        )
        assert ours == theirs
    shapes = jax.eval_shape(jax.vmap(lambda v: jaxring.all_gather(v, "i"), axis_name="i"), X)
    assert shapes.shape == (8, 8, 8)


def test_integers_have_no_tangents():
    def f(v):
        whole = jnp.arange(4) + lax.axis_index("x")
        kept = jaxring.all_reduce(whole, "x", "max") + jaxring.all_reduce(whole, "x", "xor")
        token = jaxring.barrier("x")
        some = jaxring.all_reduce(v > 0, "x", "or")
        return jaxring.all_reduce(v * jnp.sum(kept) + token + some, "x")

    def theirs(v):
        return lax.psum(v * 52.0, "x")

    def run(g):
        mapped = jax.shard_map(g, mesh=mesh("x"), in_specs=P("x"), out_specs=P(), check_vma=False)
        return quick(jax.grad(lambda v: jnp.sum(mapped(v))))(jnp.arange(4.0))

    whole = np.arange(4) + np.arange(N)[:, None]
    total = np.sum(whole.max(0) + np.bitwise_xor.reduce(whole, 0))
    close(run(f) * 52.0, run(theirs) * float(total))
    reduced = jax.jvp(
        lambda v: jax.vmap(lambda u: jaxring.all_reduce(u, "i"), axis_name="i")(v),
        (np.arange(4),),
        (np.zeros(4, jax.dtypes.float0),),
    )
    assert reduced[1].dtype == jax.dtypes.float0


def test_messages_refuse_differentiation():
    def f(v, hold=lambda u: u):
        token = jaxring.send(hold(v), "x", RING)
        return v * jaxring.recv(v, "x", RING, token)[0]

    def gradient(g):
        return jax.shard_map(jax.grad(lambda v: jnp.sum(g(v))), mesh=mesh("x"), in_specs=P("x"), out_specs=P("x"))

    with pytest.raises(NotImplementedError, match=r"jaxring\.send cannot be differentiated.*use jaxring\.permute"):
        gradient(f)(jnp.arange(4.0))
    close(jax.jit(gradient(functools.partial(f, hold=lax.stop_gradient)))(jnp.arange(4.0)), np.roll(np.arange(4.0), 1))


@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.sampled(2)
def test_ties_share(op):
    x = np.array([[1.0, 2.0], [1.0, 5.0], [0.0, 5.0], [1.0, 2.0]]) * (1 if op == "max" else -1)
    mapped = jax.shard_map(lambda v: jaxring.all_reduce(v, "x", op), mesh=mesh("x"), in_specs=P("x"), out_specs=P())
    close(jax.grad(lambda v: mapped(v).sum())(x), np.array([[1 / 3, 0], [1 / 3, 0.5], [0, 0.5], [1 / 3, 0]]))


@pytest.mark.parametrize("algorithm", ["tree", "ring", "direct", "halving_doubling"])
@pytest.mark.sampled(4)
def test_an_algorithm_that_does_not_serve_the_transpose_is_left_out(algorithm):
    """What was asked for is kept where it serves, and the tuner chooses elsewhere: a tree gathers nothing."""
    assert "tree" not in serving("all_gather")
    mapped = jax.shard_map(
        lambda v: jaxring.all_reduce(jaxring.all_reduce(v, "x", "prod", algorithm=algorithm) * v, "x"),
        mesh=mesh("x"),
        in_specs=P("x"),
        out_specs=P(),
        check_vma=False,
    )
    close(jax.grad(lambda v: mapped(v).sum())(np.ones((4, 2))), np.full((4, 2), 5.0))
