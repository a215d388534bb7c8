"""`jaxring.reshard` within one process: values, dtypes, trees, memory, contexts and bad calls."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring.resharding import whole_shards
from jaxring.resharding.facts import Facts

DEVICES = np.array(jax.devices()[:4])
ROWS = NamedSharding(Mesh(DEVICES, ("x",)), P("x"))
COLUMNS = NamedSharding(Mesh(DEVICES[::-1], ("x",)), P(None, "x"))
REVERSED = NamedSharding(Mesh(DEVICES[::-1], ("x",)), P("x"))
WHOLE = NamedSharding(Mesh(DEVICES, ("x",)), P())
HALF = NamedSharding(Mesh(DEVICES[2:], ("x",)), P("x"))
BLOCKS = NamedSharding(Mesh(DEVICES.reshape(2, 2), ("x", "y")), P("x", "y"))
GRID = NamedSharding(BLOCKS.mesh, P("y", "x"))  # of the same mesh, transposed
TARGETS = [ROWS, COLUMNS, REVERSED, WHOLE, HALF, GRID]
# Of less than 4 MiB, and as many.
SIDES = [8, 1024]
DTYPES = [
    "float32",
    "bfloat16",
    "int4",
    "int2",
    "uint2",
    "float4_e2m1fn",
    "float8_e4m3fn",
    "bool",
    "complex64",
    "uint8",
]


def numbers(side, dtype=np.float32):
    return (np.arange(side * side) % 251).reshape(side, side).astype(dtype)


@pytest.mark.parametrize("side", [8, 64, 1024])  # a program of JAX's own for 64 x 64 int2 harms the heap
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype, side):
    values = numbers(side, jnp.dtype(dtype))
    x = jax.device_put(values, ROWS)
    for to in TARGETS:
        y = jaxring.reshard(x, to)
        assert y.sharding == to
        assert y.dtype == x.dtype
        np.testing.assert_array_equal(np.asarray(y), values)


def test_trees_and_shapes():
    tree = {"a": jnp.float32(3), "b": [jnp.ones((0, 4)), jnp.arange(2**20, dtype=jnp.float32).reshape(1024, 1024)]}
    tree = jax.device_put(tree, WHOLE)
    result = jaxring.reshard(tree, {"a": WHOLE, "b": COLUMNS})
    assert result["a"].sharding == WHOLE
    assert result["b"][1].sharding == COLUMNS
    jax.tree.map(np.testing.assert_array_equal, result, tree)
    single = jaxring.reshard(tree, jax.sharding.SingleDeviceSharding(DEVICES[2]))
    jax.tree.map(np.testing.assert_array_equal, single, tree)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("to", TARGETS)
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


def spans(x):
    """The first and the last address of each shard."""
    found = {shard.device: (shard.data.unsafe_buffer_pointer(), shard.data.nbytes) for shard in x.addressable_shards}
    return {device: (at, at + nbytes) for device, (at, nbytes) in found.items()}


@pytest.mark.parametrize("side", SIDES)
def test_a_result_shares_no_memory_with_the_operand(side):
    whole_half = NamedSharding(HALF.mesh, P())
    for source in (*TARGETS, whole_half):
        x = jax.device_put(numbers(side), source)
        np.asarray(x)  # a host's copy of the operand is none that the result may lie in, either
        for to in (*TARGETS, whole_half):
            y = jaxring.reshard(x, to)
            shared = [(a, b) for a in spans(x).values() for b in spans(y).values() if max(a[0], b[0]) < min(a[1], b[1])]
            assert not shared, (source, to)
            np.testing.assert_array_equal(np.asarray(y), numbers(side))


@pytest.mark.parametrize("side", SIDES)
def test_shards_that_stay_are_copied_unless_they_may_be_shared(side):
    x = jax.device_put(numbers(side), BLOCKS)
    apart, shared = jaxring.reshard(x, GRID), jaxring.reshard(x, GRID, may_alias=True)
    for y in (apart, shared):
        assert y.sharding == GRID
        np.testing.assert_array_equal(np.asarray(y), numbers(side))
    before = spans(x)
    assert not set(before.values()) & set(spans(apart).values())
    # The first and the last device of the grid keep their shards when it is transposed. Small ones may be copied.
    same = [device for device, at in spans(shared).items() if before[device] == at]
    assert same == ([DEVICES[0], DEVICES[3]] if numbers(side).nbytes >= 1 << 20 else [])


@pytest.mark.parametrize("side", SIDES)
def test_xla_copies_whole_shards_of_large_arrays(side):
    def whole(source, to, may_alias=False):
        x = jax.device_put(numbers(side), source)
        y = whole_shards.move(Facts(x.shape, x.dtype, source, to), x, may_alias)
        assert y is None or (np.asarray(y) == numbers(side)).all()
        return y is not None

    large = numbers(side).nbytes >= 4 << 20
    assert whole(ROWS, REVERSED) == whole(BLOCKS, GRID) == whole(ROWS, REVERSED, may_alias=True) == large
    assert whole(BLOCKS, GRID, may_alias=True) == large
    for to in (COLUMNS, WHOLE, HALF):
        assert not whole(ROWS, to, may_alias=True)


@pytest.mark.parametrize("may_alias", [False, True])
@pytest.mark.parametrize("side", SIDES)
def test_an_operand_with_another_layout(side, may_alias):
    """A result is in the default one, in all shards: JAX takes the first's for that of all."""
    x = jax.device_put(jax.device_put(numbers(side), BLOCKS), Format(Layout((1, 0)), BLOCKS))
    assert x.format.layout.major_to_minor == (1, 0)
    for to in (*TARGETS, BLOCKS):
        y = jaxring.reshard(x, to, may_alias=may_alias)
        assert {shard.data.format.layout.major_to_minor for shard in y.addressable_shards} == {(0, 1)}
        np.testing.assert_array_equal(np.asarray(jax.jit(lambda a: a * 1)(y)), numbers(side))


@pytest.mark.parametrize("kind", ["pinned_host", "unpinned_host"])
@pytest.mark.parametrize("side", SIDES)
def test_memory_kinds(side, kind):
    default = DEVICES[0].default_memory().kind
    for sharding in TARGETS:
        there = sharding.with_memory_kind(kind)
        for source, to in ((ROWS.with_memory_kind(kind), sharding), (ROWS, there), (there, there), (sharding, there)):
            y = jaxring.reshard(jax.device_put(numbers(side), source), to, may_alias=True)
            assert y.sharding == to
            assert {shard.data.sharding.memory_kind for shard in y.addressable_shards} == {to.memory_kind or default}
            np.testing.assert_array_equal(np.asarray(y), numbers(side))


OTHERS = {
    "the same mesh": ROWS.mesh,
    "another mesh": GRID.mesh,
    "fewer devices": Mesh(DEVICES[:2], ("z",)),
    "explicit axes": jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2, devices=DEVICES.tolist()),
}


@pytest.mark.parametrize("mesh", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("side", SIDES)
def test_within_set_mesh(side, mesh):
    x = jax.device_put(numbers(side), ROWS)
    transposed = jax.device_put(x, Format(Layout((1, 0)), ROWS))
    with jax.set_mesh(mesh):
        for to in TARGETS:
            for operand in (x, transposed):
                y = jaxring.reshard(operand, to, may_alias=True)
                assert y.sharding == to
                np.testing.assert_array_equal(np.asarray(y), numbers(side))
        assert jax.sharding.get_mesh() == mesh


def test_a_tree_of_many_shapes_compiles_nothing():
    tree = [jax.device_put(np.ones((512 + 4 * i, 512), np.float32), ROWS) for i in range(20)]
    found, listening = [], True
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: found.append(event) if listening and "backend_compile" in event else None
    )
    jax.jit(lambda a: a + 2)(tree[0])
    assert len(found) == 1  # so that is the event's name
    jaxring.reshard(tree, REVERSED)
    listening = False
    assert len(found) == 1


@pytest.mark.parametrize("layout", [(0, 1), (1, 0)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "int4"])
def test_the_operand_keeps_no_copy_for_the_host(dtype, layout):
    """It would hold as many bytes as the array for as long as it is there."""
    x = jax.device_put(jax.device_put(numbers(1024, jnp.dtype(dtype)), ROWS), Format(Layout(layout), ROWS))
    for to in TARGETS:
        jaxring.reshard(x, to)
        assert x._npy_value is None
        assert all(shard.data._npy_value is None for shard in x.addressable_shards)


def test_concrete_arrays_while_others_are_traced():
    x = jax.device_put(numbers(8), ROWS)
    with pytest.raises(TypeError, match=r"inside jax\.jit it moves traced arrays, .* pass them as arguments"):
        jax.jit(lambda a: a + jaxring.reshard(x, REVERSED).sum())(1.0)
    with pytest.raises(TypeError, match="pass them as arguments"):
        jax.jit(jax.grad(lambda a: a * jaxring.reshard(x, REVERSED).sum()))(1.0)
    # Derivatives outside of jax.jit are of concrete arrays.
    slope = jax.grad(lambda a: a * jaxring.reshard(x, REVERSED).sum())(1.0)
    np.testing.assert_array_equal(slope, numbers(8).sum())


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
