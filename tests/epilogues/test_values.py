"""Reductions with an epilogue against the same functions of the plain sum, in NumPy and in Optax."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring import _native, epilogues
from jaxring.epilogues.functions import FUNCTIONS

RANKS = 4
SIZES = [1, 5, 1000, 70_001]
ALL_REDUCES = [None, "ring", "tree", "direct", "oneshot", "halving_doubling", "reproducible"]
REDUCE_SCATTERS = [None, "ring", "direct", "halving_doubling", "pat", "reproducible"]
# The largest whole numbers of tests by dtype: their sums are exact in the accumulators, and not in narrow dtypes.
MOST = {"float8_e4m3fn": 20, "float8_e5m2": 6, "float16": 1500, "bfloat16": 200, "float32": 200, "float64": 200}
DTYPES = list(MOST)


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name, name))


ROWS = P("x")


def spread(function, *operands, ranks=RANKS, specs=ROWS, out=ROWS):
    """``function`` on each rank's part; leaves of operands are (ranks, ...)."""
    mesh = Mesh(np.array(jax.devices()[:ranks]), ("x",))
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=out))(*operands)


def integers(size, ranks=RANKS, dtype="float32", most=8, seed=0):
    """(ranks, size) whole numbers, whose sums are exact."""
    random = np.random.default_rng(seed)
    return random.integers(-most, most + 1, (ranks, size)).astype(dtype_of(dtype))


def test_the_engine_has_the_same_functions():
    here = [(f.name, len(f.parameters), len(f.operands), len(f.states)) for f in FUNCTIONS.values()]
    assert [tuple(row) for row in _native.epilogues()] == here


@pytest.mark.parametrize("algorithm", ALL_REDUCES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.sampled(3)
def test_scale_of_a_sum(size, algorithm):
    x = integers(size)
    y = spread(lambda v: jaxring.all_reduce(v, "x", algorithm=algorithm, epilogue=epilogues.scale(0.1)), x)
    want = x.sum(0) * np.float32(0.1)
    for rank in range(RANKS):
        np.testing.assert_array_equal(y[rank], want)


@pytest.mark.parametrize("protocol", ["ll", "simple"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["sum", "mean", "max"])
def test_dtypes_are_computed_wide_and_rounded_once(dtype, op, protocol):
    kind = dtype_of(dtype)
    x = integers(259, dtype=dtype, most=MOST[dtype])
    wide = np.float64 if dtype == "float64" else np.float32
    folded = x.astype(wide).max(0) if op == "max" else x.astype(wide).sum(0)
    folded = folded / wide(RANKS) if op == "mean" else folded
    want = (folded * wide(0.3)).astype(kind)
    twice = (folded.astype(kind).astype(wide) * wide(0.3)).astype(kind)
    assert np.any(want != twice) == (op != "max" and kind.itemsize < 4)
    with jax.enable_x64(True):
        call = lambda v: jaxring.all_reduce(  # noqa: E731
            v, "x", op, algorithm="ring", protocol=protocol, epilogue=epilogues.scale(0.3)
        )
        y = np.asarray(spread(call, x))
    assert y.dtype == kind
    for rank in range(RANKS):
        np.testing.assert_array_equal(y[rank].view(np.uint8), want.view(np.uint8))


@pytest.mark.parametrize("dtype", DTYPES)
def test_exact_sums_are_rounded_before_it(dtype):
    x = integers(259, dtype=dtype, most=MOST[dtype])
    with jax.enable_x64(True):
        call = lambda v: jaxring.all_reduce(v, "x", algorithm="reproducible", epilogue=epilogues.scale(0.3))  # noqa: E731
        y = np.asarray(spread(call, x))
    wide = np.float64 if dtype == "float64" else np.float32
    total = x.astype(wide).sum(0).astype(x.dtype)
    np.testing.assert_array_equal(y, [(total.astype(wide) * wide(0.3)).astype(x.dtype)] * RANKS)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_factor_of_a_wider_dtype_leaves_the_dtype(dtype):
    x = integers(100, dtype=dtype)
    y = spread(lambda v: jaxring.all_reduce(v, "x", epilogue=epilogues.scale(jnp.float32(0.5))), x)
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y.astype(np.float32), [x.astype(np.float32).sum(0) / 2] * RANKS)


@pytest.mark.parametrize("algorithm", ALL_REDUCES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kinds", [("float32", "bfloat16"), ("bfloat16", "float32"), ("float32", "float8_e5m2")])
@pytest.mark.sampled(5)
def test_cast(kinds, size, algorithm):
    data, result = map(dtype_of, kinds)
    x = integers(size, dtype=kinds[0], most=200)
    total = x.astype(np.float32).sum(0)
    if algorithm == "reproducible":
        total = total.astype(data)
    y = spread(lambda v: jaxring.all_reduce(v, "x", algorithm=algorithm, epilogue=epilogues.cast(result)), x)
    assert y.dtype == result
    assert x.dtype == data
    for rank in range(RANKS):
        np.testing.assert_array_equal(np.asarray(y[rank]), total.astype(result))


def test_functions_follow_each_other():
    x = integers(3000)
    x[1, 7] = np.nan
    after = epilogues.scale(jnp.float32(0.25)).then(epilogues.clip(-1, 1)).then(epilogues.cast(jnp.bfloat16))
    y = spread(lambda v: jaxring.all_reduce(v, "x", epilogue=after), x)
    assert y.dtype == jnp.bfloat16
    want = np.clip(x.sum(0) * np.float32(0.25), -1, 1).astype(ml_dtypes.bfloat16).astype(np.float32)
    assert np.isnan(want[7])
    np.testing.assert_array_equal(y.astype(jnp.float32), [want] * RANKS)


@pytest.mark.parametrize("ranks", [1, RANKS])
def test_limits_keep_the_sign_of_zero(ranks):
    """XLA takes a vector of the constants -0.0 and 1.0 for an iota, which begins with +0.0."""
    x = np.full((ranks, 5), -2, np.float32)
    call = lambda v: jaxring.all_reduce(v, "x", epilogue=epilogues.clip(-0.0, 1.0))  # noqa: E731
    y = np.asarray(spread(call, x, ranks=ranks))
    np.testing.assert_array_equal(y, np.zeros((ranks, 5)))
    assert np.signbit(y).all()


def test_a_tree_of_leaves():
    tree = {"a": integers(12), "b": [integers(5, seed=1), integers(1, seed=2)]}
    y = spread(lambda v: jaxring.all_reduce(v, "x", epilogue=epilogues.scale(2)), tree)
    jax.tree.map(lambda got, x: np.testing.assert_array_equal(got, [2 * x.sum(0)] * RANKS), y, tree)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_other_numbers_of_ranks(ranks):
    x = integers(1001, ranks=ranks)
    for algorithm in ("ring", "direct"):
        call = lambda v: jaxring.all_reduce(v, "x", algorithm=algorithm, epilogue=epilogues.scale(3))  # noqa: B023, E731
        np.testing.assert_array_equal(spread(call, x, ranks=ranks), [3 * x.sum(0)] * ranks)


def test_a_single_rank():
    x = integers(9, ranks=1)
    y = spread(
        lambda v: jaxring.all_reduce(v, "x", epilogue=epilogues.scale(3).then(epilogues.cast("bfloat16"))), x, ranks=1
    )
    assert y.dtype == jnp.bfloat16
    np.testing.assert_array_equal(y.astype(jnp.float32), 3 * x)


def test_traced_parameters_change_without_another_program():
    x = integers(100)
    mesh = Mesh(np.array(jax.devices()[:RANKS]), ("x",))
    call = lambda v, f: jaxring.all_reduce(v, "x", epilogue=epilogues.scale(f))  # noqa: E731
    step = jax.jit(jax.shard_map(call, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x")))
    for factor in (2.0, 0.5):
        np.testing.assert_array_equal(step(x, jnp.float32(factor)), [factor * x.sum(0)] * RANKS)
    assert step._cache_size() == 1


@pytest.mark.parametrize("algorithm", REDUCE_SCATTERS)
@pytest.mark.parametrize("size", SIZES)
def test_reduce_scatter(size, algorithm):
    x = integers(size * RANKS).reshape(RANKS, RANKS, size)
    call = lambda v: jaxring.reduce_scatter(  # noqa: E731
        v[0], "x", algorithm=algorithm, epilogue=epilogues.clip(-3, 3)
    )[None]
    np.testing.assert_array_equal(spread(call, x), np.clip(x.sum(0), -3, 3))


def shards(seed, shape, scale=1.0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


# A single rank sends nothing, and has the functions in JAX.
LAYOUTS = [*((algorithm, RANKS) for algorithm in REDUCE_SCATTERS), (None, 1)]


@pytest.mark.parametrize(("algorithm", "ranks"), LAYOUTS)
@pytest.mark.parametrize("size", SIZES)
def test_sgd(size, algorithm, ranks):
    gradients = integers(size * ranks, ranks=ranks).reshape(ranks, ranks, size)
    params = shards(1, (ranks, size))

    def call(g, p):
        new = epilogues.sgd(p[0], 0.1, weight_decay=0.01)
        return jaxring.reduce_scatter(g[0], "x", "mean", algorithm=algorithm, epilogue=new)[None]

    want = params - 0.1 * (gradients.astype(np.float64).mean(0) + 0.01 * params)
    np.testing.assert_allclose(spread(call, gradients, params, ranks=ranks), want, rtol=3e-7, atol=1e-7)


def optax_step(optimizer, gradient, params, state):
    updates, state = optimizer.update(gradient, state, params)
    return optax.apply_updates(params, updates), state


@pytest.mark.parametrize("ranks", [1, RANKS])
@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_is_that_of_optax(nesterov, ranks):
    shape = (ranks, 3, 50)
    optimizer = optax.sgd(0.05, momentum=0.9, nesterov=nesterov)
    params = shards(1, shape)
    expected, state = params, optimizer.init(params)
    trace = np.zeros_like(params)

    def call(g, p, t):
        step = epilogues.sgd(p[0], 0.05, momentum=0.9, trace=t[0], nesterov=nesterov)
        p, t = jaxring.reduce_scatter(g[0], "x", epilogue=step)
        return p[None], t[None]

    for number in range(5):
        gradients = integers(ranks * 150, ranks=ranks, seed=number).reshape(ranks, *shape)
        expected, state = optax_step(optimizer, gradients.sum(0), expected, state)
        params, trace = spread(call, gradients, params, trace, ranks=ranks)
        np.testing.assert_allclose(params, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(trace, state[0].trace, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("algorithm", "ranks"), LAYOUTS)
@pytest.mark.sampled(2)
def test_adam_is_that_of_optax(algorithm, ranks):
    tree = {"w": shards(1, (ranks, 7, 11)), "b": shards(2, (ranks, 2000))}
    optimizer = optax.adamw(1e-2, weight_decay=1e-2)
    expected, state = tree, optimizer.init(tree)
    zeros = jax.tree.map(np.zeros_like, tree)
    own = (tree, zeros, zeros)

    def call(g, own, number):
        g, own = jax.tree.map(lambda v: v[0], (g, own))
        step = epilogues.adam(*own, number, 1e-2, weight_decay=1e-2)
        new = jaxring.reduce_scatter(g, "x", "mean", algorithm=algorithm, epilogue=step)
        return jax.tree.map(lambda v: v[None], new)

    for number in range(1, 6):
        gradients = jax.tree.map(lambda p: shards(number, (ranks, *p.shape)), tree)  # noqa: B023
        mean = jax.tree.map(lambda g: g.mean(0), gradients)
        expected, state = optax_step(optimizer, mean, expected, state)
        own = spread(call, gradients, own, jnp.int32(number), ranks=ranks, specs=(P("x"), P("x"), P()))
    for got, want in zip(own, (expected, state[0].mu, state[0].nu), strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), got, want)


def test_adam_in_float64():
    """One step against NumPy in float64: only the last bits differ from the formula."""
    with jax.enable_x64(True):
        shape = (RANKS, 1500)
        gradients, params, mu, nu = (
            np.random.default_rng(i).standard_normal(s) for i, s in enumerate([(RANKS, *shape), shape, shape, shape])
        )
        nu = nu**2

        def call(g, *own):
            step = epilogues.adam(*(each[0] for each in own), 3, 1e-3, b1=0.8, b2=0.95, eps=1e-6, weight_decay=0.1)
            return [each[None] for each in jaxring.reduce_scatter(g[0], "x", algorithm="direct", epilogue=step)]

        got = spread(call, gradients, params, mu, nu)
    g = gradients.sum(0)
    mu, nu = 0.2 * g + 0.8 * mu, 0.05 * g**2 + 0.95 * nu
    update = mu / (1 - 0.8**3) / (np.sqrt(nu / (1 - 0.95**3)) + 1e-6)
    for a, b in zip(got, (params - 1e-3 * (update + 0.1 * params), mu, nu), strict=True):
        assert a.dtype == np.float64
        np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-13)


def test_gradients_in_bfloat16_for_parameters_in_float32():
    gradients = integers(RANKS * 100, dtype="bfloat16", most=200).reshape(RANKS, RANKS, 100)
    params = shards(3, (RANKS, 100))
    call = lambda g, p: jaxring.reduce_scatter(g[0], "x", epilogue=epilogues.sgd(p[0], 0.01))[None]  # noqa: E731
    y = spread(call, gradients, params)
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, params - np.float32(0.01) * gradients.astype(np.float32).sum(0))


@pytest.mark.parametrize("dimension", [0, 1, 2])
def test_tiled_along_any_dimension(dimension):
    shape = [3, 4, 5]
    shape[dimension] *= RANKS
    gradients = integers(np.prod(shape)).reshape(RANKS, *shape)
    params = shards(4, shape)
    cut = P(*[None] * dimension, "x")

    def call(g, p):
        step = epilogues.sgd(p, 0.5, momentum=0.5, trace=jnp.zeros_like(p))
        return jaxring.reduce_scatter(g[0], "x", scatter_dimension=dimension, tiled=True, epilogue=step)

    new, trace = spread(call, gradients, params, specs=(P("x"), cut), out=(cut, cut))
    np.testing.assert_array_equal(trace, gradients.sum(0))
    np.testing.assert_array_equal(new, params - np.float32(0.5) * gradients.sum(0))


def test_clipped_then_stepped():
    gradients = integers(RANKS * 40).reshape(RANKS, RANKS, 40)
    params = shards(5, (RANKS, 40))
    after = lambda p: epilogues.scale(0.5).then(epilogues.clip(-2, 2)).then(epilogues.sgd(p, 1.0))  # noqa: E731
    y = spread(lambda g, p: jaxring.reduce_scatter(g[0], "x", epilogue=after(p[0]))[None], gradients, params)
    np.testing.assert_array_equal(y, params - np.clip(gradients.sum(0) / 2, -2, 2).astype(np.float32))


def test_donated_states_take_no_memory_of_their_own():
    mesh = Mesh(np.array(jax.devices()[:RANKS]), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, P("x"))
    shape = (RANKS, 1 << 16)
    # Of a program: memory of NumPy's cannot be donated.
    own = jax.jit(lambda: tuple(jnp.zeros(shape) for _ in range(3)), out_shardings=(sharding,) * 3)()
    gradients = jax.device_put(np.ones((RANKS, *shape), np.float32), sharding)

    def call(own, g):
        step = epilogues.adam(*(each[0] for each in own), 1, 1e-3)
        return tuple(each[None] for each in jaxring.reduce_scatter(g[0], "x", epilogue=step))

    step = jax.jit(jax.shard_map(call, mesh=mesh, in_specs=P("x"), out_specs=P("x")), donate_argnums=0)
    places = lambda arrays: [s.data.unsafe_buffer_pointer() for each in arrays for s in each.addressable_shards]  # noqa: E731
    before = places(own)
    new = step(own, gradients)
    assert places(new) == before
    np.testing.assert_allclose(new[1], np.full(shape, 0.4), rtol=1e-6)


def test_explain_names_it():
    x = integers(64)
    after = epilogues.scale(2).then(epilogues.cast("bfloat16"))
    spread(lambda v: jaxring.all_reduce(v, "x", epilogue=after), x).block_until_ready()
    assert "all_reduce(sum) with epilogue scale, cast to bfloat16, of float32" in jaxring.explain()


def test_a_parameter_of_negative_zero_keeps_its_sign():
    x = np.full((RANKS, 5), 3, np.float32)
    y = np.asarray(spread(lambda v: jaxring.all_reduce(v, "x", epilogue=epilogues.scale(-0.0)), x))
    assert (y == 0).all()
    assert np.signbit(y).all()
