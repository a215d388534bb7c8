"""Derivatives of ragged_all_to_all where a row goes to several ranks, against formulas in float64 NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring.tracing.ragged_sum import rounds
from tests.tracing.autodiff.ad_table import N, close, mesh, quick

ROWS, ROOM = 5, 9
# [from, to]: rank 0 sends one row to all, rank 1 rows that overlap in part, rank 2 nothing, rank 3 all rows twice.
SIZES = np.array([[1, 1, 1, 1], [2, 3, 0, 2], [0, 0, 0, 0], [5, 0, 5, 1]])
STARTS = np.array([[2, 2, 2, 2], [0, 1, 4, 3], [0, 0, 5, 2], [0, 5, 0, 4]])
# Empty parts land where others do.
LANDS = np.array([[0, 3, 8, 1], [1, 0, 8, 5], [0, 3, 9, 1], [3, 0, 2, 7]])
VECTORS = [STARTS, SIZES, LANDS, SIZES.T]
RING = {"mesh": mesh("x"), "in_specs": P("x"), "out_specs": P("x")}


def parts(vectors=VECTORS):
    """(source, its rows, target, its rows) of each part."""
    starts, sizes, lands, _ = vectors
    for i, j in np.ndindex(N, N):
        yield i, slice(starts[i, j], starts[i, j] + sizes[i, j]), j, slice(lands[i, j], lands[i, j] + sizes[i, j])


def forward(x, output, vectors=VECTORS):
    output = output.copy()
    for i, rows, j, at in parts(vectors):
        output[j, at] = x[i, rows]
    return output


def backward(ct, vectors=VECTORS):
    """The cotangents of the operand and of the output."""
    dx, kept = np.zeros((N, ROWS, *ct.shape[2:]), ct.dtype), ct.copy()
    for i, rows, j, at in parts(vectors):
        dx[i, rows] += ct[j, at]
        kept[j, at] = 0
    return dx, kept


def mapped(check_vma=False, vectors=VECTORS, **options):
    def rank(x, output, *own):
        operands = [v[0] for v in (x, output, *own)]
        return jaxring.ragged_all_to_all(*operands, axis_name="x", **options)[None]

    f = jax.shard_map(rank, **RING, check_vma=check_vma)
    return lambda x, output: f(x, output, *(v.astype(np.int32) for v in vectors))


def operands(dtype=np.float64, tail=(2,)):
    """Operand, output, and values like the output and like the operand, of all ranks."""
    rng = np.random.default_rng(0)
    found = [rng.normal(size=(2, N, rows, *tail)) for rows in (ROWS, ROOM, ROOM, ROWS)]
    return [(x + 1j * y if np.dtype(dtype).kind == "c" else x).astype(dtype) for x, y in found]


@pytest.mark.parametrize("check_vma", [False, True])
def test_derivatives_of_rows_that_go_to_several_ranks(check_vma):
    x, output, u, t = map(jnp.asarray, operands())  # jvp takes no arrays of NumPy
    f = mapped(check_vma)

    def loss(x, output):
        return jnp.sum(u * f(x, output) ** 3)

    def along(x):
        return jnp.sum(jax.grad(loss)(x, output) * t)

    got = quick(
        lambda: {
            "first": jax.grad(loss, (0, 1))(x, output),
            "forward over reverse": jax.jvp(lambda v: jax.grad(loss)(v, output), (x,), (t,))[1],
            "reverse over reverse": jax.grad(along)(x),
        }
    )()
    x, output, u, t = operands()
    y = forward(x, output)
    second = backward(6 * u * y * forward(t, np.zeros_like(output)))[0]
    close(got["first"], backward(3 * u * y**2))
    close(got["forward over reverse"], second)
    close(got["reverse over reverse"], second)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32, jnp.complex64, jnp.float8_e5m2])
def test_each_dtype_rounds_the_sum_once(dtype):
    x, output, ct, _ = operands(dtype)
    got = quick(lambda: jax.vjp(mapped(), x, output)[1](ct))()
    wide = np.complex128 if np.iscomplexobj(x) else np.float64
    for ours, right in zip(got, backward(ct.astype(wide)), strict=True):
        if np.dtype(dtype).itemsize < 4:
            np.testing.assert_array_equal(np.asarray(ours), right.astype(dtype))
        else:
            np.testing.assert_allclose(ours, right, rtol=1e-6)


def test_batches():
    """Of shared offsets, and of offsets of their own; ``twice`` has other rounds than ``VECTORS``."""
    x, output, ct, _ = operands(tail=(2, 3))
    twice = [v[::-1] for v in (STARTS, SIZES, LANDS)]
    twice.append(twice[1].T)
    own = [np.stack(pair, 1).astype(np.int32) for pair in zip(VECTORS, twice, strict=True)]
    axes = {"shared": None, "own": 0}

    def rank(x, output, ct, *vectors):
        x, output, ct, *vectors = (v[0] for v in (x, output, ct, *vectors))
        found = {}
        for name, at in axes.items():
            every = [v if at == 0 else v[0] for v in vectors]

            def pull(x, output, ct, *vectors):
                f = lambda *some: jaxring.ragged_all_to_all(*some, *vectors, axis_name="x")  # noqa: E731
                return jax.vjp(f, x, output)[1](ct)

            found[name] = jax.vmap(pull, in_axes=(1, 1, 1, *[at] * 4), out_axes=1)(x, output, ct, *every)
        return jax.tree.map(lambda v: v[None], found)

    got = quick(jax.shard_map(rank, **RING))(x, output, ct, *own)
    close(got["shared"], backward(ct))
    right = [backward(ct[:, :, k], v) for k, v in enumerate((VECTORS, twice))]
    close(got["own"], tuple(np.stack(pair, 2) for pair in zip(*right, strict=True)))


def test_groups_that_need_different_numbers_of_rounds():
    """The ranks of the first group send a row to both, and those of the second one send no row twice."""
    groups = [[3, 0], [1, 2]]
    sizes = np.array([[1, 2], [2, 2], [1, 0], [1, 1]])
    starts = np.array([[0, 0], [0, 2], [3, 4], [2, 2]])
    lands = np.array([[3, 3], [0, 4], [6, 6], [0, 0]])
    came = np.array([[1, 2], [2, 1], [2, 0], [1, 1]])
    x, output, ct, _ = operands()
    got = quick(
        lambda: jax.vjp(mapped(vectors=[starts, sizes, lands, came], axis_index_groups=groups), x, output)[1](ct)
    )()
    dx, kept = np.zeros_like(x), ct.copy()
    for group in groups:
        for source in group:
            for place, target in enumerate(group):
                start, land, n = (v[source, place] for v in (starts, lands, sizes))
                dx[source, start : start + n] += ct[target, land : land + n]
                kept[target, land : land + n] = 0
    close(got, (dx, kept))


@pytest.mark.parametrize("count", [2, 3, 8, 13])
def test_rounds_are_few_and_disjoint(count):
    rng = np.random.default_rng(count)
    plan = jax.jit(rounds)
    for turn in range(40):
        sizes = rng.integers(0, 1 + turn % 8, count).astype(np.int32)
        starts = rng.integers(0, 1 + turn, count).astype(np.int32)
        of, number = map(np.asarray, plan(starts, sizes))
        held = np.zeros((number, turn + 10), int)
        for at, start, size in zip(of, starts, sizes, strict=True):
            held[at, start : start + size] += 1
        assert held.max(initial=0) <= 1
        assert number == max(held.sum(0).max(), 1)
