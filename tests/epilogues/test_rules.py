"""Derivatives and batches of reductions with an epilogue, and the errors of the argument."""

from __future__ import annotations

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring import epilogues
from jaxring.plan.epilogue import MOST_FUNCTIONS_ON_GPUS
from jaxring.plan.schedule import Buffer, Chunk, Flag, Kind, Peer, Step
from tests import ROOT
from tests.epilogues.test_values import RANKS, ROWS, integers, shards, spread

LINEAR = epilogues.scale(0.25).then(epilogues.cast(jnp.bfloat16))


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", ["scale", "clip", "cast"])
def test_gradients_are_those_of_the_functions_of_the_sum(name, check_vma):
    after, plain = {
        "scale": (epilogues.scale(0.25), lambda s: s * 0.25),
        "clip": (epilogues.clip(-4, 4), lambda s: jnp.minimum(jnp.maximum(s, -4), 4)),
        "cast": (LINEAR, lambda s: (s * 0.25).astype(jnp.bfloat16)),
    }[name]
    x, weights = integers(50), shards(0, (50,))
    mesh = Mesh(np.array(jax.devices()[:RANKS]), ("x",))

    def loss(reduce):
        inside = jax.shard_map(
            lambda v: jnp.sum(reduce(v[0]).astype(jnp.float32) * weights).reshape(1),
            mesh=mesh,
            in_specs=P("x"),
            out_specs=P("x"),
            check_vma=check_vma,
        )
        return lambda v: jnp.sum(inside(v))

    fused = jax.jit(jax.value_and_grad(loss(lambda v: jaxring.all_reduce(v, "x", epilogue=after))))(x)
    unfused = jax.jit(jax.value_and_grad(loss(lambda v: plain(jaxring.all_reduce(v, "x")))))(x)
    np.testing.assert_array_equal(fused[1], unfused[1])
    np.testing.assert_allclose(fused[0], unfused[0], rtol=1e-6)
    assert np.any(np.asarray(fused[1]) != 0)


def test_the_derivative_by_the_factor():
    x = integers(50)

    def call(factor):
        return spread(
            lambda v, f: jaxring.all_reduce(v, "x", epilogue=epilogues.scale(f)), x, factor, specs=(P("x"), P())
        )

    y, tangent = jax.jvp(call, (jnp.float32(3),), (jnp.float32(1),))
    np.testing.assert_array_equal(y, 3 * tangent)
    np.testing.assert_array_equal(tangent, [x.sum(0)] * RANKS)


def test_a_linear_epilogue_stays_in_the_schedule_where_it_is_differentiated():
    x = integers(50)
    mesh = Mesh(np.array(jax.devices()[:RANKS]), ("x",))
    inside = jax.shard_map(
        lambda v: jaxring.all_reduce(v, "x", epilogue=epilogues.scale(2)), mesh=mesh, in_specs=P("x"), out_specs=P("x")
    )
    once = lambda v: jax.jvp(inside, (v,), (v,))  # noqa: E731
    for function in (once, lambda v: jax.jvp(once, (v,), (v,))):
        assert "jaxring_epilogue_all_reduce" in str(jax.make_jaxpr(function)(x))


def test_a_step_is_not_differentiated():
    gradients, params = integers(RANKS * 4).reshape(RANKS, RANKS, 4), shards(0, (RANKS, 4))

    def loss(g):
        call = lambda g, p: jaxring.reduce_scatter(g[0], "x", epilogue=epilogues.sgd(p[0], 0.1))[None]  # noqa: E731
        return jnp.sum(spread(call, g, params))

    with pytest.raises(
        TypeError, match=r"jaxring.reduce_scatter: a step of an optimiser .* cannot be differentiated; leave"
    ):
        jax.grad(loss)(gradients)


def test_a_batch_of_data():
    x = integers(6 * 20).reshape(RANKS, 6, 20)
    call = lambda v: jaxring.all_reduce(v, "x", epilogue=epilogues.scale(2))  # noqa: E731
    batch = lambda v: jax.vmap(call, 1, 1)(v)  # noqa: E731
    np.testing.assert_array_equal(spread(batch, x), [2 * x.sum(0)] * RANKS)
    assert reductions(batch, x) == [("jaxring_epilogue_all_reduce", 6 * 20)]


def reductions(function, *operands, specs=ROWS):
    """The primitive and the number of a rank's elements of each reduction in ``function``."""

    def found(jaxpr):
        for eqn in jaxpr.eqns:
            if eqn.primitive.name in ("jaxring_all_reduce", "jaxring_epilogue_all_reduce"):
                yield eqn.primitive.name, eqn.outvars[0].aval.size
            for inner in eqn.params.values():
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from found(inner)

    return list(found(jax.make_jaxpr(lambda *each: spread(function, *each, specs=specs))(*operands)))


def test_a_batch_of_factors():
    x, factors = integers(20), np.arange(3, dtype=np.float32)
    call = lambda v, f: jaxring.all_reduce(v, "x", epilogue=epilogues.scale(f))  # noqa: E731
    batch = lambda v, f: jax.vmap(call, (None, 0), 1)(v, f)  # noqa: E731
    y = spread(batch, x, factors, specs=(P("x"), P()))
    np.testing.assert_array_equal(y, [factors[:, None] * x.sum(0)] * RANKS)
    assert reductions(batch, x, factors, specs=(P("x"), P())) == [("jaxring_all_reduce", 20)]


def test_what_no_batch_enters_is_sent_once():
    x, others = integers(20), np.arange(3, dtype=np.float32)
    call = lambda v, b: b + jaxring.all_reduce(v, "x", epilogue=epilogues.scale(2))  # noqa: E731
    batch = lambda v, b: jax.vmap(call, (None, 0), 1)(v, b)  # noqa: E731
    y = spread(batch, x, others, specs=(P("x"), P()))
    np.testing.assert_array_equal(y, [others[:, None] + 2 * x.sum(0)] * RANKS)
    assert reductions(batch, x, others, specs=(P("x"), P())) == [("jaxring_epilogue_all_reduce", 20)]


def test_a_batch_of_learning_rates():
    gradients, rates = integers(RANKS * 5).reshape(RANKS, RANKS, 5), np.array([0.5, 0.25, 2], np.float32)
    params, nu = shards(0, (RANKS, 5)), shards(1, (RANKS, 5)) ** 2

    def call(g, p, n, rates):
        step = lambda rate: epilogues.adam(p[0], p[0], n[0], 2, rate)  # noqa: E731
        one = lambda rate: jaxring.reduce_scatter(g[0], "x", epilogue=step(rate))  # noqa: E731
        batch = jax.vmap(one)(rates)
        apart = [one(rate) for rate in rates]
        return jax.tree.map(lambda *v: jnp.stack(v)[None], batch, jax.tree.map(lambda *v: jnp.stack(v), *apart))

    for both in spread(call, gradients, params, nu, rates, specs=(*[P("x")] * 3, P())):
        np.testing.assert_allclose(both[:, 0], both[:, 1], rtol=1e-6, atol=1e-6)


def test_a_batch_of_steps():
    gradients = integers(RANKS * 3 * 5).reshape(RANKS, RANKS, 3, 5)
    params = shards(0, (RANKS, 3, 5))

    def call(g, p):
        one = lambda g, p: jaxring.reduce_scatter(g, "x", epilogue=epilogues.sgd(p, 1.0))  # noqa: E731
        return jnp.stack([jax.vmap(one, (1, 0))(g[0], p[0]), jax.vmap(one, (None, 0))(g[0][:, 1], p[0])])[None]

    y, total = spread(call, gradients, params), gradients.sum(0)
    np.testing.assert_array_equal(y[:, 0], params - total)
    np.testing.assert_array_equal(y[:, 1], params - total[:, 1:2])


def test_over_an_axis_of_vmap():
    x = integers(20, ranks=3)
    y = jax.vmap(lambda v: jaxring.all_reduce(v, "i", epilogue=LINEAR), axis_name="i")(x)
    assert y.dtype == jnp.bfloat16
    np.testing.assert_array_equal(y.astype(np.float32), [(x.sum(0) / 4).astype(jnp.bfloat16).astype(np.float32)] * 3)


def call_error(error, match, collective="all_reduce", x=None, **options):
    x = integers(8) if x is None else x
    with pytest.raises(error, match=match):
        spread(lambda v: getattr(jaxring, collective)(v, "x", **options), x)


def test_errors_of_the_argument():
    call_error(TypeError, "epilogue must be one of jaxring.epilogues, such as", epilogue=0.5)
    call_error(ValueError, "cannot be combined with compress='int8'", epilogue=LINEAR, compress="int8")
    call_error(TypeError, "dtype int32, but epilogues are for floats", x=integers(8).astype(np.int32), epilogue=LINEAR)
    call_error(TypeError, "the result of the epilogue has dtype int8", epilogue=epilogues.cast("int8"))
    call_error(TypeError, "float64 and the reduced value float32, and only one", epilogue=epilogues.cast("float64"))
    step = epilogues.sgd(np.zeros((1, 8), np.float32), 0.1)
    call_error(ValueError, "sgd as epilogue is for jaxring.reduce_scatter", epilogue=step)
    square = integers(1, ranks=RANKS * RANKS)
    wrong = epilogues.sgd(np.zeros((3,), np.float32), 0.1)
    call_error(
        ValueError,
        r"params of the epilogue has shape \(3,\), but .* has \(1,\)",
        "reduce_scatter",
        square,
        epilogue=wrong,
    )
    tree = epilogues.sgd([np.zeros((1,), np.float32)], 0.1)
    call_error(ValueError, "params of the epilogue must be a pytree like", "reduce_scatter", square, epilogue=tree)


def test_errors_of_the_functions():
    with pytest.raises(ValueError, match="nothing can follow cast, so make it the last"):
        epilogues.cast("bfloat16").then(epilogues.scale(2))
    with pytest.raises(ValueError, match="nothing can follow sgd"):
        epilogues.sgd(np.zeros(3), 0.1).then(epilogues.cast("bfloat16"))
    with pytest.raises(TypeError, match="then takes an epilogue"):
        epilogues.scale(2).then(3)
    with pytest.raises(TypeError, match=r"scale: factor must be a number or a scalar array, not float32\[3\]"):
        epilogues.scale(np.zeros(3, np.float32))
    with pytest.raises(TypeError, match="factor must be a number or a scalar array, not 'half'"):
        epilogues.scale("half")
    with pytest.raises(ValueError, match="low=2 is greater than high=1"):
        epilogues.clip(2, 1)
    with pytest.raises(ValueError, match="momentum needs trace"):
        epilogues.sgd(np.zeros(3), 0.1, momentum=0.9)
    with pytest.raises(ValueError, match="trace and nesterov are for momentum"):
        epilogues.sgd(np.zeros(3), 0.1, nesterov=True)
    with pytest.raises(ValueError, match=r"low=2\.0 is greater than high=1"):
        epilogues.clip(np.float32(2), 1)
    own = (np.zeros(3),) * 3
    for step in (0, np.int32(0), jnp.int32(0)):
        with pytest.raises(ValueError, match="step=0 must be 1 at the first step"):
            jax.jit(lambda x, step=step: epilogues.adam(*own, step, x).parameters[0])(0.1)
    with pytest.raises(ValueError, match=r"b1=1.0 must be in \[0, 1\)"):
        epilogues.adam(*own, 1, 0.1, b1=1.0)
    with pytest.raises(ValueError, match=r"b2=-0.5 must be in \[0, 1\)"):
        epilogues.adam(*own, 1, 0.1, b2=np.float32(-0.5))


def test_a_factor_that_differs_between_ranks():
    x = integers(8)
    call = lambda v: jaxring.all_reduce(v, "x", epilogue=epilogues.scale(v[0, 0]))  # noqa: E731
    with pytest.raises(ValueError, match="a parameter of the epilogue varies over 'x' by its type"):
        spread(call, x)
    # A rank of a reduce-scatter has its own.
    x = integers(RANKS * 3).reshape(RANKS, RANKS, 3)
    factors = np.arange(RANKS, dtype=np.float32)
    y = spread(lambda v, f: jaxring.reduce_scatter(v[0], "x", epilogue=epilogues.scale(f[0]))[None], x, factors)
    np.testing.assert_array_equal(y, factors[:, None] * x.sum(0))


def test_a_factor_that_differs_between_groups():
    x, groups = integers(8), [[0, 1], [2, 3]]

    def call(v):
        norm = jaxring.all_reduce(jnp.sum(v * v), "x", axis_index_groups=groups)
        return jaxring.all_reduce(v, "x", axis_index_groups=groups, epilogue=epilogues.scale(norm))

    y = spread(call, x)
    want = [np.sum(x[group] ** 2) * x[group].sum(0) for group in groups for _ in group]
    np.testing.assert_array_equal(y, want)


def test_what_cpus_lack_is_refused_by_the_name_of_the_call():
    for option in ({"algorithm": "nvls"}, {"protocol": "ll128"}):
        call_error(ValueError, r"^jaxring\.all_reduce: ", epilogue=LINEAR, **option)


def lowered_for_gpus(**options):
    """The text of a program for GPUs."""
    mesh = jax.sharding.AbstractMesh((RANKS,), ("x",))
    call = jax.shard_map(lambda v: jaxring.all_reduce(v, "x", **options), mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    sharding = jax.sharding.NamedSharding(mesh, P("x"))
    x = jax.ShapeDtypeStruct((RANKS, 4), jnp.float32, sharding=sharding)
    return jax.export.export(
        jax.jit(call),
        platforms=["cuda"],
        disabled_checks=[
            jax.export.DisabledSafetyCheck.custom_call("jaxring_uncaptured_all_reduce"),
            jax.export.DisabledSafetyCheck.custom_call("jaxring_all_reduce"),
        ],
    )(x).mlir_module()


def test_programs_for_gpus_have_the_same_attributes():
    text = lowered_for_gpus(epilogue=LINEAR)
    assert "epilogue_operands = 0" in text
    assert "epilogue_states = 0" in text


def test_what_gpus_lack_is_refused_at_lowering():
    for algorithm in ("nvls", "reproducible"):
        with pytest.raises(ValueError, match=rf"jaxring\.all_reduce: algorithm '{algorithm}' "):
            lowered_for_gpus(epilogue=LINEAR, algorithm=algorithm)
    with pytest.raises(ValueError, match=r"jaxring\.all_reduce: no kernel applies an epilogue by protocol 'll128'"):
        lowered_for_gpus(epilogue=LINEAR, protocol="ll128")
    chain = epilogues.scale(2)
    for _ in range(MOST_FUNCTIONS_ON_GPUS):
        chain = chain.then(epilogues.scale(2))
    with pytest.raises(
        ValueError, match=r"jaxring\.all_reduce: the epilogue has 17 functions, and on GPUs there can be 16"
    ):
        lowered_for_gpus(epilogue=chain)


def test_the_kernels_take_as_many_functions():
    text = (ROOT / "ffi/cuda/device/tables.h").read_text()
    assert f"kMostFunctions = {MOST_FUNCTIONS_ON_GPUS}," in text


def _to_rank_0(spec, rank):
    """A reduce-scatter in which rank 0 folds everything and hands the others theirs."""
    if rank:
        sends = [Step(Kind.MOVE, Chunk(Buffer.INPUT, block), None, (), (Peer(0),)) for block in range(spec.nranks)]
        return [[*sends, Step(Kind.MOVE, None, Chunk(Buffer.OUTPUT, 0), (Peer(0),))]]
    others = [Peer(r) for r in range(1, spec.nranks)]
    steps = []
    for block in range(spec.nranks):
        where = (Chunk(Buffer.OUTPUT, 0), ()) if block == 0 else (None, (Peer(block),))
        steps.append(Step(Kind.REDUCE, Chunk(Buffer.INPUT, block), where[0], (Peer(0), *others), where[1], Flag.FINAL))
    return [steps]


def test_an_algorithm_of_your_own():
    jaxring.register_algorithm("to_rank_0", "reduce_scatter", _to_rank_0)
    x, params = integers(RANKS * 3).reshape(RANKS, RANKS, 3), shards(0, (RANKS, 3))

    def call(make):
        one = lambda g, p: jaxring.reduce_scatter(g[0], "x", algorithm="to_rank_0", epilogue=make(p[0]))[None]  # noqa: E731
        return spread(one, x, params)

    np.testing.assert_array_equal(call(lambda p: epilogues.scale(2)), 2 * x.sum(0))
    with pytest.raises(ValueError, match="is made at another rank, which does not have that rank's operands"):
        call(lambda p: epilogues.sgd(p, 0.1))
