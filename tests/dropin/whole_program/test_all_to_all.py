"""XLA:CPU's all-to-all has an operand and a result for each rank: the engine reads and writes them where they lie."""

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
from tests.dropin.whole_program.wp_programs import ORDER, exported, left, matrix, mesh, over, reshard, targets

FLAT = mesh((8,), ORDER)
GRID = mesh((4, 2))
GROUPS = [[0, 3], [1, 2], [4, 7], [6, 5]]

# A mesh, the axis and its groups, and the same as ranks in the order of the mesh.
WHO = {
    "all": (FLAT, "x", None, [list(range(8))]),
    "pairs": (FLAT, "x", GROUPS, GROUPS),
    "columns": (GRID, "x", None, [[0, 2, 4, 6], [1, 3, 5, 7]]),
    "rows": (GRID, "y", None, [[0, 1], [2, 3], [4, 5], [6, 7]]),
}


def swapped(x, groups):
    """What each rank's part of an all-to-all over dimension 1 is."""
    result = np.empty_like(x)
    for group in groups:
        for rank, device in enumerate(group):
            parts = [np.split(x[peer], len(group))[rank] for peer in group]
            result[device] = np.concatenate(parts)
    return result


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "int4", "uint16", "complex128"])
@pytest.mark.parametrize("shape", [(8 * 7, 3), (8, 1), (8 * 1001, 5)])
@pytest.mark.sampled(5)
def test_values(who, dtype, shape):
    where, axis, axis_groups, groups = WHO[who]
    generator = np.random.default_rng(len(who) + shape[0])
    x = generator.integers(0, 2 if dtype == "bool" else 8, (8, *shape)).astype(jnp.dtype(dtype))
    placed = jax.device_put(x, NamedSharding(where, P(where.axis_names)))
    program = over(where, lambda x: lax.all_to_all(x, axis, 1, 1, axis_index_groups=axis_groups, tiled=True))
    call = exported(program, placed)
    with jaxring.installed(whole_program=True):
        compiled = jax.jit(call).lower(placed).compile()
        assert (left(compiled), targets(compiled)) == ([], {"all_to_all"})
        for _ in range(3):
            np.testing.assert_array_equal(np.asarray(jax.jit(call)(placed)), swapped(x, groups))


def test_scalars_and_empty_blocks():
    for shape in ((8,), (8, 0)):
        x = jax.device_put(np.arange(8 * np.prod(shape)).reshape(8, *shape), NamedSharding(FLAT, P("x")))
        call = exported(over(FLAT, lambda x: lax.all_to_all(x, "x", 1, 1, tiled=True)), x)
        with jaxring.installed(whole_program=True):
            np.testing.assert_array_equal(jax.jit(call)(x), swapped(np.asarray(x), [list(range(8))]))


def test_nothing_is_joined_or_cut():
    """The call's operands and results are those that the collective had."""
    x = matrix(GRID, "x", "y", n=48)
    f = jax.jit(lambda x: reshard(GRID, jnp.sin(x), "y", "x"))

    def text():
        return f.lower(x).compile().as_text()

    def count(text, opcode):
        return len(re.findall(rf" {opcode}\(", text))

    before = text()
    with jaxring.installed(whole_program=True):
        after = text()
        np.testing.assert_allclose(f(x), np.sin(np.asarray(x)), rtol=1e-5)
    (call,) = [line for line in after.splitlines() if 'custom_call_target="jaxring_all_to_all"' in line]
    (collective,) = [line for line in before.splitlines() if " all-to-all(" in line]
    results = [line.partition(" = ")[2].partition(") ")[0] for line in (call, collective)]
    assert results[0] == results[1]
    assert results[0].count("f32[") == 2
    for opcode in ("concatenate", "slice", "copy", "fusion", "get-tuple-element"):
        assert count(after, opcode) == count(before, opcode), opcode
    assert set(re.findall(r"%(jaxring_[a-z_]+)\.[0-9.]+ = ", after)) == {"jaxring_partition_id"}


def test_a_loop_runs_it_many_times():
    x = matrix(FLAT, "x", n=16)

    def turned(x):
        return lax.fori_loop(0, 31, lambda i, x: lax.all_to_all(x, "x", 1, 0, tiled=True).T + i, x)

    program = over(FLAT, turned)
    expected = jax.jit(program)(x)
    call = exported(program, x)
    with jaxring.installed(whole_program=True):
        np.testing.assert_array_equal(jax.jit(call)(x), expected)


def test_explain_says_the_whole_operand():
    x = matrix(GRID, "x", "y", n=48)
    with jaxring.installed(whole_program=True):
        compiled = jax.jit(lambda x: reshard(GRID, jnp.sin(x), "y", "x")).lower(x).compile()
    lines = [line for line in jaxring.explain(compiled).splitlines() if line.startswith("all_to_all ")]
    assert len(lines) == 1
    assert re.match(r"all_to_all float32\[2,[0-9,]+\] [0-9.]+ [KM]?i?B in 4 group\(s\) of 2 over 2 of 8", lines[0])
