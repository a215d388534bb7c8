"""`jaxring.reshard` inside `jax.jit`: any pair of shardings over one mesh, derivatives, and what is sent."""

from __future__ import annotations

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring.resharding import cells

AUTO = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"))
EXPLICIT = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Explicit,) * 2, devices=jax.devices()[:4])
SPECS = [P(), P("a"), P("b"), P(None, "a"), P("a", "b"), P("b", "a"), P(("a", "b")), P(("b", "a")), P(None, ("a", "b"))]
SHAPE = (8, 12)


def values(dtype=np.float32):
    return np.arange(np.prod(SHAPE)).reshape(SHAPE).astype(dtype)


def on(mesh, spec):
    return NamedSharding(mesh, spec)


@pytest.mark.parametrize("mesh", [AUTO, EXPLICIT], ids=["auto", "explicit"])
@pytest.mark.sampled(2)
def test_all_pairs(mesh):
    """In one program, whose arrays' types say their shardings or not."""
    pairs = list(itertools.product(SPECS, SPECS))
    sources = None if mesh is EXPLICIT else [on(mesh, source) for source, _ in pairs]
    targets = [on(mesh, target) for _, target in pairs]

    @jax.jit
    def run(arrays):
        moved = jaxring.reshard(arrays, targets, from_sharding=sources)
        return [x * 2 for x in moved]

    results = run([jax.device_put(values() + i, on(mesh, source)) for i, (source, _) in enumerate(pairs)])
    for i, (result, target) in enumerate(zip(results, targets, strict=True)):
        np.testing.assert_array_equal(result, 2 * (values() + i))
        assert result.sharding.is_equivalent_to(target, 2)


@pytest.mark.parametrize("abstract", ["source", "target"])
def test_a_mesh_without_devices_is_that_of_the_other_sharding(abstract):
    """The type of an array in a program says its sharding over an abstract mesh."""
    source, target = on(EXPLICIT, P("a")), on(EXPLICIT, P(None, "b"))

    @jax.jit
    def run(x, y):
        typed = {"source": jax.typeof(x).sharding, "target": jax.typeof(y).sharding}[abstract]
        assert not isinstance(typed.mesh, Mesh)
        pair = (typed, target) if abstract == "source" else (source, typed)
        return jaxring.reshard(x, pair[1], from_sharding=pair[0])

    moved = run(jax.device_put(values(), source), jax.device_put(values(), target))
    np.testing.assert_array_equal(moved, values())
    assert moved.sharding.is_equivalent_to(target, 2)


def test_another_mesh_of_the_devices_may_be_in_scope():
    moved = jax.jit(lambda x: jaxring.reshard(x, on(AUTO, P(None, "a")), from_sharding=on(AUTO, P("a"))) * 2)
    x = jax.device_put(values(), on(AUTO, P("a")))
    for mesh in (AUTO, Mesh(AUTO.devices, ("c", "d"))):
        with jax.set_mesh(mesh):
            np.testing.assert_array_equal(moved(x), 2 * values())


AXES = st.permutations(range(3)).flatmap(lambda order: st.integers(0, 3).map(lambda n: tuple(order[:n])))


@st.composite
def entries(draw, dimensions):
    """Which axes shard each dimension: each axis one dimension at most."""
    found: list[list[int]] = [[] for _ in range(dimensions)]
    for axis in draw(AXES):
        found[draw(st.integers(0, dimensions - 1))].append(axis)
    return tuple(map(tuple, found))


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 3))
def test_tables_of_any_pair(data, dimensions):
    """Following the tables gives each device its block, and each cell that it does not have is sent to it once.

    Another process sends it only what no device of its own process has.
    """
    sizes = tuple(data.draw(st.sampled_from([(2, 2, 2), (2, 3, 2), (4, 1, 2)])))
    source, target = data.draw(entries(dimensions)), data.draw(entries(dimensions))
    processes = tuple(data.draw(st.sampled_from([0, 1])) for _ in range(int(np.prod(sizes))))
    table = cells.exchange(source, target, sizes, processes)
    shape = [24] * dimensions
    whole = np.arange(np.prod(shape)).reshape(shape)

    def block(entry, place):
        spans = []
        for size, axes in zip(shape, entry, strict=True):
            number = 0
            for axis in axes:
                number = number * sizes[axis] + place[axis]
            count = int(np.prod([sizes[axis] for axis in axes], dtype=int))
            spans.append(slice(number * size // count, (number + 1) * size // count))
        return whole[tuple(spans)]

    def rows(array, counts):
        """The cells of an array in order, one a row."""
        parts = [array]
        for dimension, count in enumerate(counts):
            parts = [each for part in parts for each in np.split(part, count, dimension)]
        return np.stack([part.ravel() for part in parts])

    places = list(np.ndindex(*sizes))
    held = [rows(block(source, place), table.held) for place in places]
    wanted = [rows(block(target, place), table.wanted) for place in places]
    sent = [part[at] for part, at in zip(held, table.sent_from, strict=True)]
    begin = np.cumsum(table.sizes, 1) - table.sizes
    for device, expected in enumerate(wanted):
        arrived = np.concatenate(
            [
                part[begin[other, device] : begin[other, device] + table.sizes[other, device]]
                for other, part in enumerate(sent)
            ]
        )
        np.testing.assert_array_equal(arrived[table.lies_at[device]], expected)
        missing = set(expected[:, 0]) - set(held[device][:, 0])
        assert table.sizes[:, device].sum() - table.sizes[device, device] == len(missing)
        beside = [i for i, process in enumerate(processes) if process == processes[device]]
        missing -= {number for i in beside for number in held[i][:, 0]}
        assert table.sizes[:, device].sum() - table.sizes[beside, device].sum() == len(missing)
    assert table.moves == bool((table.sizes - np.diag(np.diag(table.sizes))).any())


def test_one_exchange_or_none():
    def calls(source, target):
        run = jax.jit(lambda x: jaxring.reshard(x, on(AUTO, target), from_sharding=on(AUTO, source)))
        text = run.lower(jax.ShapeDtypeStruct(SHAPE, np.float32)).as_text()
        return len(re.findall(r"@jaxring_\w+\(", text))

    assert calls(P("a", "b"), P("b", "a")) == 1
    assert calls(P("a"), P(None, "a")) == 1
    # What a device has already, it cuts out.
    assert calls(P(), P("a", "b")) == 0


@pytest.mark.parametrize("mesh", [AUTO, EXPLICIT], ids=["auto", "explicit"])
@pytest.mark.parametrize("target", [P(), P("b", "a"), P(None, ("b", "a"))])
@pytest.mark.sampled(5)
def test_derivatives(mesh, target):
    source = on(mesh, P("a"))
    options = {} if mesh is EXPLICIT else {"from_sharding": source}

    def everything(moved, x, weights):
        def f(x):
            return jnp.sum(jnp.sin(moved(x)) * weights)

        second = jax.grad(lambda x: jnp.sum(jax.grad(f)(x) ** 2))
        return jax.grad(f)(x), jax.jvp(f, (x,), (x,))[1], second(x)

    x, weights = values() / 50, np.cos(values())
    ours = jax.jit(functools.partial(everything, lambda x: jaxring.reshard(x, on(mesh, target), **options)))(
        jax.device_put(x, source), jax.device_put(weights, on(mesh, target))
    )
    theirs = everything(lambda x: x, x, weights)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), ours, theirs)
    assert ours[0].sharding.is_equivalent_to(source, 2)


@pytest.mark.parametrize("dtype", ["bfloat16", "bool", "int8", "complex64", "float8_e4m3fn"])
@pytest.mark.parametrize("shape", [(8, 12), (8, 0), (8, 4, 2)])
def test_dtypes_and_shapes(dtype, shape):
    source, target = on(AUTO, P("a")), on(AUTO, P(None, ("b", "a")))
    x = (np.arange(np.prod(shape)) % 7).reshape(shape).astype(dtype)
    run = jax.jit(lambda x, _: jaxring.reshard(x, target, from_sharding=source))
    y = run(jax.device_put(x, source), np.float32(1))
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("mesh", [AUTO, EXPLICIT], ids=["auto", "explicit"])
@pytest.mark.parametrize("dim", [0, 2])
@pytest.mark.sampled(3)
def test_batches(mesh, dim):
    """The batch has a dimension of its own, whose sharding stays; derivatives of a batch are those of its entries."""
    source, target = P("a"), P(None, "a")
    options = {} if mesh is EXPLICIT else {"from_sharding": on(mesh, source)}
    batch = np.stack([values(), np.cos(values())])

    def moved(v):
        return jaxring.reshard(v, on(mesh, target), **options)

    def squares(v):
        return jnp.sum(moved(v) ** 2)

    def sharded(spec, over, at):
        entries = [*spec, *[None] * (2 - len(spec))]
        return on(mesh, P(*entries[:at], over, *entries[at:]))

    for over in (None, "b"):
        # Over an explicit mesh the type of the batch says how it is sharded.
        name = {} if mesh is EXPLICIT else {"spmd_axis_name": over}
        run = jax.vmap(lambda v: (moved(v), jax.grad(squares)(v)), in_axes=dim, **name)
        x = jax.device_put(np.moveaxis(batch, 0, dim), sharded(source, over, dim))
        there, gradients = jax.jit(run)(x)
        np.testing.assert_array_equal(there, batch)
        np.testing.assert_array_equal(gradients, 2 * batch)
        assert there.sharding.is_equivalent_to(sharded(target, over, 0), 3)
        assert gradients.sharding.is_equivalent_to(sharded(source, over, 0), 3)


def test_a_batch_is_one_exchange():
    run = jax.vmap(lambda x: jaxring.reshard(x, on(AUTO, P(None, "a")), from_sharding=on(AUTO, P("a"))))
    text = jax.jit(run).lower(jax.ShapeDtypeStruct((3, *SHAPE), np.float32)).as_text()
    assert len(re.findall(r"@jaxring_\w+\(", text)) == 1


@pytest.mark.parametrize("mesh", [AUTO, EXPLICIT], ids=["auto", "explicit"])
@pytest.mark.parametrize("made", ["int4", "uint4", "key"])
def test_what_travels_as_another_dtype(mesh, made):
    source, target = on(mesh, P("a")), on(mesh, P(None, ("b", "a")))
    options = {} if mesh is EXPLICIT else {"from_sharding": source}
    x = jax.random.split(jax.random.key(0, impl="rbg"), (4, 8)) if made == "key" else (values() % 16).astype(made)
    y = jax.jit(lambda x: jaxring.reshard(x, target, **options))(jax.device_put(x, source))
    assert y.dtype == x.dtype
    assert y.sharding.is_equivalent_to(target, 2)
    x, y = (jax.random.key_data(each) if made == "key" else each for each in (x, y))
    np.testing.assert_array_equal(y, x)


def test_bad_calls():
    x = np.ones(SHAPE, np.float32)
    rows, columns = on(AUTO, P("a")), on(AUTO, P(None, "a"))
    with pytest.raises(
        TypeError, match=r"the sharding of .* is not known, .*; pass from_sharding, or use a mesh whose"
    ):
        jax.jit(lambda v: jaxring.reshard(v, columns))(x)
    other = on(Mesh(AUTO.devices[::-1], AUTO.axis_names), P("a"))
    with pytest.raises(ValueError, match=r"inside jax\.jit both shardings must be over one mesh"):
        jax.jit(lambda v: jaxring.reshard(v, other, from_sharding=rows))(x)
    for shardings in ((rows, on(AUTO, P(P.UNCONSTRAINED))), (on(AUTO, P(None, P.UNCONSTRAINED)), rows)):
        with pytest.raises(ValueError, match=r"jaxring\.reshard: P.* must say of each dimension which axes shard it"):
            jax.jit(lambda v, to=shardings[1], by=shardings[0]: jaxring.reshard(v, to, from_sharding=by))(x)
    single = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    with pytest.raises(TypeError, match=r"must be a jax\.sharding\.NamedSharding, not SingleDevice"):
        jax.jit(lambda v: jaxring.reshard(v, single, from_sharding=rows))(x)
    with pytest.raises(TypeError, match="no collectives for dtype int2"):
        jax.jit(lambda v: jaxring.reshard(v.astype("int2"), columns, from_sharding=rows))(x)
    with pytest.raises(TypeError, match=r"this is inside jax\.shard_map"):
        jax.jit(
            jax.shard_map(
                lambda v: jaxring.reshard(v, columns, from_sharding=rows), mesh=AUTO, in_specs=P("a"), out_specs=P("a")
            )
        )(x)
    twice = jax.vmap(lambda v: jaxring.reshard(v, columns, from_sharding=rows), spmd_axis_name="a")
    with pytest.raises(ValueError, match=r"the batch of jax\.vmap is sharded over axis 'a', over which .*'a'.* shards"):
        jax.jit(twice)(np.ones((2, *SHAPE), np.float32))
    with pytest.raises(ValueError, match=r"from_sharding is for use inside jax\.jit"):
        jaxring.reshard(jax.device_put(x, rows), columns, from_sharding=rows)
    with pytest.raises(ValueError, match=r"partitioned 2 times|divisible by 2"):
        jax.jit(lambda v: jaxring.reshard(v, columns, from_sharding=rows))(np.ones((8, 3), np.float32))
