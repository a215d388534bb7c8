"""Where `jax.lax` has an operation, ours gives the same: values, shapes, dtypes and types, for all its arguments."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring.plan import dtypes
from tests.collectives.cases.coll_oracle import served, wrong
from tests.collectives.cases.coll_ranks import Ranks

INTEGERS = [name for name in dtypes.DTYPES if name.startswith(("int", "uint"))]
FLOATS = ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]
THEIRS = {"sum": lax.psum, "max": lax.pmax, "min": lax.pmin, "mean": lax.pmean}


def agree(ranks, pairs, tree, **options):
    """``pairs``: {name: (ours, theirs)}, functions of a rank's tree; every rank gets the same values from both.

    Means may differ by rounding: XLA multiplies by the reciprocal, we divide.
    """
    options = {"check_vma": False} | options
    ours = ranks.run(lambda t: {name: f(t) for name, (f, _) in pairs.items()}, tree, **options)
    theirs = ranks.run(lambda t: {name: g(t) for name, (_, g) in pairs.items()}, tree, **options)
    problems = []
    for name, shards in ours.items():
        for rank, value in shards.items():
            other = theirs[name][rank]
            low = high = other
            if name.startswith("mean"):
                off = 4 * np.finfo(other.dtype).eps * _magnitude(other)
                low, high = other - off, other + off
            problem = wrong(value, (low, high))
            if problem:
                problems.append(f"{name} rank {rank}: {problem}")
    assert len(ours) == len(pairs)
    assert not problems, f"{len(problems)}:\n" + "\n".join(problems[:30])


def _magnitude(x):
    """Of real and imaginary parts apart; 0 for what is not finite."""
    if np.iscomplexobj(x):
        return (_magnitude(x.real) + 1j * _magnitude(x.imag)).astype(x.dtype)
    return np.abs(np.where(np.isfinite(x), x, 0))


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8])
def test_reductions(ranks, n):
    rng = np.random.default_rng(n)
    tree, pairs = {}, {}
    for name in [*INTEGERS, *FLOATS, "bool"]:
        if name == "bool":
            tree[name] = rng.integers(0, 2, (n, 3, 5)).astype(bool)
        elif name in INTEGERS:
            # Sums wrap around.
            info = np.iinfo(name)
            tree[name] = rng.integers(info.min, info.max, (n, 3, 5), dtype=name, endpoint=True)
        else:
            # Any order gives the same, and a mean is rounded once.
            tree[name] = rng.integers(-100, 100, (n, 3, 5)).astype(name)
        for op, theirs in THEIRS.items():
            # lax has no order for bool, and divides float16 and bfloat16 after a rounding.
            if served(op, name) and not (name == "bool" and op != "sum") and not (op == "mean" and name[-2:] == "16"):
                pairs[f"{op} {name}"] = (
                    lambda t, name=name, op=op: jaxring.all_reduce(t[name], "x", op),
                    lambda t, name=name, theirs=theirs: theirs(t[name], "x"),
                )
    agree(ranks(n), pairs, tree)


@pytest.mark.parametrize("n", [2, 8])
def test_special_values(ranks, n):
    x = np.zeros((n, 6), np.float32)
    x[0] = [np.inf, -np.inf, np.inf, 3e38, -3e38, -0.0]
    x[-1] = [1.0, 1.0, -np.inf, 3e38, -3e38, 2.0]
    tree = {"float32": x, "float64": x.astype(np.float64)}
    nan = {"nan": np.where(np.arange(n)[:, None] == 1, np.nan, 1.0)}
    agree(
        ranks(n),
        {
            f"{op} {name}": (
                lambda t, name=name, op=op: jaxring.all_reduce(t[name], "x", op),
                lambda t, name=name, theirs=theirs: theirs(t[name], "x"),
            )
            for op, theirs in THEIRS.items()
            for name in ("float32", "float64", "nan")
            # XLA's minimum and maximum lose a NaN or keep it, as the order of ranks has it; ours keep it.
            if not (name == "nan" and op in ("min", "max"))
        },
        tree | nan,
    )


def test_bfloat16_sum_rounds_once(ranks):
    x = np.ones((8, 1), jnp.bfloat16)
    x[3] = 256
    pairs = {"sum": (lambda t: jaxring.all_reduce(t, "x"), lambda t: lax.psum(t, "x"))}
    agree(ranks(8), pairs, x)
    for algorithm in (None, "ring", "tree", "direct", "halving_doubling"):
        got = ranks(8).run(lambda t, a=algorithm: {"y": jaxring.all_reduce(t, "x", algorithm=a)}, x)["y"]
        assert {float(v[0]) for v in got.values()} == {264.0}, algorithm


def movement_pairs(n, axis, groups=None):
    """All arguments of the moving collectives, on t["x"] of shape (2n, 3n, n)."""
    own = {} if groups is None else {"axis_index_groups": groups}
    pairs = {}
    for tiled, at in itertools.product((False, True), range(-4, 4)):
        if -3 - (not tiled) <= at < 3 + (not tiled):
            # lax refuses negative numbers here; ours count from the back, as everywhere else.
            same = at % (3 + (not tiled))
            pairs[f"all_gather {at} {tiled}"] = (
                lambda t, at=at, tiled=tiled: jaxring.all_gather(t["x"], axis, axis=at, tiled=tiled, **own),
                lambda t, at=same, tiled=tiled: lax.all_gather(t["x"], axis, axis=at, tiled=tiled, **own),
            )
    for at in range(3):
        pairs[f"psum_scatter {at} tiled"] = (
            lambda t, at=at: jaxring.reduce_scatter(t["x"], axis, scatter_dimension=at, tiled=True, **own),
            lambda t, at=at: lax.psum_scatter(t["x"], axis, scatter_dimension=at, tiled=True, **own),
        )
        pairs[f"psum_scatter {at}"] = (
            lambda t, at=at: jaxring.reduce_scatter(jnp.moveaxis(t["x"], 2, at), axis, scatter_dimension=at, **own),
            lambda t, at=at: lax.psum_scatter(jnp.moveaxis(t["x"], 2, at), axis, scatter_dimension=at, **own),
        )
    for split, concat in itertools.product(range(3), range(3)):
        pairs[f"all_to_all {split} {concat} tiled"] = (
            lambda t, s=split, c=concat: jaxring.all_to_all(t["x"], axis, s, c, tiled=True, **own),
            lambda t, s=split, c=concat: lax.all_to_all(t["x"], axis, s, c, tiled=True, **own),
        )
        pairs[f"all_to_all {split} {concat}"] = (
            lambda t, s=split, c=concat: jaxring.all_to_all(jnp.moveaxis(t["x"], 2, s), axis, s, c, **own),
            lambda t, s=split, c=concat: lax.all_to_all(jnp.moveaxis(t["x"], 2, s), axis, s, c, **own),
        )
    return pairs


@pytest.mark.parametrize("n", [1, 2, 3, 8])
@pytest.mark.sampled(2)
def test_dimensions_of_the_moving_collectives(ranks, n):
    x = np.random.default_rng(n).integers(0, 1 << 30, (n, 2 * n, 3 * n, n), dtype=np.int32)
    agree(ranks(n), movement_pairs(n, "x"), {"x": x})


@pytest.mark.parametrize("over", ["a", "b", ("a", "b"), ("b", "a")], ids=str)
@pytest.mark.sampled(2)
def test_axes_of_a_mesh(over):
    grid = Ranks(jax.devices(), (("a", 2), ("b", 4)))
    n = {"a": 2, "b": 4}.get(over, 8)
    x = np.random.default_rng(n).integers(0, 1 << 30, (8, 2 * n, 3 * n, n), dtype=np.int32)
    pairs = movement_pairs(n, over)
    for op, theirs in THEIRS.items():
        if op != "mean":
            pairs[op] = (
                lambda t, op=op: jaxring.all_reduce(t["x"], over, op),
                lambda t, theirs=theirs: theirs(t["x"], over),
            )
    perm = [(i, (i + 1) % n) for i in range(n)]
    if over != ("b", "a"):  # lax.ppermute counts ranks by device, whatever the order of the axes
        pairs["ppermute"] = (lambda t: jaxring.permute(t["x"], over, perm), lambda t: lax.ppermute(t["x"], over, perm))
    pairs["ranks"] = (
        lambda t: jaxring.all_gather(lax.axis_index(over), over),
        lambda t: jnp.arange(n, dtype=jnp.int32),
    )
    pairs["the rank before"] = (
        lambda t: jaxring.permute(lax.axis_index(over), over, perm),
        lambda t: (lax.axis_index(over) - 1) % n,
    )
    agree(grid, pairs, {"x": x})


@pytest.mark.parametrize("groups", [[[0, 1], [2, 3]], [[3, 0], [1, 2]], [[0], [1], [2], [3]]], ids=str)
def test_axis_index_groups(ranks, groups):
    n = len(groups[0])
    x = np.random.default_rng(n).integers(0, 1 << 30, (4, 2 * n, 3 * n, n), dtype=np.int32)
    pairs = movement_pairs(n, "x", groups)
    pairs["psum"] = (
        lambda t: jaxring.all_reduce(t["x"], "x", axis_index_groups=groups),
        lambda t: lax.psum(t["x"], "x", axis_index_groups=groups),
    )
    agree(ranks(4), pairs, {"x": x})


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_permutations(ranks, n):
    rng = np.random.default_rng(n)
    x = rng.normal(size=(n, 5))
    perms = [[(i, (i + k) % n) for i in range(n)] for k in range(n)]
    perms += [[], [(0, n - 1)], [(n - 1, 0)], [(i, i) for i in range(0, n, 2)]]
    perms += [list(zip(rng.permutation(n).tolist(), rng.permutation(n).tolist(), strict=True)) for _ in range(3)]
    perms.append(perms[-1][: n // 2])
    pairs = {
        f"{k} {perm}": (lambda t, p=perm: jaxring.permute(t, "x", p), lambda t, p=perm: lax.ppermute(t, "x", p))
        for k, perm in enumerate(perms)
    }
    agree(ranks(n), pairs, x)


@pytest.mark.parametrize("over", ["a", ("b", "a")], ids=str)
def test_types_under_check_vma(over):
    """Results vary over the axes that lax says, so out_specs are accepted and refused alike."""
    grid = Ranks(jax.devices(), (("a", 2), ("b", 4)))
    n = 2 if over == "a" else 8
    pairs = {
        "psum": (lambda v: jaxring.all_reduce(v, over), lambda v: lax.psum(v, over)),
        "pmax": (lambda v: jaxring.all_reduce(v, over, "max"), lambda v: lax.pmax(v, over)),
        "all_gather": (lambda v: jaxring.all_gather(v, over), lambda v: lax.all_gather(v, over)),
        "psum_scatter": (
            lambda v: jaxring.reduce_scatter(v, over, tiled=True),
            lambda v: lax.psum_scatter(v, over, tiled=True),
        ),
        "all_to_all": (
            lambda v: jaxring.all_to_all(v, over, 0, 0, tiled=True),
            lambda v: lax.all_to_all(v, over, 0, 0, tiled=True),
        ),
        "ppermute": (lambda v: jaxring.permute(v, over, [(0, 1)]), lambda v: lax.ppermute(v, over, [(0, 1)])),
    }
    seen = {}

    def f(v):
        for name, (ours, theirs) in pairs.items():
            a, b = jax.typeof(ours(v)), jax.typeof(theirs(v))
            seen[name] = (a.shape, a.dtype, a.manual_axis_type.varying, b.shape, b.dtype, b.manual_axis_type.varying)
        return v

    jax.eval_shape(
        jax.shard_map(f, mesh=grid.mesh, in_specs=P(("a", "b")), out_specs=P(("a", "b"))), np.zeros((8 * n, 3))
    )
    assert set(seen) == set(pairs)
    for name, found in seen.items():
        assert found[:3] == found[3:], name


def test_trees(ranks):
    tree = {"a": np.arange(12.0).reshape(4, 3), "b": np.arange(4, dtype=np.int8)}
    ours = ranks(4).run(lambda t: jaxring.all_reduce(t, "x"), tree)
    theirs = ranks(4).run(lambda t: lax.psum(t, "x"), tree)
    for name, shards in ours.items():
        for rank, value in shards.items():
            np.testing.assert_array_equal(value, theirs[name][rank])
