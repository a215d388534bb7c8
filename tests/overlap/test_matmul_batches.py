"""`jax.vmap` of collective matrix products and of their derivatives, over other data and over axes that they name."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring

SIZE = 3


def fused(name, axis):
    product = jaxring.all_gather_matmul if name == "gather" else jaxring.matmul_reduce_scatter
    return lambda x, w: product(x, w, axis, chunks=3)


def unfused(name, axis):
    if name == "gather":
        return lambda x, w: jaxring.all_gather(x, axis, tiled=True) @ w
    return lambda x, w: jaxring.reduce_scatter(x @ w, axis, tiled=True)


def derivatives(f, x, w):
    """The value, both gradients, and the gradients of a function of these."""

    def first(x, w):
        return jax.grad(lambda x, w: jnp.sum(jnp.sin(f(x, w))), (0, 1))(x, w)

    def second(x, w):
        return jax.grad(lambda x, w: sum(jnp.sum(jnp.cos(g)) for g in first(x, w)), (0, 1))(x, w)

    return f(x, w), first(x, w), second(x, w)


def check(ranks, batched, shapes):
    """``batched(product of (name, axis))`` is a rank's function of operands of these shapes."""
    mesh = Mesh(jax.devices()[:ranks], ("t",))
    rng = np.random.default_rng(0)
    operands = [rng.standard_normal((ranks, *shape)).astype(np.float32) / 2 for shape in shapes]

    def run(product):
        def mine(*operands):
            return jax.tree.map(lambda y: y[None], batched(product)(*(x[0] for x in operands)))

        return jax.jit(jax.shard_map(mine, mesh=mesh, in_specs=P("t"), out_specs=P("t")))(*operands)

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), run(fused), run(unfused))


@pytest.mark.parametrize("dims", [(0, None), (None, 2), (1, 0)])
@pytest.mark.parametrize("name", ["gather", "scatter"])
@pytest.mark.sampled(4)
def test_over_other_data(name, dims):
    shapes = [[5 if name == "gather" else 20, 7], [7, 2]]
    for shape, dim in zip(shapes, dims, strict=True):
        if dim is not None:
            shape.insert(dim, SIZE)

    def batched(product):
        f = product(name, "t")

        def both(x, w):
            inside = jax.vmap(lambda x, w: derivatives(f, x, w), dims)(x, w)
            return inside, derivatives(jax.vmap(f, dims), x, w)

        return both

    check(4, batched, shapes)


@pytest.mark.parametrize("name", ["gather", "scatter"])
def test_where_no_operand_has_the_batch(name):
    def batched(product):
        def each(x, w, factors):
            return jax.vmap(lambda k: jax.tree.map(lambda y: k * y, derivatives(product(name, "t"), x, w)))(factors)

        return each

    check(4, batched, [[5 if name == "gather" else 20, 7], [7, 2], [SIZE]])


@pytest.mark.parametrize("dims", [(0, 0), (0, None), (None, 1)])
@pytest.mark.parametrize("name", ["gather", "scatter"])
@pytest.mark.sampled(4)
def test_over_the_axis_that_it_names(name, dims):
    """Of `jax.vmap` alone, and of it and a mesh axis together, in both orders."""
    shapes = [[4 if name == "gather" else 4 * 2 * SIZE, 7], [7, 2]]
    for shape, dim in zip(shapes, dims, strict=True):
        if dim is not None:
            shape.insert(dim, SIZE)

    def batched(product):
        def every(x, w):
            return [
                derivatives(jax.vmap(product(name, axis), dims, axis_name="v"), x, w)
                for axis in ("v", ("t", "v"), ("v", "t"))
            ]

        return every

    check(2, batched, shapes)
