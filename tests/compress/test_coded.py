"""All-reduces of two ranks, whose messages are codes: the bits of the arithmetic on whole arrays, and what says so."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring import optax as jaxring_optax
from jaxring.compress import coded
from tests.compress.bounds import NAMES, data, with_others

# Elements: one block, an odd number of them, an even one, parts of one, and tiles of several messages.
SIZES = (256, 384, 512, 1500, 100_001, 600_000)


def values(count, kind="normal", ranks=2):
    return np.stack([data(count, seed)[kind] for seed in range(ranks)])


def on_pairs(f, x, ranks=2, donate=False):
    """``f`` of each rank's value, and the custom calls of the compiled program."""
    mesh = Mesh(np.array(jax.devices()[:ranks]), ("x",))
    mapped = jax.shard_map(
        lambda v: jax.tree.map(lambda y: y[None], f(v[0])), mesh=mesh, in_specs=P("x"), out_specs=P("x")
    )
    program = jax.jit(mapped, donate_argnums=0 if donate else ())
    sharded = jax.device_put(x, jax.sharding.NamedSharding(mesh, P("x")))
    compiled = program.lower(sharded).compile()
    calls = compiled.as_text().count('custom_call_target="jaxring_quantize"')
    return jax.tree.map(np.asarray, compiled(sharded)), calls


@pytest.fixture
def composed(monkeypatch):
    """Runs a function with the engine's all-reduce of two ranks left out."""

    def run(f, *args, **kwargs):
        with monkeypatch.context() as patched:
            patched.setattr(coded, "serves", lambda call: False)
            return f(*args, **kwargs)

    return run


@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("seed", [None, 11])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(3)
def test_the_bits_of_whole_arrays(name, seed, op, composed):
    for count in SIZES:
        for kind in ("normal", "heavy", "subnormal") if count == 1500 else ("normal",):
            x = values(count, kind)
            f = functools.partial(jaxring.all_reduce, axis_name="x", op=op, compress=name, seed=seed)
            ours, calls = on_pairs(f, x)
            whole, whole_calls = composed(on_pairs, f, x)
            assert (calls, whole_calls) == (0, 1)
            np.testing.assert_array_equal(ours, whole)
            np.testing.assert_array_equal(ours[1], ours[0])
            donated, _ = on_pairs(f, x, donate=True)
            np.testing.assert_array_equal(donated, whole)


@pytest.mark.parametrize("name", NAMES)
def test_nan_and_infinity(name, composed):
    x = values(3000)
    x[1] = with_others(x[1])
    f = functools.partial(jaxring.all_reduce, axis_name="x", compress=name)
    np.testing.assert_array_equal(on_pairs(f, x)[0], composed(on_pairs, f, x)[0])


def test_what_codes_leave_out(composed):
    transformation = jaxring_optax.compressed_mean("x", "int8")

    def step(v):
        gradients = {"large": v, "small": v[:40]}
        state = transformation.init(gradients)
        for _ in range(2):
            mean, state = transformation.update(gradients, state)
        return mean, state

    x = values(100_001)
    ours, whole = on_pairs(step, x), composed(on_pairs, step, x)
    assert ours[1] == 0 < whole[1]
    jax.tree.map(np.testing.assert_array_equal, ours[0], whole[0])
    assert any(np.any(leaf[0] != leaf[1]) for leaf in jax.tree.leaves(ours[0]))


def test_pairs_of_a_mesh(composed):
    x = values(1500, ranks=8)
    groups = ((0, 5), (4, 1), (2, 3), (7, 6))
    f = functools.partial(jaxring.all_reduce, axis_name="x", compress="int8", seed=3, axis_index_groups=groups)
    ours = on_pairs(f, x, ranks=8)[0]
    np.testing.assert_array_equal(ours, composed(on_pairs, f, x, ranks=8)[0])
    for first, second in groups:
        np.testing.assert_array_equal(ours[first], ours[second])
        np.testing.assert_allclose(ours[first], x[first] + x[second], atol=0.1)


def test_derivatives_and_batches(composed):
    def f(v):
        def loss(v):
            return jnp.sum(jaxring.all_reduce(v, "x", compress="int8") ** 2)

        batched = jax.vmap(functools.partial(jaxring.all_reduce, axis_name="x", compress="int8"))(v.reshape(10, -1))
        return jax.grad(loss)(v), batched

    x = values(1500)
    jax.tree.map(np.testing.assert_array_equal, on_pairs(f, x)[0], composed(on_pairs, f, x)[0])


def test_explain_says_that_it_is_compressed():
    jaxring.explain(clear=True)
    on_pairs(functools.partial(jaxring.all_reduce, axis_name="x", compress="fp8_e4m3"), values(5000))
    said = str(jaxring.explain())
    assert "all_reduce(sum) compressed to fp8_e4m3, of float32 19.53 KiB over 'x'" in said
    assert "direct, protocol " in said


@pytest.mark.parametrize("protocol", ["ll", "simple"])
def test_protocols(protocol, composed):
    x = values(1500)
    f = functools.partial(jaxring.all_reduce, axis_name="x", compress="int8")
    ours = on_pairs(functools.partial(f, protocol=protocol), x)[0]
    np.testing.assert_array_equal(ours, composed(on_pairs, f, x)[0])
    assert f"direct, protocol {protocol}" in str(jaxring.explain())


def test_codes_travel_in_messages():
    f = functools.partial(jaxring.all_reduce, axis_name="x", compress="int8", protocol="memory")
    with pytest.raises(jax.errors.JaxRuntimeError, match="sends messages, use protocol 'simple' or 'll'"):
        on_pairs(f, values(1500))


def test_a_call_has_the_sizes_of_its_codes():
    from jaxring.plan.codes import CodesSpec

    codes = CodesSpec(form="int8", number=0, block=128, block_bytes=132, stochastic=True, first_word=4)
    assert codes.nbytes(128 * 4) == 132
    assert codes.nbytes(128 * 4 + 4) == 264
    assert str(codes) == "int8, rounded at random"
