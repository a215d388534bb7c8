"""Every collective of XLA's on the engine: results equal to XLA's own, and none left."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from tests.dropin.whole_program.wp_programs import (
    ORDER,
    exported,
    gradients,
    left,
    loops,
    matrix,
    mesh,
    over,
    reshard,
    targets,
)

CUBE = mesh((2, 2, 2), ORDER)
FLAT = mesh((8,), ORDER)
GRID = mesh((4, 2))

# Program, operand, and the calls that it becomes.
PROGRAMS = {
    "sums, combined": (
        lambda x: (x.sum(0), (2 * x).sum(0), (x * x).sum(1), x.sum()),
        (GRID, ("x", "y")),
        {"all_reduce"},
    ),
    "other reductions": (
        lambda x: (x.max(), x.min(0), (1 + x / 64).prod(1), (x > 3).any(), (x > -1).all(), jnp.argmax(x)),
        (CUBE, (("x", "z"), "y")),
        {"all_reduce", "all_gather"},
    ),
    "matrix product": (lambda x: x @ x.T, (GRID, ("x", "y")), {"all_reduce", "all_gather"}),
    "reshard": (lambda x: reshard(GRID, jnp.sin(x), "y", "x"), (GRID, ("x", "y")), {"all_to_all", "permute"}),
    "reshard of parts": (
        lambda x: reshard(CUBE, jnp.sin(x), "y", ("z", "x")),
        (CUBE, (("x", "z"), "y")),
        {"all_to_all", "permute"},
    ),
    "roll": (lambda x: jnp.roll(x, 3, 0), (FLAT, ("x",)), {"permute"}),
    "sort and fft": (lambda x: (jnp.sort(x, 0), jnp.fft.fft2(x)), (CUBE, ("y", ("x", "z"))), {"all_gather"}),
    "loops": (loops, (CUBE, (("x", "z"), "y")), {"all_reduce", "all_gather", "permute"}),
    "gradients": (gradients, (CUBE, (("x", "z"), "y")), {"all_reduce"}),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_the_partitioner_inserts(name):
    program, (where, spec), wanted = PROGRAMS[name]
    x = matrix(where, *spec)
    f = jax.jit(program)
    expected = f(x)
    with jaxring.installed(whole_program=True):
        compiled = f.lower(x).compile()
        assert left(compiled) == []
        assert targets(compiled) >= wanted
        operations = jaxring.counters()["operations"]
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), f(x), expected)
        assert jaxring.counters()["operations"] > operations


GROUPS = [[0, 3], [1, 2], [4, 7], [6, 5]]


def moved(x):
    """Collectives of the user's that only move data."""
    return (
        lax.all_gather(x, "x", axis=0, tiled=True),
        lax.all_gather(x, "x", axis=1, tiled=True, axis_index_groups=GROUPS),
        lax.all_to_all(x, "x", 1, 0, tiled=True),
        lax.ppermute(x, "x", [(0, 1), (1, 5), (6, 6)]),
    )


def reduced(x):
    """Of numbers whose sums are exact."""
    return (
        lax.psum(x, "x", axis_index_groups=GROUPS),
        lax.psum_scatter(x, "x", scatter_dimension=0, tiled=True),
        lax.psum_scatter(x, "x", scatter_dimension=1, tiled=True, axis_index_groups=GROUPS),
        lax.pmax(x, "x"),
    )


MOVED_ONLY = (np.complex64, np.bool_)


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.int8, *MOVED_ONLY])
def test_exported_programs(dtype):
    x = matrix(FLAT, "x", n=64, dtype=dtype)
    program = over(FLAT, (lambda x: (*moved(x), *reduced(x))) if dtype not in MOVED_ONLY else moved)
    call = exported(program, x)
    expected = jax.jit(program)(x)
    with jaxring.installed(whole_program=True):
        compiled = jax.jit(call).lower(x).compile()
        assert left(compiled) == []
        got = jax.jit(call)(x)
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), got, expected)


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.int8, *MOVED_ONLY])
@pytest.mark.parametrize("source", [0, 3])
def test_collective_broadcast(dtype, source):
    """In groups that are parts of an axis of devices; JAX lowers it for GPUs only."""
    grid = mesh((4, 2), ORDER)
    x = matrix(grid, ("x", "y"), dtype=dtype)
    call = exported(over(grid, lambda x: lax.pbroadcast(x, "x", source)), x, platform="cuda")
    parts = np.asarray(x).reshape(4, 2, 2, 16)
    expected = np.stack([parts[source]] * 4).reshape(16, 16)
    with jaxring.installed(whole_program=True):
        compiled = jax.jit(call).lower(x).compile()
        assert (left(compiled), targets(compiled)) == ([], {"broadcast"})
        np.testing.assert_array_equal(np.asarray(compiled(x)), expected)


def test_ragged_all_to_all():
    """XLA has none on CPUs; jaxring's own of the same call is the reference."""
    ranks, width = 8, 24
    generator = np.random.default_rng(0)
    sent = generator.integers(0, 4, (ranks, ranks)).astype(np.int32)
    came = sent.T.copy()
    begins = (np.cumsum(sent, 1) - sent).astype(np.int32)
    lands = (np.cumsum(came, 1) - came).T.astype(np.int32)
    data = generator.normal(size=(ranks * width, 3)).astype(np.float32)
    place = NamedSharding(FLAT, P("x"))
    values = (data, np.full_like(data, -1), begins, sent, lands, came)
    arguments = [jax.device_put(value, place) for value in values]

    def f(operand, output, *vectors):
        return lax.ragged_all_to_all(operand, output, *(v[0] for v in vectors), axis_name="x") + output.sum()

    call = exported(over(FLAT, f), *arguments)
    with jaxring.installed():
        expected = over(FLAT, f)(*arguments)
    with jaxring.installed(whole_program=True):
        compiled = jax.jit(call).lower(*arguments).compile()
        assert (left(compiled), targets(compiled)) == ([], {"all_to_all", "ragged_all_to_all"})
        np.testing.assert_array_equal(jax.jit(call)(*arguments), expected)


def test_bits_are_those_of_the_users_call():
    """The partitioner's all-reduce adds in the order in which jaxring's own does."""
    x = jax.device_put(np.random.default_rng(1).normal(size=(8, 999)).astype(np.float32), NamedSharding(FLAT, P("x")))
    own = jax.jit(over(FLAT, lambda x: jaxring.all_reduce(x, "x")))(x)[0]
    with jaxring.installed(whole_program=True):
        f = jax.jit(lambda x: x.sum(0))
        assert targets(f.lower(x).compile()) == {"all_reduce"}
        np.testing.assert_array_equal(f(x), own)


def test_eager_operations():
    x = matrix(GRID, "x", "y")
    expected = np.asarray(x).sum()
    with jaxring.installed(whole_program=True):
        operations = jaxring.counters()["operations"]
        assert float(jnp.sum(x)) == expected
        assert jaxring.counters()["operations"] > operations


def test_a_combined_all_reduce_is_one_call():
    x = matrix(GRID, "x", "y")
    with jaxring.installed(whole_program=True):
        text = jax.jit(lambda x: (x.sum(0), (2 * x).sum(0))).lower(x).compile().as_text()
    assert text.count('custom_call_target="jaxring_all_reduce"') == 1
    assert text.count("\\22collective\\22") == 2


def said(why):
    """The lines of explain() on collectives that were left to XLA for that reason."""
    return [line for line in jaxring.explain().splitlines() if "XLA's own collective: " in line and why in line]


def test_groups_of_unequal_sizes_stay_with_xla_and_are_said():
    x = matrix(FLAT, "x", n=8)
    groups = [[0, 1], [2, 3, 4, 5, 6, 7]]
    program = over(FLAT, lambda x: lax.psum(x, "x", axis_index_groups=groups) + lax.pmax(x, "x"))
    expected = jax.jit(program)(x)
    again = exported(program, x)
    with jaxring.installed(whole_program=True):
        compiled = jax.jit(again).lower(x).compile()
        assert (len(left(compiled)), targets(compiled)) == (1, {"all_reduce"})
        np.testing.assert_array_equal(jax.jit(again)(x), expected)
    assert any("test_collectives.py:" in line for line in said("its groups differ in size"))


def test_a_dtype_that_the_engine_lacks_stays_with_xla_and_is_said():
    """Compiled only: XLA's own collective of int2 ends the process."""
    x = jax.ShapeDtypeStruct((8, 8), jnp.int2, sharding=NamedSharding(FLAT, P("x")))
    again = exported(over(FLAT, lambda x: lax.all_gather(x, "x")), x)
    with jaxring.installed(whole_program=True):
        assert len(left(jax.jit(again).lower(x).compile())) == 1
    assert said("jaxring has no collectives for dtype int2")
