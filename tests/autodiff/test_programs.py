"""Programs with the collectives in them give what the same programs give with jax.lax's."""

from __future__ import annotations

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ad_table import N, close, mesh, quick
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring.plan.algorithms import serving

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


def over_ranks(ops, loss, check_vma, w_axis="x"):
    local, specs = functools.partial(loss, ops), (P(w_axis), P("x"))
    return jax.shard_map(local, mesh=mesh("x"), in_specs=specs, out_specs=P(), check_vma=check_vma)


@pytest.mark.parametrize("check_vma", [False, True])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda f: f.__name__)
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
def test_ties_share(op):
    x = np.array([[1.0, 2.0], [1.0, 5.0], [0.0, 5.0], [1.0, 2.0]]) * (1 if op == "max" else -1)
    mapped = jax.shard_map(lambda v: jaxring.all_reduce(v, "x", op), mesh=mesh("x"), in_specs=P("x"), out_specs=P())
    close(jax.grad(lambda v: mapped(v).sum())(x), np.array([[1 / 3, 0], [1 / 3, 0.5], [0, 0.5], [1 / 3, 0]]))


def test_an_algorithm_that_does_not_serve_the_transpose_is_left_out():
    """What was asked for is kept where it serves, and the tuner chooses elsewhere: a tree gathers nothing."""
    assert "tree" not in serving("all_gather")
    for algorithm in ("ring", "tree", "direct", "halving_doubling"):
        mapped = jax.shard_map(
            lambda v, a=algorithm: jaxring.all_reduce(jaxring.all_reduce(v, "x", "prod", algorithm=a) * v, "x"),
            mesh=mesh("x"),
            in_specs=P("x"),
            out_specs=P(),
            check_vma=False,
        )
        close(jax.grad(lambda v, f=mapped: f(v).sum())(np.ones((4, 2))), np.full((4, 2), 5.0))
