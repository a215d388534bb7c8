"""Dtypes of gradients and parameters, and parameters that are sharded over a further axis of the mesh."""

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


@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize("size", [1000, 20000])
@pytest.mark.parametrize("dtype", ["complex64", "int32", "float64"])
def test_gradients_that_cannot_be_compressed(dtype, size, feedback):
    transformation = jaxring.optax.compressed_mean("x", error_feedback=feedback)

    def update(*leaves):
        leaves = [x[0] for x in leaves]
        return transformation.update(leaves, transformation.init(leaves))[0]

    mesh = Mesh(np.array(jax.devices()[:N]), ("x",))
    run = jax.shard_map(update, mesh=mesh, in_specs=P("x"), out_specs=P())
    with jax.enable_x64(True), pytest.raises(TypeError, match=f"optax.compressed_mean: {dtype} cannot be compressed"):
        jax.eval_shape(run, jnp.ones((N, 300), jnp.float32), jnp.ones((N, size), dtype))


@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_gradients_keep_their_dtype(dtype, feedback):
    transformation = jaxring.optax.compressed_mean("x", error_feedback=feedback)
    x = np.random.default_rng(0).standard_normal((N, 1000)).astype(dtype)

    def update(x):
        return transformation.update(x[0], transformation.init(x[0]))[0][None]

    mesh = Mesh(np.array(jax.devices()[:N]), ("x",))
    means = jax.jit(jax.shard_map(update, mesh=mesh, in_specs=P("x"), out_specs=P("x")))(x)
    assert means.dtype == dtype
    exact = x.astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(np.asarray(means[0]).astype(np.float64), exact, atol=0.05)


def train(params, transformation, steps, gradient, mesh, specs=None, **options):
    """The parameters after each step of a group on each part of axis "x"; ``specs`` shards them over the others."""
    specs = jax.tree.map(lambda _: P(), params) if specs is None else specs
    state = jaxring.optax.state_specs(jax.eval_shape(transformation.init, params), "x", **options)
    by_group = jax.tree.map(lambda spec: P("x", *spec), specs, is_leaf=lambda spec: isinstance(spec, P))
    shard_map = functools.partial(jax.shard_map, mesh=mesh, check_vma=True)

    def own(tree):
        return jax.tree.map(lambda x: x[0], tree)

    def update(params, step, state):
        mine = own(params)
        grads = jax.tree.map(lambda p: gradient(p, step, jax.lax.axis_index("x")), mine)
        updates, state = transformation.update(grads, state, mine)
        return jax.tree.map(lambda p: p[None], optax.apply_updates(mine, updates)), state

    groups = mesh.shape["x"]
    found = [jax.tree.map(lambda p: jnp.stack([p] * groups), params)]
    now = jax.jit(shard_map(transformation.init, in_specs=(specs,), out_specs=state))(params)
    run = jax.jit(shard_map(update, in_specs=(by_group, P(), state), out_specs=(by_group, state)))
    for step in range(steps):
        params, now = run(found[-1], step, now)
        found.append(params)
    return [jax.tree.map(np.asarray, each) for each in found]


def pull(p, step, group):
    """A gradient that is exact in float64 and not in float32, and another one for each group."""
    return (p - group.astype(p.dtype) / 3) / 7 + step / 11


@pytest.mark.parametrize(("every", "fragments"), [(2, 2), (2, 1)])
def test_float64_is_exchanged_and_kept_in_float64(every, fragments):
    """With an outer rate of 1 and without momentum all groups go on from their mean."""
    start = np.linspace(-1, 1, 10, dtype=np.float64) / 3
    with jax.enable_x64(True):
        params = {"wide": start, "narrow": np.ones(3, np.float32)}
        outer = optax.sgd(1.0)
        transformation = jaxring.optax.diloco("x", optax.sgd(0.1), every=every, fragments=fragments, outer=outer)
        mesh = Mesh(np.array(jax.devices()[:N]), ("x",))
        found = train(params, transformation, 6, pull, mesh)
    exact = np.stack([start] * N)
    length = start.size // fragments
    for step in range(6):
        following = exact - 0.1 * pull(exact, step, np.arange(N)[:, None])
        if step % (every // fragments) == 0:
            k = step // (every // fragments) % fragments
            at = slice(k * length, (k + 1) * length)
            following[:, at] += exact[:, at].mean(axis=0) - exact[:, at]
        exact = following
        assert found[step + 1]["wide"].dtype == np.float64
        assert found[step + 1]["narrow"].dtype == np.float32
        np.testing.assert_allclose(found[step + 1]["wide"], exact, rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", ["complex64", "int32"])
def test_parameters_that_cannot_be_exchanged(dtype):
    transformation = jaxring.optax.diloco("x", optax.sgd(0.1), every=2)
    params = {"w": jnp.ones(3), "other": jnp.ones(3, dtype)}
    with pytest.raises(TypeError, match=rf"params\['other'\] has dtype {dtype}; only real floating-point numbers"):
        jax.eval_shape(transformation.init, params)


@pytest.mark.parametrize("fragments", [4, 2, 1])
@pytest.mark.sampled(3)
def test_parameters_sharded_over_another_axis(fragments):
    """Each device exchanges its shards with the same ones of other groups: what it would do alone with these."""
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "model"))
    apart = Mesh(np.array(jax.devices()[:2]), ("x",))
    params = {"w": np.linspace(-1, 1, 48, dtype=np.float32).reshape(4, 12)}
    transformation = jaxring.optax.diloco("x", optax.sgd(0.1, momentum=0.9), every=4, fragments=fragments)
    found = train(params, transformation, 6, pull, mesh, {"w": P("model")}, sharded_over="model")
    for part in range(2):
        rows = slice(2 * part, 2 * part + 2)
        alone = train({"w": params["w"][rows]}, transformation, 6, pull, apart)
        for ours, theirs in zip(found, alone, strict=True):
            np.testing.assert_allclose(ours["w"][:, rows], theirs["w"], rtol=1e-6, atol=1e-6)
    # The state is of one device's shards, and says so.
    with pytest.raises(ValueError, match="out_specs"):
        train(params, transformation, 1, pull, mesh, {"w": P("model")})
