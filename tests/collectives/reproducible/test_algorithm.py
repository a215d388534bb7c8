"""algorithm="reproducible": the bits of the exactly rounded sum, whatever the number and the order of the ranks."""

from __future__ import annotations

import pathlib
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring.plan.algorithms import ALGORITHMS
from tests.collectives.cases.coll_jobs import run_job
from tests.collectives.reproducible.rep_exact import FORMATS, bits, dtype_of, exact_sum, rounded, terms

INSTALLED = pathlib.Path(__file__).with_name("worker_installed.py")
COLUMNS = 203  # whole vectors of every instruction set, and a rest


def expected(x):
    """Of terms in rows: the bits of each column's sum."""
    return np.array([exact_sum(x[:, j], x.dtype.name) for j in range(x.shape[1])], FORMATS[x.dtype.name][0])


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("n", [2, 3, 8])
def test_sums_are_exact_and_rounded_once(ranks, n, name):
    rng = np.random.default_rng(n)
    mine = ranks(n)
    x = terms(rng, name, n, COLUMNS)
    blocks = terms(rng, name, n, n * COLUMNS).reshape(n, n, COLUMNS)

    def program(t):
        options = {"algorithm": "reproducible"}
        return {
            "all_reduce": jaxring.all_reduce(t["x"], "x", **options),
            "other way round": jaxring.all_reduce(t["reversed"], "x", **options, protocol="memory"),
            "reduce": jaxring.reduce(t["x"], "x", root=n - 1, **options),
            "reduce_scatter": jaxring.reduce_scatter(t["blocks"], "x", **options),
        }

    found = mine.run(program, {"x": x, "reversed": x[::-1].copy(), "blocks": blocks}, check_vma=False)
    want = expected(x)
    for rank in range(n):
        np.testing.assert_array_equal(bits(found["all_reduce"][rank]), want)
        np.testing.assert_array_equal(bits(found["other way round"][rank]), want)
        np.testing.assert_array_equal(bits(found["reduce"][rank]), want if rank == n - 1 else 0 * want)
        np.testing.assert_array_equal(bits(found["reduce_scatter"][rank]), expected(blocks[:, rank]))


def exact_mean(x, name):
    """The bits of the mean of terms that are finite."""
    total, count = sum(map(Fraction, map(float, x))), len(x)
    if total == 0:
        return exact_sum(x, name)
    if name != "float64":
        return rounded(total / count, name)
    # The rounded sum is divided. The values here do not overflow.
    whole = np.uint64(rounded(total, name)).view(np.float64)
    return int((whole / count).view(np.uint64))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("n", [2, 3, 7])
def test_means_are_the_quotient_rounded_once(ranks, n, name):
    rng = np.random.default_rng(n)
    x = terms(rng, name, n, 4 * COLUMNS)
    with np.errstate(over="ignore", invalid="ignore"):
        wide = x.astype(np.float64)
        most = np.abs(wide).max(0) * n < np.finfo(np.float64).max
    x = np.ascontiguousarray(x[:, np.isfinite(wide).all(0) & most])
    assert x.shape[1] > 2 * COLUMNS
    found = ranks(n).run(
        lambda v: {"mean": jaxring.all_reduce(v, "x", "mean", algorithm="reproducible")}, x, check_vma=False
    )
    want = np.array([exact_mean(x[:, j], name) for j in range(x.shape[1])], FORMATS[name][0])
    for value in found["mean"].values():
        np.testing.assert_array_equal(bits(value), want)


@pytest.mark.parametrize("name", FORMATS)
def test_a_lone_rank_has_the_same_nan(ranks, name):
    unsigned, mantissa, exponent = FORMATS[name]
    odd = (2 ** (exponent + 1) - 1) << mantissa | 1  # negative, signalling, with a payload
    x = np.array([[odd, 1, 1 << (mantissa + exponent)]], unsigned).view(dtype_of(name))
    found = ranks(1).run(lambda v: {"sum": jaxring.all_reduce(v, "x", algorithm="reproducible")}, x)
    np.testing.assert_array_equal(bits(found["sum"][0]), expected(x))


def test_other_reductions_and_dtypes_are_those_of_deterministic(ranks):
    x = np.random.default_rng(0).normal(size=(8, 33)).astype(np.float32)
    whole = (x * 1e8).astype(np.int32)

    def program(t):
        return {
            f"{op} {algorithm} {key}": jaxring.all_reduce(t[key], "x", op, algorithm=algorithm)
            for algorithm in ("reproducible", "deterministic")
            for key, op in (("f", "prod"), ("f", "max"), ("i", "sum"), ("i", "min"))
        }

    found = ranks(8).run(program, {"f": x, "i": whole}, check_vma=False)
    for name, shards in found.items():
        other = found[name.replace("reproducible", "deterministic")]
        for rank, value in shards.items():
            np.testing.assert_array_equal(value, other[rank])


def test_complex_parts_are_sums_of_their_own(ranks):
    parts = terms(np.random.default_rng(1), "float64", 5, 2 * COLUMNS)
    found = ranks(5).run(
        lambda v: {"sum": jaxring.all_reduce(v, "x", algorithm="reproducible")},
        parts.view(np.complex128),
        check_vma=False,
    )
    for value in found["sum"].values():
        np.testing.assert_array_equal(bits(value.view(np.float64)), expected(parts))


def test_derivatives_are_reproducible_sums(ranks):
    n = 4
    x = terms(np.random.default_rng(3), "float64", n, COLUMNS)

    def program(v):
        def f(u):
            return jaxring.all_reduce(u, "x", algorithm="reproducible")

        (back,) = jax.vjp(f, jnp.zeros_like(v))[1](v)
        return {"tangent": jax.jvp(f, (jnp.zeros_like(v),), (v,))[1], "cotangent": back}

    for shards in ranks(n).run(program, x, check_vma=False).values():
        for value in shards.values():
            np.testing.assert_array_equal(bits(value), expected(x))


def test_a_batch_of_other_data_gives_the_same_bits(ranks):
    x = terms(np.random.default_rng(4), "float32", 3, 4 * COLUMNS)
    found = ranks(3).run(
        lambda v: {
            "batch": jax.vmap(lambda u: jaxring.all_reduce(u, "x", algorithm="reproducible"), 1, 1)(v.reshape(4, -1))
        },
        x,
        check_vma=False,
    )
    for value in found["batch"].values():
        np.testing.assert_array_equal(bits(value.reshape(-1)), expected(x))


def test_gpus_refuse_it_while_a_program_is_lowered():
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
    f = jax.shard_map(
        lambda v: jaxring.all_reduce(v, "x", algorithm="reproducible"), mesh=mesh, in_specs=P("x"), out_specs=P()
    )
    with pytest.raises(ValueError, match=r"jaxring.all_reduce: algorithm 'reproducible' is for ranks on CPUs"):
        jax.jit(f).trace(jnp.zeros(8)).lower(lowering_platforms=("cuda",))


@pytest.mark.multiprocess
def test_a_setting_asks_for_it_in_programs_that_know_nothing_of_it():
    code, output = run_job(INSTALLED, 2, 2, JAXRING_ALGO="reproducible")
    assert code == 0, output
    assert output.count("sums are exact") == 2, output


def test_it_promises_exact_sums_and_nothing_else_does():
    assert [name for name, algorithm in ALGORITHMS.items() if algorithm.exact] == ["reproducible"]
    assert not ALGORITHMS["reproducible"].unasked
