"""`reproducible_sum`: the bits of the exactly rounded sum, however the terms lie on ranks and in dimensions."""

from __future__ import annotations

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring
import jaxring._native as _native
from jaxring.plan import dtypes
from jaxring.tracing import exact_integers
from tests.collectives.cases.coll_jobs import run_job
from tests.collectives.reproducible.rep_exact import FORMATS, bits, dtype_of, exact_sum, terms

EVERYWHERE = P()
WORKER = pathlib.Path(__file__).parent / "worker_sums.py"


def expected(x):
    """Of terms in rows: the bits of each column's sum."""
    return np.array([exact_sum(x[:, j], x.dtype.name) for j in range(x.shape[1])], FORMATS[x.dtype.name][0])


def over(n, f, x, out=EVERYWHERE, check_vma=True):
    """``f`` of the parts of ``x`` on n ranks."""
    mesh = Mesh(np.array(jax.devices()[:n]), ("x",))
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=out, check_vma=check_vma))(x)


# 2,500 cases of each of the four dtypes are 10,000, each by all splits; a part of them in every run.
@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("processes", "devices", "cases"),
    [
        (1, 16, 30),
        (2, 2, 30),
        *(
            pytest.param(*job, marks=pytest.mark.slow)
            for job in ((1, 16, 2500), (2, 8, 2500), (3, 2, 400), (4, 1, 400), (5, 1, 400))
        ),
    ],
)
def test_one_set_of_bits_on_ranks_and_processes(processes, devices, cases):
    code, output = run_job(WORKER, processes, devices, str(processes), str(cases), timeout_s=900)
    assert code == 0, output
    assert output.count(f"arrays of {cases} sums are right") == processes, output


@pytest.mark.multiprocess
@pytest.mark.parametrize("algorithm", ["direct", "ring", "tree", "halving_doubling", "hier_ring", "hier_tree"])
@pytest.mark.sampled(6)
def test_one_set_of_bits_by_each_algorithm(algorithm):
    """Two hosts of two processes each, so that there are two domains of memory."""
    code, output = run_job(WORKER, 4, 1, "7", "40", "2", JAXRING_ALGO=algorithm)
    assert code == 0, output
    assert output.count("arrays of 40 sums are right") == 4, output


@pytest.mark.parametrize("name", FORMATS)
def test_a_rank_alone_and_no_ranks(name):
    x = terms(np.random.default_rng(0), name, 7, 50)
    np.testing.assert_array_equal(
        bits(np.asarray(over(1, lambda v: jaxring.reproducible_sum(v, "x", 0), x))), expected(x)
    )
    alone = jax.jit(lambda v: jaxring.reproducible_sum(v, (), 0))(x)
    np.testing.assert_array_equal(bits(np.asarray(alone)), expected(x))


@pytest.mark.parametrize("name", FORMATS)
def test_zeros_and_no_terms(name):
    dtype = dtype_of(name)
    zeros = np.stack([np.full(4, -0.0), np.zeros(4), np.array([0.0, -0.0, 0.0, 0.0])], 1).astype(dtype)
    found = over(2, lambda v: jaxring.reproducible_sum(v, "x", 0), zeros)
    assert np.signbit(np.asarray(found).astype(np.float64)).tolist() == [True, False, False]
    none = over(2, lambda v: jaxring.reproducible_sum(v[:, :0], "x", 1), zeros, P())
    assert bits(np.asarray(none)).tolist() == [0, 0]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("count", [1, 48, (1 << 14) + 3])
@pytest.mark.sampled(5)
def test_jax_operations_give_the_same_bits_as_the_engine(name, count):
    """What GPUs compute. The engine's handlers make the sums of the same words, too."""
    x = terms(np.random.default_rng(count), name, count, 12)
    if count > 48:
        x[:, ::2] = np.asarray(x[:1, ::2])  # the same term, so that carries run far
    words = jax.jit(exact_integers.give)(x[None])
    assert words.shape[1] == _native.exact_words(dtypes.dtype_code(x.dtype), exact_integers.WIDTH)
    theirs = jax.ffi.ffi_call("jaxring_give_exact_sums", jax.ShapeDtypeStruct(words.shape, jnp.uint32))
    np.testing.assert_array_equal(words, jax.jit(lambda v: theirs(v, width=np.int64(exact_integers.WIDTH)))(x[None]))
    added = jnp.sum(jnp.concatenate([words] * 3, 0), 0, keepdims=True, dtype=jnp.uint32)
    want = expected(np.concatenate([x] * 3)) if count <= 48 else expected_of_repeated(x, 3)
    found = jax.jit(lambda w: exact_integers.rounded(w, x.dtype))(added)
    np.testing.assert_array_equal(bits(np.asarray(found[0])), want)


def expected_of_repeated(x, times):
    """Of many terms: the engine's own sums, which the other tests hold to be right."""
    sums = jax.jit(lambda v: jaxring.reproducible_sum(v, (), 0))(np.concatenate([x] * times))
    return bits(np.asarray(sums))


def test_words_of_many_parts_are_added():
    x = np.ones((1, 5, 1), np.float32)
    words = exact_integers.give(x)
    several = jnp.broadcast_to(words[:, None], (1, 40000, *words.shape[1:]))
    total = exact_integers.rounded(exact_integers._added(several), np.float32)
    assert total.tolist() == [[200000.0]]


def test_a_program_for_gpus_has_the_integers_of_jax():
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
    f = jax.shard_map(lambda v: jaxring.reproducible_sum(v, "x", 0), mesh=mesh, in_specs=P("x"), out_specs=P())
    text = jax.jit(f).trace(jnp.zeros((8, 3), jnp.float32)).lower(lowering_platforms=("cuda",)).as_text()
    assert "jaxring_all_reduce" in text
    assert "exact_sums" not in text


@pytest.mark.parametrize("check_vma", [False, True])
def test_derivatives(check_vma):
    x = terms(np.random.default_rng(5), "float32", 12, 30)
    x = x[:, np.isfinite(x).all(0)]
    weights = np.random.default_rng(6).normal(size=x.shape[1]).astype(np.float32)

    def both(v):
        def f(u):
            return jaxring.reproducible_sum(u, "x", 0)

        tangent = jax.jvp(f, (jnp.zeros_like(v),), (v,))[1]
        return tangent, jax.grad(lambda u: jnp.sum(f(u) * weights))(v)

    tangent, gradient = over(4, both, x, (P(), P("x")), check_vma)
    np.testing.assert_array_equal(bits(np.asarray(tangent)), expected(x))
    # Without types each rank's own copy of the result counts, as with jax.lax.psum.
    np.testing.assert_array_equal(gradient, np.broadcast_to(weights * (1 if check_vma else 4), x.shape))


@pytest.mark.parametrize("name", FORMATS)
def test_vmap_over_data_and_over_the_summed_axis(name):
    x = terms(np.random.default_rng(7), name, 24, 40)
    want = expected(x)

    def data(v):
        return jax.vmap(lambda u: jaxring.reproducible_sum(u, "x"), 1)(v)

    def axis(v):
        return jax.vmap(lambda u: jaxring.reproducible_sum(u, ("x", "v"), 0), axis_name="v")(v.reshape(2, 3, -1))[0]

    def ranks(v):
        run = jax.vmap(lambda u: jaxring.all_reduce(u, ("v", "x"), algorithm="reproducible"), axis_name="v")
        return run(v.reshape(6, -1))[0]

    for f in (data, axis, ranks):
        np.testing.assert_array_equal(bits(np.asarray(over(4, f, x, P(), False))), want, err_msg=f.__name__)


def test_groups_and_pytrees():
    x = terms(np.random.default_rng(8), "float32", 8, 20)
    found = over(
        4,
        lambda v: jaxring.reproducible_sum({"a": v, "b": v[:, :3]}, "x", 0, axis_index_groups=[[0, 3], [1, 2]]),
        x,
        {"a": P("x"), "b": P("x")},
    )
    outer, inner = expected(x[[0, 1, 6, 7]]), expected(x[2:6])
    np.testing.assert_array_equal(bits(np.asarray(found["a"])).reshape(4, 20), np.stack([outer, inner, inner, outer]))
    np.testing.assert_array_equal(bits(np.asarray(found["b"])).reshape(4, 3)[1], inner[:3])


def test_bad_calls():
    def call(x, *arguments, **options):
        return over(2, lambda v: jaxring.reproducible_sum(v, "x", *arguments, **options), x, P())

    with pytest.raises(TypeError, match=r"jaxring.reproducible_sum: int32 is not served, only float16, bfloat16"):
        call(np.zeros((2, 3), np.int32))
    with pytest.raises(ValueError, match=r"axis=2 is no dimension of a value with 2 dimensions"):
        call(np.zeros((2, 3), np.float32), 2)
    with pytest.raises(ValueError, match=r"axis=\(0, -2\) names a dimension twice"):
        call(np.zeros((2, 3), np.float32), (0, -2))
    with pytest.raises(NotImplementedError, match=r"op='mean': algorithm 'reproducible' over an axis of jax.vmap"):
        jax.vmap(lambda v: jaxring.all_reduce(v, "v", "mean", algorithm="reproducible"), axis_name="v")(np.zeros(3))
