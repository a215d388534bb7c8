"""Collective matrix products of unusual operands: narrow dtypes in many chunks, bool, and dimensions of no elements."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring

N = 4
MESH = Mesh(jax.devices()[:N], ("t",))


def on_ranks(f):
    """A function of operands and results that have the ranks on their first axis."""

    def mine(number, *operands):
        return jax.tree.map(lambda y: y[None], (number, f(*(x[0] for x in operands))))

    # XLA refuses a region all of whose operands have no elements.
    run = jax.jit(jax.shard_map(mine, mesh=MESH, in_specs=P("t"), out_specs=P("t")))
    return lambda *operands: run(np.arange(N), *operands)[1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e5m2"])
@pytest.mark.sampled(3)
def test_gradients_by_weights_are_rounded_once(dtype):
    """As many chunks as rows are no less exact than one: a unit in the last place of the largest is what may differ."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((N, 64, 3)).astype(dtype)
    w = rng.standard_normal((N, 3, 5)).astype(dtype)
    ct = rng.standard_normal((N, N * 64, 5)).astype(dtype)

    def error(chunks):
        def by_weights(x, w, ct):
            return jax.vjp(lambda w: jaxring.all_gather_matmul(x, w, "t", chunks=chunks), w)[1](ct)[0]

        found = on_ranks(by_weights)(x, w, ct)
        assert found.dtype == dtype
        return np.abs(np.asarray(found, np.float64) - exact).max()

    rows = x.astype(np.float64).reshape(N * 64, 3)
    exact = np.einsum("rk,nrc->nkc", rows, ct.astype(np.float64))
    unit = np.abs(exact).max() * float(jnp.finfo(dtype).eps)
    assert error(64) <= error(1) + unit / 2
    assert error(64) <= unit


@pytest.mark.xfail(
    jax.__version_info__[:2] == (0, 11),
    reason="XLA of jaxlib 0.11 crashes on regions with operands or results of no elements, without jaxring too",
    run=False,
)
# The rows of a rank, the elements of a row, and columns.
@pytest.mark.parametrize("sizes", [(0, 3, 2), (4, 0, 2), (4, 3, 0)], ids=["rows", "width", "columns"])
@pytest.mark.parametrize("name", ["gather", "scatter"])
def test_no_elements(name, sizes):
    rows, width, columns = sizes
    rng = np.random.default_rng(0)
    x = rng.standard_normal((N, rows if name == "gather" else N * rows, 2, width)).astype(np.float32)
    w = rng.standard_normal((N, width, columns)).astype(np.float32)

    def fused(x, w):
        product = jaxring.all_gather_matmul if name == "gather" else jaxring.matmul_reduce_scatter
        return product(x, w, "t")

    def unfused(x, w):
        if name == "gather":
            return jaxring.all_gather(x, "t", tiled=True) @ w
        return jaxring.reduce_scatter(x @ w, "t", tiled=True)

    def everything(f, x, w):
        return f(x, w), jax.grad(lambda x, w: jnp.sum(jnp.sin(f(x, w))), (0, 1))(x, w)

    ours, theirs = (on_ranks(functools.partial(everything, f))(x, w) for f in (fused, unfused))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b, strict=True), ours, theirs)


def test_bool():
    """An all-gather moves truth values; their sum over the ranks would be a count, which the product's dtype is not."""
    x, w = np.eye(8, dtype=bool), np.ones((8, 2), bool)
    shared = functools.partial(jax.shard_map, mesh=MESH, in_specs=(P("t"), P()), check_vma=False)
    y = jax.jit(shared(lambda x, w: jaxring.all_gather_matmul(x, w, "t"), out_specs=P()))(x, w)
    np.testing.assert_array_equal(y, x @ w, strict=True)
    scatter = shared(lambda x, w: jaxring.matmul_reduce_scatter(x, w, "t"), out_specs=P("t"))
    with pytest.raises(TypeError, match="a product of bool is bool, and its sum over the ranks a count; convert"):
        jax.eval_shape(scatter, np.tile(x, (N, 1)), w)
