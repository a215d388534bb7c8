"""Error feedback: what one step's compression leaves out, the next steps' gradients make up for."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

pytest.importorskip("optax")  # it comes with the extra "test"

import optax

import jaxring.optax
from tests.compress.bounds import data

N = 4
PARAMS = {"w": jnp.zeros((3, 500)), "b": jnp.zeros(10)}


def gradients(step):
    """Of all ranks, on the leading axis."""
    rng = np.random.default_rng(step)
    w = np.stack([data(1500, rank)["heavy"].clip(-50, 50).reshape(3, 500) for rank in range(N)])
    return {"w": (w * rng.random()).astype(np.float32), "b": rng.standard_normal((N, 10)).astype(np.float32)}


def steps(transformation, count, vma=True):
    """The updates of each step, and the state before and after each, for all ranks."""
    mesh = Mesh(np.array(jax.devices()[:N]), ("x",))
    specs = jaxring.optax.state_specs(jax.eval_shape(transformation.init, PARAMS), "x")
    shard_map = functools.partial(jax.shard_map, mesh=mesh, check_vma=vma)
    state = jax.jit(shard_map(lambda: transformation.init(PARAMS), in_specs=(), out_specs=specs))()

    def update(grads, state):
        mean, state = transformation.update(jax.tree.map(lambda g: g[0], grads), state)
        return jax.tree.map(lambda m: m[None], mean), state

    step = jax.jit(shard_map(update, in_specs=(P("x"), specs), out_specs=(P("x"), specs)))
    found, states = [], [state]
    for index in range(count):
        mean, state = step(gradients(index), state)
        found.append(jax.tree.map(np.asarray, mean))
        states.append(state)
    return found, states


@pytest.mark.parametrize("vma", [True, False])
@pytest.mark.parametrize(("name", "seed"), [("int8", None), ("int4", 3), ("fp8_e4m3", None), ("bf16", None)])
def test_nothing_is_lost(name, seed, vma):
    means, states = steps(jaxring.optax.compressed_mean("x", name, seed=seed), 4, vma)
    for index, mean in enumerate(means):
        before, after = (np.asarray(states[i].residual["w"], np.float64) for i in (index, index + 1))
        given = gradients(index)["w"].astype(np.float64) + before
        got = N * mean["w"][0].astype(np.float64) + after.sum(axis=0)
        np.testing.assert_allclose(got, given.sum(axis=0), atol=2e-4)
        assert np.all(mean["w"] == mean["w"][0])
        assert np.any(after != 0)
        # So few values go as they are.
        np.testing.assert_allclose(mean["b"][0], gradients(index)["b"].mean(axis=0), atol=1e-6)
        assert not np.any(np.asarray(states[index + 1].residual["b"]))
    assert int(states[-1].step) == 4


def test_the_mean_over_time_is_right_only_with_feedback():
    def total(feedback):
        means, _ = steps(jaxring.optax.compressed_mean("x", "int4", error_feedback=feedback), 12)
        return sum(mean["w"][0].astype(np.float64) for mean in means)

    exact = sum(gradients(index)["w"].astype(np.float64).mean(axis=0) for index in range(12))
    with_feedback, without = (np.abs(total(feedback) - exact).max() for feedback in (True, False))
    assert with_feedback < without / 2


@pytest.mark.parametrize("feedback", [True, False])
def test_small_leaves_travel_together(feedback):
    """Each in blocks of its own: the large values of one do not damage those of its neighbour."""
    rng = np.random.default_rng(0)
    leaves = [rng.standard_normal((N, 150 + i)).astype(np.float32) * 1000.0**i for i in range(8)]
    transformation = jaxring.optax.compressed_mean("x", error_feedback=feedback)

    def update(g):
        mean, _ = transformation.update([v[0] for v in g], transformation.init([v[0] for v in g]))
        return [m[None] for m in mean]

    mesh = Mesh(np.array(jax.devices()[:N]), ("x",))
    step = jax.jit(jax.shard_map(update, mesh=mesh, in_specs=P("x"), out_specs=P("x")))
    before = jaxring.counters()["operations"]
    means = jax.block_until_ready(step(leaves))
    assert jaxring.counters()["operations"] - before == 2  # of one all-reduce: to the owners, and back
    for leaf, mean in zip(leaves, means, strict=True):
        assert np.max(np.abs(mean - leaf.mean(axis=0))) < 0.02 * np.max(np.abs(leaf))


def test_each_step_has_random_bits_of_its_own():
    transformation = jaxring.optax.compressed_mean("x", "int4", error_feedback=False, seed=1)
    mesh = Mesh(np.array(jax.devices()[:N]), ("x",))

    def both(g):
        state = transformation.init(g[0])
        assert state.residual is None
        first, state = transformation.update(g[0], state)
        second, _ = transformation.update(g[0], state)
        return first[None], second[None]

    first, second = jax.jit(jax.shard_map(both, mesh=mesh, in_specs=P("x"), out_specs=P("x")))(gradients(0)["w"])
    assert np.any(np.asarray(first) != np.asarray(second))


def test_specs_of_a_chain():
    chain = optax.chain(jaxring.optax.compressed_mean("x"), optax.adam(1e-3))
    specs = jaxring.optax.state_specs(jax.eval_shape(chain.init, PARAMS), "x")
    assert specs[0].residual == {"w": P(("x",)), "b": P(("x",))}
    assert specs[0].step == P()
    sharded = jaxring.optax.state_specs(jax.eval_shape(chain.init, PARAMS), "x", sharded_over=("a", "b"))
    assert sharded[0].residual == {"w": P(("x", "a", "b")), "b": P(("x", "a", "b"))}
    assert sharded[0].step == P()
    assert set(jax.tree.leaves(specs[1], is_leaf=lambda s: isinstance(s, P))) == {P()}


def test_bad_calls():
    with pytest.raises(ValueError, match="compress='int9' is not served"):
        steps(jaxring.optax.compressed_mean("x", "int9"), 1)
    with pytest.raises(ValueError, match="compress=None leaves nothing to do"):
        steps(jaxring.optax.compressed_mean("x", None), 1)


def test_the_call_site_is_the_users_line_and_none_of_optax():
    mesh = Mesh(np.array(jax.devices()[:N]), ("x",))
    chain = optax.chain(jaxring.optax.compressed_mean("x", "int8"), optax.sgd(0.1))
    specs = jaxring.optax.state_specs(jax.eval_shape(chain.init, PARAMS), "x")

    def update(grads):
        return chain.update(jax.tree.map(lambda g: g[0], grads), chain.init(PARAMS))[1]

    line = update.__code__.co_firstlineno + 1
    step = jax.jit(jax.shard_map(update, mesh=mesh, in_specs=P("x"), out_specs=specs))
    before = len(jaxring.plans())
    jax.block_until_ready(step(gradients(0)))
    assert {plan.site for plan in jaxring.plans()[before:]} == {f"test_optax.py:{line}"}
