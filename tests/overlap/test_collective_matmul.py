"""Collective matrix products against those of whole matrices: values, derivatives of all orders, batches, chunks."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring.plan import pipeline

N = 4
SLOW = pytest.mark.slow
GATHERED = {"in_specs": (P("t"), P(None, "t")), "out_specs": P(None, None, "t")}
SCATTERED = {"in_specs": (P(None, None, "t"), P("t")), "out_specs": P("t")}


def functions(check_vma, **options):
    """Both as functions of whole arrays: rows are shared among the ranks, or columns of x and rows of w."""
    mesh = Mesh(jax.devices()[:N], ("t",))

    def gather(x, w):
        return jaxring.all_gather_matmul(x, w, "t", **options)

    def scatter(x, w):
        return jaxring.matmul_reduce_scatter(x, w, "t", **options)

    return (
        jax.shard_map(f, mesh=mesh, check_vma=check_vma, **specs)
        for f, specs in ((gather, GATHERED), (scatter, SCATTERED))
    )


def matrices():
    rng = np.random.default_rng(0)
    shapes = ((N * 6, 2, 5), (5, N * 3), (N * 3, 7))
    return [rng.standard_normal(shape).astype(np.float32) / 2 for shape in shapes]


# Of six rows: one chunk, some of different lengths, and one for each row.
@pytest.mark.parametrize(
    ("chunks", "check_vma"), [(4, True), pytest.param(1, True, marks=SLOW), pytest.param(6, False, marks=SLOW)]
)
def test_values_and_derivatives(chunks, check_vma):
    gather, scatter = functions(check_vma, chunks=chunks)
    given = matrices()

    def ours(x, w, v):
        return jnp.sum(jnp.sin(scatter(jnp.tanh(gather(x, w)), v)))

    def plain(x, w, v):
        return jnp.sum(jnp.sin(jnp.tanh(x @ w) @ v))

    def everything(f):
        def derivatives(*args):
            first = jax.grad(f, (0, 1, 2))
            return f(*args), *jax.jvp(first, args, tuple(map(jnp.cos, args)))

        return jax.jit(derivatives)(*given)

    (value, *derivatives), (expected, *others) = everything(ours), everything(plain)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for got, want in zip(*map(jax.tree.leaves, (derivatives, others)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.max(np.abs(want)))


def calls_and_dones(f, name, *args):
    """In a lowered program: (result, operand) of each collective, and (results, first operand) of each done."""
    text = jax.jit(f).lower(*args).as_text()
    calls = re.findall(rf"(%\S+) = .*@jaxring_{name}\((%\S+),", text)
    return text, calls, re.findall(r"(%\S+):\d+ = .*@jaxring_done\((%\S+), ", text)


def test_a_chunk_is_gathered_when_the_next_but_one_before_it_is_here():
    gather, _ = functions(False, chunks=5)
    _, calls, dones = calls_and_dones(gather, "all_gather", *matrices()[:2])
    assert len(calls) == 5
    for (former, _), (_, operand) in zip(calls, calls[2:], strict=False):
        assert (operand.split("#")[0], former) in dones


def test_a_chunk_is_computed_when_the_third_before_it_is_summed():
    """The product waits, and not only its transfer: XLA would compute all products before the first one travels."""
    _, scatter = functions(False, chunks=5)
    x, w, v = matrices()
    text, calls, dones = calls_and_dones(scatter, "reduce_scatter", x @ w, v)
    rows = dict(re.findall(r"(%\S+) = stablehlo.dot_general (%[^\s,]+),", text))
    assert len(calls) == len(rows) == 5
    for (former, _), (_, product) in zip(calls, calls[3:], strict=False):
        assert (rows[product].split("#")[0], former) in dones


@pytest.mark.parametrize("batched", [None, 0, 1], ids=["plain", "batch of x", "batch of w"])
def test_the_gradient_by_x_is_the_other_and_weights_gather_again(batched):
    """In the program of a gradient: no chunk is kept from the way there. So it is where one operand has a batch."""
    gather, _ = functions(False, chunks=3)
    x, w, _ = matrices()
    if batched is not None:
        x, w = (np.stack([m, m]) if i == batched else m for i, m in enumerate((x, w)))
        gather = jax.vmap(gather, tuple(0 if i == batched else None for i in range(2)))

    def calls(f):
        text = jax.jit(f).lower(x, w).as_text()
        return [len(re.findall(rf"@jaxring_{name}\(", text)) for name in ("all_gather", "reduce_scatter")]

    def loss(x, w):
        return jnp.sum(jnp.sin(gather(x, w)))

    assert calls(gather) == [3, 0]
    assert calls(jax.grad(loss)) == [3, 3]
    assert calls(jax.grad(loss, (0, 1))) == [6, 3]


def test_the_number_of_chunks_follows_the_prices():
    product = {"ranks": 4, "processes": 4, "dtype": "float32", "most": 512}
    long = pipeline.chunks("all_gather", nbytes=16 << 20, flops=1 << 33, **product)
    assert long > pipeline.chunks("all_gather", nbytes=1 << 20, flops=1 << 29, **product) > 1
    # A chunk's latency is hidden by the one in flight beside it, so that small ones are worth their step.
    assert pipeline.chunks("all_gather", nbytes=4 << 20, flops=1 << 30, **product) == 16
    # Too small to be worth a second collective, or with nothing to hide it behind.
    assert pipeline.chunks("all_gather", nbytes=4096, flops=1 << 20, **product) == 1
    assert pipeline.chunks("reduce_scatter", nbytes=16 << 20, flops=0, **product) == 1
    assert pipeline.chunks("all_gather", nbytes=16 << 20, flops=1 << 33, **product | {"most": 2}) == 2


@pytest.mark.parametrize(
    ("x", "w", "options", "says"),
    [
        ((8, 4), (5, 4), {}, r"x \(8, 4\) must be \[rows, ..., k\], and w \(5, 4\)"),
        ((8, 4), (4, 4), {"chunks": 9}, "chunks=9 must be between 1 and the number of rows"),
        ((9, 4), (4, 4), {}, "9 rows of x"),
        ((8, 4), (4, 4), {"algorithm": "pxn"}, "algorithm 'pxn' does not serve it"),
    ],
)
def test_errors(x, w, options, says):
    mesh = Mesh(jax.devices()[:N], ("t",))

    def both(x, w):
        jaxring.matmul_reduce_scatter(x, w, "t", **options)
        return jaxring.all_gather_matmul(x, w, "t", **options)

    run = jax.shard_map(both, mesh=mesh, in_specs=P(), out_specs=P("t"), check_vma=False)
    with pytest.raises(ValueError, match=says):
        jax.eval_shape(run, *(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (x, w)))
