"""Types under check_vma=True: a gradient's program has our collectives and none of XLA's."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxring
from tests.tracing.autodiff.ad_table import CASES, N, close, data, mesh, quick

# JAX's own collectives, and XLA's. Ours are jaxring_<name>. JAX's casts of constants (pvary) move nothing.
THEIRS = re.compile(r"\b(psum\w*|all_gather\w*|reduce_scatter|all_to_all|ppermute|pmax|pmin)\[")
XLAS = re.compile(r"\b(all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|collective-broadcast)\b")


def programs(f, *args):
    """The jaxpr and the compiled HLO, as texts."""
    return str(jax.make_jaxpr(f)(*args)), quick(f).lower(*args).compile().as_text()


def check_ours(f, *args, calls):
    """``f``'s program has custom calls of ours, of these names, and no other collective."""
    jaxpr, hlo = programs(f, *args)
    assert not THEIRS.findall(jaxpr)
    assert not XLAS.findall(hlo)
    assert set(re.findall(r'custom_call_target="jaxring_(\w+)"', hlo)) == set(calls)


def test_the_patterns_find_theirs():
    f = jax.grad(
        jax.shard_map(lambda w, x: lax.psum(jnp.sum(w * x), "x"), mesh=mesh("x"), in_specs=(P(), P("x")), out_specs=P())
    )
    jaxpr, hlo = programs(f, 2.0, np.arange(4.0))
    assert THEIRS.findall(jaxpr)
    assert XLAS.findall(hlo)


W, X = np.arange(6.0).reshape(3, 2) / 7, np.arange(24.0).reshape(8, 3) / 9


def loss(w, x):
    w = jaxring.pcast(w, "x")
    return jaxring.all_reduce(jnp.mean(jnp.tanh(x @ w) ** 2), "x", "mean")


def test_gradient_of_shard_map_is_all_ours():
    f = jax.grad(jax.shard_map(loss, mesh=mesh("x"), in_specs=(P(), P("x")), out_specs=P()))
    check_ours(f, W, X, calls=["all_reduce"])
    close(quick(f)(W, X), jax.grad(lambda w: jnp.mean(jnp.tanh(X @ w) ** 2))(W))


def test_shard_map_of_gradient_is_all_ours():
    """The gradient of a replicated parameter is replicated, and its type says so: out_specs=P() is accepted."""
    f = jax.shard_map(jax.value_and_grad(loss), mesh=mesh("x"), in_specs=(P(), P("x")), out_specs=P())
    check_ours(f, W, X, calls=["all_reduce"])
    close(quick(f)(W, X)[1], jax.grad(lambda w: jnp.mean(jnp.tanh(X @ w) ** 2))(W))


def test_two_axes_are_summed_in_one():
    f = jax.shard_map(
        jax.grad(lambda w, x: jaxring.all_reduce(jnp.sum(jaxring.pcast(w, ("x", "y")) * x), ("x", "y"))),
        mesh=mesh("x", "y"),
        in_specs=(P(), P(("x", "y"))),
        out_specs=P(),
    )
    _, hlo = programs(f, W[0], X[:4, :2])
    assert len(re.findall(r'custom_call_target="jaxring_all_reduce"', hlo)) == 1
    close(quick(f)(W[0], X[:4, :2]), X[:4, :2].sum(0, keepdims=True)[0])


@pytest.mark.filterwarnings("ignore::jaxring.ReplicatedOperandWarning")  # equal values are what this is about
@pytest.mark.parametrize("name", CASES)
def test_the_collectives_own_casts_are_ours(name):
    """A replicated operand is cast by the collective itself; gradient and second derivative have none of XLA's."""
    case = CASES[name]

    def first(v):
        return jnp.sum(case.ours(jnp.sin(v), "x") ** 2)

    def second(v, u):
        return jax.jvp(jax.grad(first), (v,), (u,))[1]

    x = data(case)
    varying = jax.shard_map(lambda v: second(v[0], v[0])[None], mesh=mesh("x"), in_specs=P("x"), out_specs=P("x"))
    same = jax.shard_map(jax.grad(first), mesh=mesh("x"), in_specs=P(), out_specs=P())
    for f, arg in ((varying, np.stack([x] * N)), (same, x)):
        assert not THEIRS.findall(str(jax.make_jaxpr(f)(arg)))


def test_pcast():
    def f(tree):
        cast = jaxring.pcast(tree, ("x", "y"), algorithm="ring")
        assert jax.tree.structure(cast) == jax.tree.structure(tree)
        for leaf in jax.tree.leaves(cast):
            assert jax.typeof(leaf).manual_axis_type.varying == {"x", "y"}
        again = jaxring.pcast(cast, "x")
        assert all(a is b for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(cast), strict=True))
        return cast

    tree = {"a": np.arange(4.0), "b": [np.arange(4), 3.0]}
    grid = mesh("x", "y")
    specs = {"a": P("x"), "b": [P(), P()]}
    jax.eval_shape(
        jax.shard_map(
            lambda t: jax.tree.map(jnp.atleast_1d, f(t)), mesh=grid, in_specs=(specs,), out_specs=P(("x", "y"))
        ),
        tree,
    )

    def loose(v):
        cast = jaxring.pcast(v, "x")
        assert cast is v
        return cast

    jax.eval_shape(jax.shard_map(loose, mesh=mesh("x"), in_specs=P(), out_specs=P(), check_vma=False), np.arange(4.0))
    assert jax.vmap(lambda v: jaxring.pcast(v, "i"), axis_name="i")(np.arange(3.0)).shape == (3,)
    with pytest.raises(ValueError, match=r"jaxring\.pcast: to='unreduced' is not served; use to='varying'"):
        jaxring.pcast(1.0, "x", to="unreduced")
    with pytest.raises(NameError, match=r"jaxring\.pcast: axis 'x' is not bound here"):
        jaxring.pcast(1.0, "x")


def test_eager_pcast():
    f = jax.shard_map(
        jax.grad(lambda w, x: jaxring.all_reduce(jnp.sum(jaxring.pcast(w, "x") * x), "x")),
        mesh=mesh("x"),
        in_specs=(P(), P("x")),
        out_specs=P(),
    )
    close(f(2.0, np.arange(4.0)), np.float64(6.0))
