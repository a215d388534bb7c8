"""Gradients of replicated parameters: value_and_grad is right everywhere, and the sum of a sum is warned of."""

from __future__ import annotations

import functools
import inspect
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring.data_parallel import value_and_grad
from jaxring.tracing import replicated

N = 4
MESH = Mesh(np.array(jax.devices()[:N]), ("data",))
PARAMS = {"w": np.array([[1.0, 2.0], [0.5, -1.0], [2.0, 1.5]], np.float32), "b": np.float32(0.25)}
EVERYWHERE = P()
X = np.random.default_rng(1).normal(size=(2 * N, 3)).astype(np.float32)


@pytest.fixture(autouse=True)
def _each_line_anew(monkeypatch):
    monkeypatch.setattr(replicated, "_told", set())


def loss(params, x):
    return jnp.mean(jnp.tanh(x @ params["w"] + params["b"]) ** 2)


def with_aux(params, x):
    return loss(params, x), {"first": x[0, 0]}


EXPECTED = jax.value_and_grad(loss)(PARAMS, X)


def close(got, want=EXPECTED):
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6), got, want)


def mapped(f, check=True, out=EVERYWHERE):
    specs = {"in_specs": (P(), P("data")), "out_specs": out}
    return jax.jit(jax.shard_map(f, mesh=MESH, check_vma=check, **specs))


step = value_and_grad(loss, "data")
checks = pytest.mark.parametrize("check", [True, False], ids=["typed", "untyped"])


@checks
def test_the_mean_of_the_ranks_gradients(check):
    close(mapped(step, check)(PARAMS, X))


@checks
def test_the_sum(check):
    close(mapped(value_and_grad(loss, "data", op="sum"), check)(PARAMS, X), jax.tree.map(lambda v: N * v, EXPECTED))


@checks
def test_parameters_that_were_cast(check):
    close(mapped(lambda p, x: step(jaxring.pcast(p, "data"), x), check)(PARAMS, X))


@checks
def test_aux_is_each_ranks_own(check):
    def f(p, x):
        (value, aux), gradients = value_and_grad(with_aux, "data", has_aux=True)(p, x=x)
        return (value, gradients), aux["first"][None]

    got, aux = mapped(f, check, (P(), P("data")))(PARAMS, X)
    close(got)
    np.testing.assert_array_equal(aux, X[::2, 0])


@checks
def test_several_arguments(check):
    def of_three(w, x, b):
        return loss({"w": w, "b": b}, x)

    def f(p, x):
        value, (b, w) = value_and_grad(of_three, "data", argnums=(-1, 0))(p["w"], x, p["b"])
        return value, {"w": w, "b": b}

    close(mapped(f, check)(PARAMS, X))


@checks
def test_under_remat_and_in_scan(check):
    def f(p, x):
        close_to = jax.checkpoint(value_and_grad(jax.checkpoint(loss), "data"))
        return jax.lax.scan(lambda carry, _: (carry, close_to(carry, x)), p, length=2)[1]

    close(mapped(f, check)(PARAMS, X), jax.tree.map(lambda v: np.stack([v, v]), EXPECTED))


def test_training_in_scan_keeps_replicated_parameters():
    def f(p, x):
        def one(p, _):
            value, gradients = step(p, x)
            return jax.tree.map(lambda a, g: a - 0.1 * g, p, gradients), value

        return jax.lax.scan(one, p, length=3)

    params = PARAMS
    for _ in range(3):
        params = jax.tree.map(lambda a, g: a - 0.1 * g, params, jax.grad(loss)(params, X))
    close(mapped(f)(PARAMS, X)[0], params)


def test_over_axes_of_vmap_and_pmap():
    blocks = X.reshape(N, 2, 3)
    got = jax.vmap(step, (None, 0), axis_name="data")(PARAMS, blocks)
    close(jax.tree.map(lambda v: v[0], got))
    close(jax.tree.map(lambda v: v[N - 1], jax.pmap(step, "data", in_axes=(None, 0))(PARAMS, blocks)))


@checks
def test_over_a_mesh_axis_and_one_of_vmap(check):
    both = value_and_grad(loss, ("data", "part"))

    def f(p, x):
        got = jax.vmap(both, (None, 0), axis_name="part")(p, x.reshape(2, 1, 3))
        return jax.tree.map(lambda v: v[1], got)

    close(mapped(f, check)(PARAMS, X))


def test_two_mesh_axes_and_one_that_is_left_to_jax():
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"))

    def f(p, x):
        return step(p, x)

    close(
        jax.jit(jax.shard_map(f, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), axis_names={"data"}))(PARAMS, X)
    )
    both = value_and_grad(loss, ("model", "data"))
    close(jax.jit(jax.shard_map(both, mesh=mesh, in_specs=(P(), P(("data", "model"))), out_specs=P()))(PARAMS, X))


@checks
def test_a_loss_that_looks_at_all_ranks(check):
    """As with batch normalisation: what is reduced within the loss has its part in every rank's gradient."""

    def normalised(p, x):
        y = x @ p["w"] + p["b"]
        return jnp.mean((y - jaxring.all_reduce(y.mean(0), "data", "mean")) ** 2 * y)

    def whole(p, x):
        y = x @ p["w"] + p["b"]
        return jnp.mean((y - y.mean(0)) ** 2 * y)

    close(mapped(value_and_grad(normalised, "data"), check)(PARAMS, X), jax.value_and_grad(whole)(PARAMS, X))


def test_what_it_refuses():
    def reduced(p, x):
        return jaxring.all_reduce(loss(p, x), "data", "mean")

    with pytest.raises(ValueError, match=r"value_and_grad: the loss is the same on all ranks of axis 'data'"):
        mapped(value_and_grad(reduced, "data"))(PARAMS, X)
    with pytest.raises(ValueError, match=r"op='max' is not served; use 'mean' or 'sum'"):
        value_and_grad(loss, "data", op="max")
    with pytest.raises(NameError, match=r"jaxring\.data_parallel\.value_and_grad: axis 'data' is not bound here"):
        step(PARAMS, X)
    with pytest.raises(ValueError, match=r"argnums=2 is no"):
        mapped(value_and_grad(loss, "data", argnums=2))(PARAMS, X)


# What is warned of.


def told(f, *args, check=True, out=EVERYWHERE):
    """The warnings of ours that tracing ``f`` of (parameters, data) gives."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        jax.eval_shape(jax.shard_map(f, mesh=MESH, in_specs=(P(), P("data")), out_specs=out, check_vma=check), *args)
    return [w for w in found if issubclass(w.category, jaxring.ReplicatedOperandWarning)]


def mean_of_gradients(p, x):
    return jaxring.all_reduce(jax.grad(loss)(p, x), "data", op="mean")


def test_a_mean_of_summed_gradients_is_warned_of_at_its_line():
    found = told(mean_of_gradients, PARAMS, X)
    (warning,) = found
    text = str(warning.message)
    assert "jaxring.all_reduce, op='mean', over 'data': float32[] (and 1 more) is the same" in text
    for remedy in ("data_parallel.value_and_grad(loss, 'data')", "jaxring.pcast(parameters, 'data')", "assume_replic"):
        assert remedy in text
    assert warning.filename == __file__
    lines, start = inspect.getsourcelines(mean_of_gradients)
    assert warning.lineno == start + len(lines) - 1
    assert told(mean_of_gradients, PARAMS, X) == []  # once


def test_what_the_warning_proposes_is_right():
    close(mapped(lambda p, x: mean_of_gradients(jaxring.pcast(p, "data"), x))(PARAMS, X), EXPECTED[1])
    assert told(lambda p, x: mean_of_gradients(jaxring.pcast(p, "data"), x), PARAMS, X) == []
    assert told(step, PARAMS, X) == []


REDUCTIONS = {
    "all_reduce": lambda v, **o: jaxring.all_reduce(v, "data", **o),
    "all_reduce_start": lambda v, **o: jaxring.all_reduce_start(v, "data", **o).done(),
    "reduce_scatter": lambda v, **o: jaxring.reduce_scatter(v, "data", tiled=True, **o),
    "reduce": lambda v, **o: jaxring.reduce(v, "data", **o),
}


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("op", ["sum", "mean", "prod"])
def test_each_reduction_of_equal_values(name, op):
    def f(p, x, **options):
        return jnp.sum(REDUCTIONS[name](p["w"].sum(1).repeat(4), op=op, **options)) * x

    assert len(told(f, PARAMS, X, out=P("data"))) == 1
    replicated._told.clear()
    assert told(functools.partial(f, assume_replicated=True), PARAMS, X, out=P("data")) == []
    assert told(f, PARAMS, X, check=False, out=P("data")) == []


QUIET = {
    "a count of ranks": lambda p, x: jaxring.all_reduce(1, "data"),
    "a count in floats": lambda p, x: jaxring.all_reduce(1.0, "data"),
    "an array from outside": lambda p, x: jaxring.all_reduce(np.ones(3), "data", "mean"),
    "integers": lambda p, x: jaxring.all_reduce(p["w"].astype(jnp.int32), "data"),
    "their maximum": lambda p, x: jaxring.all_reduce(p, "data", "max"),
    "a broadcast": lambda p, x: jaxring.broadcast(p, "data"),
    "what differs": lambda p, x: jaxring.all_reduce(x, "data", "mean"),
    "jaxring.lax": lambda p, x: jaxring.lax.psum(p["w"], "data"),
    "a second derivative": lambda p, x: jax.grad(lambda q: jaxring.all_reduce(loss(q, x), "data", "mean"))(p),
}


@pytest.mark.parametrize("case", QUIET)
def test_nothing_is_said_of(case):
    assert told(QUIET[case], PARAMS, X) == []


def test_axes_of_one_rank_and_lowering_are_quiet():
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.eval_shape(jax.shard_map(mean_of_gradients, mesh=mesh, in_specs=(P(), P("data")), out_specs=P()), PARAMS, X)
        with jaxring.installed():
            lowered = mapped(lambda p, x: jax.tree.map(lambda v: jax.lax.pmean(v, "data"), p)).lower(PARAMS, X)
    assert "jaxring_all_reduce" in lowered.as_text()


def test_of_two_axes_it_names_the_one_that_matters():
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"))

    def f(p, x):
        return jaxring.all_reduce(p["w"].sum() * x.sum(), ("data", "model"))

    with pytest.warns(jaxring.ReplicatedOperandWarning, match=r"same on all ranks of 'model' by its type"):
        jax.eval_shape(jax.shard_map(f, mesh=mesh, in_specs=(P(), P("data")), out_specs=P()), PARAMS, X)
