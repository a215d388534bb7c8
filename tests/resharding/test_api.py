"""`jaxring.reshard` within one process: values, dtypes, trees, donation and bad calls."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring.resharding import compiled
from jaxring.resharding.facts import Facts

DEVICES = np.array(jax.devices()[:4])
ROWS = NamedSharding(Mesh(DEVICES, ("x",)), P("x"))
COLUMNS = NamedSharding(Mesh(DEVICES[::-1], ("x",)), P(None, "x"))
REVERSED = NamedSharding(Mesh(DEVICES[::-1], ("x",)), P("x"))
WHOLE = NamedSharding(Mesh(DEVICES, ("x",)), P())
GRID = NamedSharding(Mesh(DEVICES.reshape(2, 2), ("x", "y")), P("y", "x"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int4", "float8_e4m3fn", "bool", "complex64", "uint8"])
def test_dtypes(dtype):
    x = jax.device_put(jnp.arange(64).reshape(8, 8).astype(dtype), ROWS)
    for to in (COLUMNS, WHOLE, GRID, ROWS):
        y = jaxring.reshard(x, to)
        assert y.sharding == to
        assert y.dtype == x.dtype
        np.testing.assert_array_equal(np.asarray(y), np.asarray(x))


def test_trees_and_shapes():
    tree = {"a": jnp.float32(3), "b": [jnp.ones((0, 4)), jnp.arange(2**20, dtype=jnp.float32).reshape(1024, 1024)]}
    tree = jax.device_put(tree, WHOLE)
    result = jaxring.reshard(tree, {"a": WHOLE, "b": COLUMNS})
    assert result["a"].sharding == WHOLE
    assert result["b"][1].sharding == COLUMNS
    jax.tree.map(np.testing.assert_array_equal, result, tree)
    single = jaxring.reshard(tree, jax.sharding.SingleDeviceSharding(DEVICES[2]))
    jax.tree.map(np.testing.assert_array_equal, single, tree)


@pytest.mark.parametrize("side", [8, 1024])
@pytest.mark.parametrize("to", [ROWS, WHOLE, REVERSED, COLUMNS])
def test_operand_and_result_can_be_donated(to, side):
    ones = np.ones((side, side), np.float32)
    x = jax.device_put(ones, ROWS)
    y = jaxring.reshard(x, to)
    more = jax.jit(lambda v: v + 1, donate_argnums=0)
    more(x)
    np.testing.assert_array_equal(np.asarray(y), ones)
    z = jaxring.reshard(y, ROWS)
    np.testing.assert_array_equal(np.asarray(more(y)), 2 * ones)
    np.testing.assert_array_equal(np.asarray(z), ones)


def _memory(x):
    return {shard.device: shard.data.unsafe_buffer_pointer() for shard in x.addressable_shards}


@pytest.mark.parametrize("side", [8, 1024])
def test_shards_that_stay_are_copied_unless_they_may_be_shared(side):
    values = np.arange(side * side, dtype=np.float32).reshape(side, side)
    x = jax.device_put(values, NamedSharding(GRID.mesh, P("x", "y")))
    apart, shared = jaxring.reshard(x, GRID), jaxring.reshard(x, GRID, may_alias=True)
    for y in (apart, shared):
        assert y.sharding == GRID
        np.testing.assert_array_equal(np.asarray(y), values)
    before = _memory(x)
    assert not set(before.values()) & set(_memory(apart).values())
    # The first and the last device of the grid keep their shards when it is transposed.
    same = [device for device, at in _memory(shared).items() if before[device] == at]
    assert same == [DEVICES[0], DEVICES[3]]


def test_which_arrays_a_program_moves():
    def moved(target, side=1024, most_bytes=1 << 30):
        return compiled.program(Facts((side, side), np.dtype(np.float32), ROWS, target), most_bytes, None, False)

    assert moved(REVERSED)
    assert moved(COLUMNS)
    assert moved(WHOLE, side=8)
    assert moved(WHOLE) is None  # its four copies share memory
    assert moved(NamedSharding(Mesh(DEVICES[:2], ("x",)), P("x")))
    assert moved(ROWS)
    assert moved(NamedSharding(GRID.mesh, P("x"))) is None  # two copies of each half


def test_bad_calls():
    x = jax.device_put(np.ones((8, 8), np.float32), ROWS)
    with pytest.raises(TypeError, match=r"to_sharding must be a jax\.sharding\.Sharding or a tree of them, not P"):
        jaxring.reshard(x, P("x"))
    with pytest.raises(TypeError, match=r"a leaf must be a jax\.Array, or .* not an array of float32\[8, 8\]"):
        jaxring.reshard(np.ones((8, 8), np.float32), WHOLE)
    with pytest.raises(TypeError, match=r"has no sharding"):
        jaxring.reshard(jax.ShapeDtypeStruct((8, 8), np.float32), WHOLE)
    with pytest.raises(TypeError, match=r"reshard jax\.random\.key_data of it"):
        jaxring.reshard(jax.random.key(0), WHOLE)
    with pytest.raises(ValueError, match=r"process 0 has a part of .*; pass the jax\.Array in its place"):
        jaxring.reshard(jax.ShapeDtypeStruct((8, 8), np.float32, sharding=ROWS), WHOLE)
    with pytest.raises(ValueError, match=r"partitioned 4 times|divisible by 4"):
        jaxring.reshard(jax.device_put(np.ones(6, np.float32), WHOLE), ROWS)
    for number in (100, (1 << 30) + 1):
        with pytest.raises(ValueError, match=f"round_bytes={number} must be 65536 at least and 1073741824 at most"):
            jaxring.reshard(x, WHOLE, round_bytes=number)
    with pytest.raises(ValueError, match=r"jaxring\.reshard: timeout must be a positive number of seconds, not 0"):
        jaxring.reshard(x, WHOLE, timeout=0)
