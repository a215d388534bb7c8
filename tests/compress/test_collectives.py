"""Compressed collectives on the ranks of one process: values, bits, derivatives, batches, and bad calls."""

from __future__ import annotations

import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring
from tests.compress.bounds import NAMES, data, once, with_others

N = 4
WIDE = 1500  # elements: enough for every format to be shorter
SEEDS = {"nearest": None, "stochastic": 11}


def on_ranks(f, x, vma=True, n=N):
    """``f`` of each rank's value, ``x[rank]``; the results of all ranks."""
    mesh = Mesh(np.array(jax.devices()[:n]), ("x",))
    spec = P("x")
    mapped = jax.shard_map(lambda v: f(v[0])[None], mesh=mesh, in_specs=spec, out_specs=spec, check_vma=vma)
    return np.asarray(jax.jit(mapped)(x))


def values(kind="normal", shape=(WIDE,)):
    count = int(np.prod(shape))
    return np.stack([data(count, seed)[kind].reshape(shape) for seed in range(N)])


def summed(name, x, stochastic):
    """The exact sum over ranks of (N, n), the bound after both hops, and that after the first."""
    exact = x.astype(np.float64).sum(axis=0)
    first = sum(once(name, row, stochastic) for row in x) + 2.0**-22 * np.abs(x.astype(np.float64)).sum(axis=0)
    # Blocks of the second hop begin where parts do, so its bound is taken of all.
    second = once(name, np.full_like(exact, np.abs(exact).max() + first.max()), stochastic)
    return exact, first + second, first


@pytest.mark.parametrize("vma", [True, False])
@pytest.mark.parametrize("seed", SEEDS.values(), ids=SEEDS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(5)
def test_all_reduce(name, seed, vma):
    for kind in ("normal", "heavy", "sparse", "constant", "zeros", "subnormal"):
        x = values(kind)
        y = on_ranks(lambda v: jaxring.all_reduce(v, "x", compress=name, seed=seed), x, vma)
        exact, bound, _ = summed(name, x, seed is not None)
        assert np.all(np.abs(y[0] - exact) <= bound), kind
        for other in y[1:]:
            np.testing.assert_array_equal(other, y[0])


@pytest.mark.parametrize("name", NAMES)
def test_nan_and_infinity(name):
    x = values()
    x[1] = with_others(x[1])
    with np.errstate(invalid="ignore"):
        exact = x.sum(axis=0)
    y = on_ranks(lambda v: jaxring.all_reduce(v, "x", compress=name), x)
    np.testing.assert_array_equal(np.isnan(y[3]), np.isnan(exact))
    np.testing.assert_array_equal(np.isposinf(y[3]), np.isposinf(exact))
    np.testing.assert_array_equal(np.isneginf(y[3]), np.isneginf(exact))


@pytest.mark.parametrize("name", NAMES)
def test_the_others(name):
    x = values(shape=(N, WIDE))
    gathered = on_ranks(lambda v: jaxring.all_gather(v[0], "x", compress=name), x)
    assert np.all(np.abs(gathered[0] - x[:, 0]) <= once(name, x[:, 0], False))
    assert np.all(gathered == gathered[0])
    moved = on_ranks(lambda v: jaxring.all_to_all(v, "x", 0, 0, compress=name), x)
    assert np.all(np.abs(moved - x.swapaxes(0, 1)) <= once(name, x, False).swapaxes(0, 1))
    kept = on_ranks(lambda v: jaxring.reduce_scatter(v, "x", compress=name), x)
    for rank in range(N):
        exact, _, bound = summed(name, x[:, rank], False)
        assert np.all(np.abs(kept[rank] - exact) <= bound)


@pytest.mark.parametrize("n", [2, N])
@pytest.mark.parametrize("name", NAMES)
def test_a_rank_adds_its_own_values_exactly(name, n):
    x = np.zeros((n, n, WIDE), np.float32)
    for rank in range(n):
        x[rank, rank] = data(WIDE, rank)["normal"]
    y = on_ranks(lambda v: jaxring.reduce_scatter(v, "x", compress=name), x, n=n)
    np.testing.assert_array_equal(y, x[np.arange(n), np.arange(n)])


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_get_the_same_bits(name):
    x = values()[:2]
    y = on_ranks(lambda v: jaxring.all_reduce(v, "x", compress=name), x, n=2)
    exact, bound, _ = summed(name, x, False)
    assert np.all(np.abs(y[0] - exact) <= bound)
    np.testing.assert_array_equal(y[0], y[1])


def test_tiled_and_groups():
    x = values(shape=(2 * N, WIDE))
    y = on_ranks(lambda v: jaxring.reduce_scatter(v, "x", "mean", tiled=True, compress="int8"), x)
    exact = x.astype(np.float64).mean(axis=0).reshape(N, 2, WIDE)
    assert np.max(np.abs(y - exact)) < 0.02
    groups = [[0, 3], [2, 1]]
    z = on_ranks(lambda v: jaxring.all_reduce(v, "x", compress="int8", axis_index_groups=groups), x)
    np.testing.assert_array_equal(z[1], z[2])
    assert np.max(np.abs(z[0] - (x[0] + x[3]))) < 0.06
    assert np.max(np.abs(z[1] - (x[2] + x[1]))) < 0.06


def test_what_would_not_be_shorter_goes_as_it_is():
    x = values(shape=(100,))
    y = on_ranks(lambda v: jaxring.all_reduce(v, "x", compress="int8"), x)
    np.testing.assert_array_equal(y, on_ranks(lambda v: jaxring.all_reduce(v, "x"), x))
    alone = on_ranks(lambda v: jaxring.all_reduce(v, "x", compress="int4"), values()[:1], n=1)
    np.testing.assert_array_equal(alone, values()[:1])


def test_a_pytree_of_half_precision():
    x = values().astype(jnp.bfloat16)

    def f(v):
        y = jaxring.all_reduce({"a": v, "b": (v * 2).astype(jnp.float16)}, "x", compress="int8", seed=1)
        assert y["a"].dtype == jnp.bfloat16
        assert y["b"].dtype == jnp.float16
        return jnp.stack([y["a"].astype(jnp.float32), y["b"].astype(jnp.float32) / 2])

    y = on_ranks(f, x)
    assert np.max(np.abs(y[0] - x.astype(np.float64).sum(axis=0))) < 0.2
    assert np.any(y[0, 0] != y[0, 1])  # leaves have their own random bits


def test_the_seed_is_the_only_source_of_chance():
    x = values()

    def f(v, seed):
        return jaxring.all_reduce(v, "x", compress="int4", seed=seed)

    first, again, other = (on_ranks(functools.partial(f, seed=jnp.int32(seed)), x) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)
    np.testing.assert_array_equal(first, on_ranks(functools.partial(f, seed=5), x))


COLLECTIVES = {
    "all_reduce": lambda v, **o: jaxring.all_reduce(v, "x", "mean", **o),
    "all_gather": lambda v, **o: jaxring.all_gather(v, "x", **o),
    "reduce_scatter": lambda v, **o: jaxring.reduce_scatter(v, "x", **o),
    "all_to_all": lambda v, **o: jaxring.all_to_all(v, "x", 0, 0, **o),
}


@pytest.mark.parametrize("vma", [True, False])
@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.sampled(3)
def test_derivatives_are_those_of_the_collective_and_compressed(name, vma):
    x = values(shape=(N, WIDE))
    call = COLLECTIVES[name]

    def both(v, **options):
        y, tangent = jax.jvp(functools.partial(call, **options), (v,), (v * 2,))
        ct = jnp.cos(y)
        _, back = jax.vjp(functools.partial(call, **options), v)
        return jnp.concatenate([jnp.ravel(tangent), jnp.ravel(back(ct)[0])])

    exact = on_ranks(both, x, vma)
    near = on_ranks(functools.partial(both, compress="int8"), x, vma)
    assert np.max(np.abs(near - exact)) < 0.03 * np.max(np.abs(exact))
    assert np.any(near != exact)
    # Compressed once more: neither the tangent nor the cotangent came exact.
    half = 2 * on_ranks(lambda v: jnp.ravel(call(v, compress="int8")), x, vma)
    np.testing.assert_array_equal(near[:, : half.shape[1]], half)


def test_second_derivative():
    x = values()

    def f(v):
        return jnp.sum(jaxring.all_reduce(v, "x", compress="int8") ** 2)

    y = on_ranks(lambda v: jax.jvp(jax.grad(f), (v,), (v,))[1], x, vma=False)
    exact = 2 * N * x.sum(axis=0)
    assert np.max(np.abs(y - exact)) < 0.05 * np.max(np.abs(exact))


@pytest.mark.parametrize("name", COLLECTIVES)
def test_batches(name):
    x = values(shape=(N, 3, WIDE))
    call = COLLECTIVES[name]

    def over(v, **options):
        return jax.vmap(functools.partial(call, **options), in_axes=1, out_axes=1)(v)

    exact, near = on_ranks(over, x), on_ranks(functools.partial(over, compress="int8"), x)
    assert np.max(np.abs(near - exact)) < 0.08
    assert np.any(near != exact)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_over_an_axis_of_vmap_and_one_of_the_mesh(name):
    calls = {
        "all_reduce": lambda v, **o: jaxring.all_reduce(v, ("x", "v"), **o),
        "all_gather": lambda v, **o: jaxring.all_gather(v, ("x", "v"), **o),
        "reduce_scatter": lambda v, **o: jaxring.reduce_scatter(v, ("x", "v"), **o),
        "all_to_all": lambda v, **o: jaxring.all_to_all(v, ("x", "v"), 0, 0, **o),
    }
    x = values(shape=(2, 2 * N, WIDE))

    def over(v, **options):
        return jax.vmap(functools.partial(calls[name], **options), axis_name="v")(v)

    exact, near = on_ranks(over, x), on_ranks(functools.partial(over, compress="int8", seed=2), x)
    assert np.max(np.abs(near - exact)) < 0.15
    assert np.any(near != exact)


def test_an_exported_program():
    mesh = Mesh(np.array(jax.devices()[:N]), ("x",))
    f = functools.partial(jaxring.all_reduce, axis_name="x", compress="int8", seed=1)
    program = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P()))
    x = jax.device_put(values(), jax.sharding.NamedSharding(mesh, P("x")))
    exported = jax.export.export(program, disabled_checks=jaxring.export_checks())(x)
    np.testing.assert_array_equal(jax.jit(exported.call)(x), program(x))


def test_bad_calls():
    x = values()

    def call(v=x, **options):
        on_ranks(lambda v: jaxring.all_reduce(v, "x", **options), v)

    with pytest.raises(ValueError, match=r"jaxring\.all_reduce: compress='int9' is not served; use one of int8, int4"):
        call(compress="int9")
    with pytest.raises(ValueError, match="op='max' is not served with compress='int8'; use 'sum' or 'mean'"):
        call(compress="int8", op="max")
    with pytest.raises(ValueError, match="algorithm='ring' cannot be chosen with compress='int8'"):
        call(compress="int8", algorithm="ring")
    with pytest.raises(ValueError, match="pass compress, or leave out seed"):
        call(seed=1)
    with pytest.raises(TypeError, match=r"seed must be an integer or an integer scalar, not 1\.5"):
        call(compress="int8", seed=1.5)
    with pytest.raises(
        TypeError, match="int32 cannot be compressed, only float32, bfloat16, float16; convert it first"
    ):
        call(v=x.astype(np.int32), compress="int8")


@pytest.mark.parametrize("name", COLLECTIVES)
def test_other_platforms_compute_the_same_bits(name, monkeypatch):
    x = values(shape=(N, WIDE))
    f = functools.partial(COLLECTIVES[name], compress="int8", seed=4)
    ours = on_ranks(f, x)
    from jaxring.compress import native, portable

    for function in ("quantize", "sum_rows", "sum_quantized", "dequantize"):
        monkeypatch.setattr(native, function, getattr(portable, function))
    np.testing.assert_array_equal(on_ranks(lambda v: f(v), x), ours)
