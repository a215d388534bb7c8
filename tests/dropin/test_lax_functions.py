"""`jaxring.lax` as a module in place of `jax.lax`: signatures, constants, names, and what JAX lacks on CPU."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring import _compat, lax
from tests.dropin.inst_cases import mesh

NAMES = ["psum", "pmean", "pmax", "pmin", "psum_scatter", "all_gather", "all_to_all", "ragged_all_to_all"]
NAMES += ["ppermute", "pshuffle", "pswapaxes", "pbroadcast", "axis_index", "axis_size"]
NAMES += [name for name in ("psum_scatter_start",) if hasattr(jax.lax, name)]  # from jax 0.12 on


@pytest.mark.parametrize("name", NAMES)
def test_signature(name):
    assert inspect.signature(getattr(lax, name)) == inspect.signature(getattr(jax.lax, name))
    assert getattr(lax, name).__name__ == name


def test_other_names_are_those_of_jax():
    assert lax.scan is jax.lax.scan
    with pytest.raises(AttributeError):
        lax.no_such_name  # noqa: B018


def test_constants_stay_constants():
    found = []

    def f(x):
        found.extend([lax.psum(1, "i"), lax.axis_size("i"), lax.psum(2.5, "i")])
        return x + lax.axis_index("i")

    y = jax.pmap(f, axis_name="i")(np.zeros(8, np.int32))
    assert found[:3] == [8, 8, 20.0]
    assert isinstance(found[0], int)
    np.testing.assert_array_equal(y, np.arange(8))


# jax 0.12 takes an array, too.
SOURCES = [2, *([jnp.int32(2)] if "pbroadcast_dynamic" in _compat.collective_primitives() else [])]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("way", ["lax", "install"])
def test_pbroadcast(way, source):
    """JAX has no CPU version: every rank gets the source's value, and its gradient is the sum of all."""
    namespace = lax if way == "lax" else jax.lax

    def rank(x):
        y, pull = jax.vjp(lambda x: namespace.pbroadcast(x, "y", source), x[0, 0])
        return y.reshape(1, 1), pull(y * 0 + 1)[0].reshape(1, 1)

    specs = P("x", "y")
    f = jax.jit(jax.shard_map(rank, mesh=mesh(), in_specs=specs, out_specs=specs))
    x = np.arange(8.0, dtype=np.float32).reshape(2, 4)
    if way == "install":
        with jaxring.installed():
            y, dx = f(x)
    else:
        y, dx = f(x)
    np.testing.assert_array_equal(y, np.repeat(x[:, 2:3], 4, axis=1))
    np.testing.assert_array_equal(dx, np.tile([0, 0, 4, 0], (2, 1)))


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("way", ["lax", "install"])
def test_ragged_all_to_all(way, slices):
    """JAX has no CPU version: compared with a loop over all messages, also with several slices per pair of ranks."""
    namespace = lax if way == "lax" else jax.lax
    ranks, rng = 4, np.random.default_rng(slices)
    sizes = rng.integers(0, 3, (ranks, ranks, slices))  # from, to, slice
    room = int(sizes.sum(axis=(0, 2)).max()) + 2
    operand = rng.integers(0, 99, (ranks, int(sizes.sum(axis=(1, 2)).max()), 2)).astype(np.float32)
    starts = np.zeros_like(sizes)
    lands = np.zeros_like(sizes)
    expected = np.full((ranks, room, 2), -1, np.float32)
    filled = [1] * ranks
    for s in range(ranks):
        offset = 0
        for t in range(ranks):
            for i in range(slices):
                n = sizes[s, t, i]
                starts[s, t, i], lands[s, t, i] = offset, filled[t]
                expected[t, filled[t] : filled[t] + n] = operand[s, offset : offset + n]
                offset, filled[t] = offset + n, filled[t] + n

    def rank(*operands):
        x, output, *vectors = (v[0] for v in operands)
        return namespace.ragged_all_to_all(x, output, *vectors, axis_name="i")[None]

    vectors = [starts, sizes, lands, sizes.transpose(1, 0, 2)]
    operands = [operand, np.full_like(expected, -1), *(v.reshape(ranks, -1).astype(np.int32) for v in vectors)]
    one = jax.sharding.Mesh(np.array(jax.devices()[:ranks]), ("i",))
    f = jax.jit(jax.shard_map(rank, mesh=one, in_specs=P("i"), out_specs=P("i"), check_vma=False))
    if way == "install":
        with jaxring.installed():
            y = f(*operands)
    else:
        y = f(*operands)
    np.testing.assert_array_equal(y, expected)


def test_vmap_over_the_axis_itself():
    x = jnp.arange(12.0).reshape(4, 3)
    for call in (
        lambda lax, x: lax.psum(x, "v"),
        lambda lax, x: lax.all_gather(x, "v"),
        lambda lax, x: lax.pshuffle(x, "v", [1, 2, 3, 0]),
        lambda lax, x: lax.pmax(x, "v") - lax.pmin(x, "v"),
    ):
        got, expected = (jax.vmap(lambda x: call(n, x), axis_name="v")(x) for n in (lax, jax.lax))  # noqa: B023
        np.testing.assert_array_equal(got, expected)


def test_mixed_vmap_and_mesh_axes_and_second_derivative():
    x = np.arange(16.0, dtype=np.float32).reshape(8, 2)

    def rank(namespace):
        def f(x):
            return jax.grad(lambda x: jax.grad(lambda x: namespace.psum(x**3, "i"))(x) * namespace.pmean(x, "i"))(x)

        return jax.pmap(jax.vmap(f, axis_name="v"), axis_name="i")

    np.testing.assert_allclose(rank(lax)(x), rank(jax.lax)(x), rtol=1e-6)

    def mixed(namespace):
        return jax.pmap(jax.vmap(lambda x: namespace.psum(x, ("v", "i")), axis_name="v"), axis_name="i")

    np.testing.assert_array_equal(mixed(lax)(x), np.full((8, 2), 120.0))
    assert "jaxring_all_reduce" in mixed(lax).lower(x).as_text()


def test_checkpoint_and_scan():
    def rank(namespace):
        def f(x):
            body = jax.checkpoint(lambda c, _: (jnp.sin(namespace.psum(c, "i")) + c, None))
            return jax.lax.scan(body, x, None, length=3)[0].sum()

        return jax.pmap(jax.value_and_grad(f), axis_name="i")

    x = np.linspace(0, 1, 8, dtype=np.float32).reshape(8, 1)
    for a, b in zip(rank(lax)(x), rank(jax.lax)(x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize("check_vma", [True, False])
def test_eager_calls(check_vma):
    def rank(namespace):
        def f(x):
            return namespace.psum(x, "x") + namespace.all_gather(x, "y", tiled=True)[:1, :1] * namespace.pmax(x, "x")

        return jax.shard_map(f, mesh=mesh(), in_specs=P("x", "y"), out_specs=P("x", "y"), check_vma=check_vma)

    x = np.arange(8.0, dtype=np.float32).reshape(2, 4)
    operations = jaxring.counters()["operations"]
    y = jax.block_until_ready(rank(lax)(x))
    assert jaxring.counters()["operations"] > operations
    np.testing.assert_array_equal(y, rank(jax.lax)(x))
    assert jax.eval_shape(rank(lax), x).shape == (2, 4)


def test_unbound_axis():
    with pytest.raises(NameError, match="unbound axis name"):
        jax.jit(lambda x: lax.psum(x, "nowhere"))(1.0)
