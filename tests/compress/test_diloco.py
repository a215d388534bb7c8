"""DiLoCo: what each group keeps for itself, what is exchanged, and when."""

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

N = 4
PARAMS = {"w": np.linspace(-1, 1, 21, dtype=np.float32).reshape(3, 7), "b": np.ones(5, np.float32)}


def gradients(step):
    """Of all groups, on the leading axis."""
    rng = np.random.default_rng(step)
    return {name: rng.standard_normal((N, *p.shape)).astype(np.float32) for name, p in PARAMS.items()}


def run(transformation, steps, vma=True):
    """The parameters of all groups before each step and after the last, and the last state."""
    mesh = Mesh(np.array(jax.devices()[:N]), ("x",))
    specs = jaxring.optax.state_specs(jax.eval_shape(transformation.init, PARAMS), "x")
    shard_map = functools.partial(jax.shard_map, mesh=mesh, check_vma=vma)
    params = jax.tree.map(lambda p: jnp.stack([p] * N), PARAMS)
    state = jax.jit(shard_map(transformation.init, in_specs=P(), out_specs=specs))(PARAMS)

    def update(params, grads, state):
        mine = _own(params)
        updates, state = transformation.update(_own(grads), state, mine)
        return jax.tree.map(lambda p: p[None], optax.apply_updates(mine, updates)), state

    step = jax.jit(shard_map(update, in_specs=(P("x"), P("x"), specs), out_specs=(P("x"), specs)))
    found = [jax.tree.map(np.asarray, params)]
    for index in range(steps):
        params, state = step(params, gradients(index), state)
        found.append(jax.tree.map(np.asarray, params))
    return found, state


def _own(tree):
    return jax.tree.map(lambda x: x[0], tree)


def reference(rate, outer_rate, every, fragments, steps):
    """The same by NumPy, with SGD inside and momentum-free SGD outside, in float64."""
    params = {name: np.stack([p.astype(np.float64)] * N) for name, p in PARAMS.items()}
    anchor = {name: p.astype(np.float64).ravel().copy() for name, p in PARAMS.items()}
    found = [{name: p.copy() for name, p in params.items()}]
    for step in range(steps):
        grads, before = gradients(step), {name: p.copy() for name, p in params.items()}
        for name, p in params.items():
            p -= rate * grads[name]
            if step % (every // fragments):
                continue
            flat, old = p.reshape(N, -1), before[name].reshape(N, -1)
            length = -(-anchor[name].size // fragments)
            k = step // (every // fragments) % fragments
            at = slice(k * length, min((k + 1) * length, anchor[name].size))
            common = anchor[name][at] - outer_rate * (anchor[name][at] - old[:, at]).mean(axis=0)
            flat[:, at] += common - old[:, at]
            anchor[name][at] = common
        found.append({name: p.copy() for name, p in params.items()})
    return found


@pytest.mark.parametrize("vma", [True, False])
@pytest.mark.parametrize(("every", "fragments"), [(4, None), (4, 2), (3, 1)])
@pytest.mark.sampled(5)
def test_steps_are_those_of_the_arithmetic(every, fragments, vma):
    transformation = jaxring.optax.diloco("x", optax.sgd(0.1), every=every, fragments=fragments, outer=optax.sgd(0.7))
    found, state = run(transformation, 9, vma)
    for ours, exact in zip(found, reference(0.1, 0.7, every, fragments or every, 9), strict=True):
        for name in PARAMS:
            np.testing.assert_allclose(ours[name], exact[name], atol=1e-5)
    assert int(state.step) == 9
    assert np.any(found[-1]["w"] != found[-1]["w"][0])  # the groups differ


def test_defaults_and_compression():
    local = functools.partial(jaxring.optax.diloco, "x", optax.adamw(0.01), every=4)
    found, state = run(local(), 8)
    near, _ = run(local(compress="int8"), 8)
    assert jax.tree.leaves(state.outer)[0].shape == state.anchor["b"].shape == (4, 2)
    assert jax.tree.leaves(state.inner)[0].shape[0] == N
    for name in PARAMS:
        np.testing.assert_allclose(near[-1][name], found[-1][name], atol=0.02)


def test_bad_calls():
    with pytest.raises(ValueError, match="every=10 must be a multiple of fragments=3"):
        jaxring.optax.diloco("x", optax.sgd(0.1), every=10, fragments=3)
    with pytest.raises(ValueError, match="every=0 must be a multiple"):
        jaxring.optax.diloco("x", optax.sgd(0.1), every=0)
    transformation = jaxring.optax.diloco("x", optax.sgd(0.1), every=2)
    with pytest.raises(ValueError, match="the update needs the parameters"):
        transformation.update({}, None)
