"""Collectives of bfloat16, which XLA widens to float32, are done in bfloat16 again where that changes no result."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring._protobuf import Message
from jaxring.dropin.whole_program.hlo import Module
from jaxring.dropin.whole_program.shapes import Shape
from tests.dropin.whole_program.wp_programs import exported, left, matrix, mesh, over

FLAT = mesh((8,))
GRID = mesh((4, 2))
GROUPS = [[0, 3], [1, 2], [4, 7], [6, 5]]


def normal(dtype=jnp.bfloat16, shape=(64, 40)):
    x = np.random.default_rng(0).normal(size=shape).astype(dtype)
    return jax.device_put(x, NamedSharding(FLAT, P("x")))


def calls(compiled):
    """For each of our calls the dtypes of its results, by XLA's names."""
    lines = [line for line in compiled.as_text().splitlines() if 'custom_call_target="jaxring_' in line]
    return [re.findall(r"([a-z0-9]+)\[", line.partition(" = ")[2].partition(" custom-call(")[0]) for line in lines]


def compiled(program, *arguments):
    """By the partitioner alone, and on the engine with the results."""
    call = exported(program, *arguments)
    expected = jax.jit(call)(*arguments)
    with jaxring.installed(whole_program=True):
        made = jax.jit(call).lower(*arguments).compile()
        assert left(made) == []
        return made, jax.jit(call)(*arguments), expected


def same(got, expected):
    def bits(a, b):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(np.asarray(a).view(np.uint8), np.asarray(b).view(np.uint8))

    jax.tree.map(bits, got, expected)


def twice(x):
    """A loop that carries what it gathers."""
    return lax.fori_loop(0, 3, lambda _, x: lax.all_gather(jnp.tanh(x), "x", tiled=True)[: x.shape[0]] * 2, x)


MOVED = {
    "gather": lambda x: lax.all_gather(x, "x", tiled=True),
    "gather, strided": lambda x: lax.all_gather(x, "x", axis=1, tiled=True),
    "gather of what is computed, used by more": lambda x: (lambda y: (jnp.sin(y), y.T, y))(
        lax.all_gather(jnp.tanh(x), "x", tiled=True)
    ),
    "gather, for a product": lambda x: x.T @ lax.all_gather(x, "x", tiled=True)[: x.shape[0]],
    "scatter": lambda x: lax.all_to_all(x, "x", 1, 0, tiled=True),
    "groups": lambda x: lax.all_to_all(jnp.sin(x), "x", 1, 0, tiled=True, axis_index_groups=GROUPS),
    "permute": lambda x: lax.ppermute(x, "x", [(0, 1), (1, 5), (6, 6)]),
    "permute of what others use, too": lambda x: jnp.sin(x) + lax.ppermute(jnp.sin(x), "x", [(0, 1), (1, 0)]),
    "loop": twice,
    "max": lambda x: lax.pmax(x, "x"),
    "min of what is computed": lambda x: jnp.cos(lax.pmin(jnp.tanh(x), "x")),
}


@pytest.mark.parametrize("name", MOVED)
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2"])
@pytest.mark.sampled(3)
def test_what_only_moves_has_the_same_bits(name, dtype):
    made, got, expected = compiled(over(FLAT, MOVED[name]), normal(dtype))
    xla = {"bfloat16": "bf16", "float8_e5m2": "f8e5m2"}[dtype]
    assert calls(made)
    assert {each for call in calls(made) for each in call} == {xla}
    same(got, expected)


REDUCED = {
    "sum": (lambda all_reduce, _, x: all_reduce(x), 1),
    "sum of what is computed, consumed": (lambda all_reduce, _, x: jnp.tanh(all_reduce(jnp.sin(x) * 3)), 1),
    "several": (lambda all_reduce, _, x: (all_reduce(x), all_reduce(x[::-1]).T, jnp.cos(all_reduce(x.T))), None),
    "reduce-scatter": (lambda _, reduce_scatter, x: reduce_scatter(x), 1),
    "reduce-scatter, consumed": (lambda _, reduce_scatter, x: jnp.sin(reduce_scatter(jnp.tanh(x))), 1),
}


@pytest.mark.parametrize("name", REDUCED)
def test_reductions_have_the_bits_of_the_users_calls(name):
    """The engine adds in float32 and rounds once."""
    program, number = REDUCED[name]
    x = normal()
    own = over(FLAT, lambda x: program(lambda y: jaxring.all_reduce(y, "x"), scatter, x))
    scatter = lambda y: jaxring.reduce_scatter(y, "x", scatter_dimension=1, tiled=True)  # noqa: E731
    theirs = over(
        FLAT,
        lambda x: program(
            lambda y: lax.psum(y, "x"), lambda y: lax.psum_scatter(y, "x", scatter_dimension=1, tiled=True), x
        ),
    )
    made, got, _ = compiled(theirs, x)
    assert {each for call in calls(made) for each in call} == {"bf16"}
    assert number is None or len(calls(made)) == number
    same(got, jax.jit(own)(x))


def test_a_sum_is_rounded_once():
    x = normal()
    made, got, _ = compiled(over(FLAT, lambda x: lax.psum(x, "x")), x)
    assert calls(made) == [["bf16"]]
    whole = np.asarray(x).astype(np.float64).reshape(8, 8, 40).sum(0)
    for part in np.split(np.asarray(got), 8):
        np.testing.assert_allclose(part.astype(np.float64), whole, rtol=2**-8, atol=1e-6)


def test_a_product_is_rounded_before_it_is_summed_as_the_program_says():
    """The operand is the product's float32, which XLA does not round; the program's sum is one of bfloat16."""
    x = jax.device_put(
        np.random.default_rng(1).normal(size=(64, 64)).astype(jnp.bfloat16), NamedSharding(GRID, P("x", "y"))
    )
    f = jax.jit(lambda x: x @ x.T)
    with jaxring.installed(whole_program=True):
        made = f.lower(x).compile()
        got = np.asarray(f(x)).astype(np.float64)
    assert {each for call in calls(made) for each in call} == {"bf16"}
    exact = np.asarray(x).astype(np.float64)
    scale = np.abs(exact) @ np.abs(exact.T)
    assert np.max(np.abs(got - exact @ exact.T) / scale) < 2**-7  # two roundings


def test_types_of_a_combined_reduction_are_each_their_own():
    """What is exact in bfloat16 travels so, and what the program adds in float32 does not."""
    x = normal()
    program = over(
        FLAT,
        lambda x: (lax.psum(x, "x"), lax.psum(x.astype(jnp.float32) / 3, "x"), jnp.sin(lax.psum(jnp.abs(x).T, "x"))),
    )
    made, got, expected = compiled(program, x)
    (call,) = calls(made)
    assert sorted(call) == ["bf16", "bf16", "f32"]
    same(got, expected)


WIDE = {
    # jnp.sum adds up in float32, and so do the devices.
    "partial sums": lambda x: x.sum(0),
    "not rounded": lambda x: (lambda y: (y, y.astype(jnp.bfloat16)))(x.astype(jnp.float32).sum(0)),
}


@pytest.mark.parametrize("name", WIDE)
def test_what_the_program_adds_in_float32_stays_so(name):
    x = matrix(GRID, "x", "y", dtype=jnp.bfloat16)
    f = jax.jit(WIDE[name])
    expected = f(x)
    with jaxring.installed(whole_program=True):
        assert calls(f.lower(x).compile()) == [["f32"]]
        same(f(x), expected)


def test_float32_of_the_users_is_rounded_only_where_all_round_it():
    x = normal()
    program = over(FLAT, lambda x: lax.psum(x.astype(jnp.float32), "x"))
    made, got, expected = compiled(program, x)
    assert calls(made) == [["f32"]]
    same(got, expected)


def test_explain_says_bfloat16():
    call = exported(over(FLAT, lambda x: lax.psum(x, "x")), normal())
    with jaxring.installed(whole_program=True):
        made = jax.jit(call).lower(normal()).compile()
    assert "all_reduce(sum) bfloat16[8,40] 640 B in 1 group(s) of 8" in jaxring.explain(made)


def test_no_pass_over_memory_is_added():
    """A sum that goes from an argument to a result has no conversion left, and a loop over elements takes it in."""
    x = normal()
    made, _, _ = compiled(over(FLAT, lambda x: lax.psum(x, "x")), x)
    assert not re.search(r" (fusion|convert)\(", made.as_text().partition("\nENTRY ")[2])
    text = compiled(over(FLAT, lambda x: jnp.cos(lax.psum(jnp.sin(x), "x"))), x)[0].as_text().partition("\nENTRY ")[2]
    assert len(re.findall(r" fusion\(", text)) == 2
    assert " convert(" not in text


def converting(*dtypes, opcode="convert", on_gpus=False):
    """A module of one computation for each dtype, in which a value of that dtype is converted."""

    def computation(dtype):
        value = Message.of((2, "parameter"), (3, Shape(dtype, (4,), (0,)).serialized()), (35, 1))
        made = Message.of((2, opcode), (3, Shape("float32", (4,), (0,)).serialized()), (35, 2), (36, b"\x01"))
        return Message.of((1, "main"), (2, value), (2, made), (5, 1), (6, 2))

    return Module(bytes(Message.of((1, "module"), *((3, computation(each)) for each in dtypes))), on_gpus)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_a_module_that_converts_a_narrow_type_is_read_for_it(dtype):
    assert converting("int32", dtype).converts
    assert not converting("int32", dtype, on_gpus=True).converts
    assert not converting("int32", dtype, opcode="negate").converts
    assert not converting("int32", "float16").converts
