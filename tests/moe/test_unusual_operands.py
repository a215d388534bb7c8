"""Experts' numbers of narrow dtypes, tokens that all ranks share, no tokens, and weights that are not finite."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring
from tests.moe.mixture import EXPERTS, case, dense, kept, program

N = 4


@pytest.fixture
def mesh():
    return Mesh(jax.devices()[:N], ("e",))


@pytest.mark.parametrize(("dtype", "experts"), [("uint8", 256), ("int8", 128)])
def test_as_many_experts_as_the_dtype_of_their_numbers_has(mesh, dtype, experts):
    """The number of experts itself is one more than the largest value."""
    x = np.arange(N * 16 * 3, dtype=np.float32).reshape(N * 16, 3)
    ids = np.random.default_rng(0).integers(0, experts, (N * 16, 2)).astype(dtype)

    def mine(x, ids):
        sent = jaxring.moe.dispatch(x, ids, "e", experts)
        return sent.tokens, sent.counts, sent.dropped[None]

    run = jax.jit(jax.shard_map(mine, mesh=mesh, in_specs=P("e"), out_specs=P("e")))
    tokens, counts, dropped = run(x, ids)
    assert np.sum(counts) == ids.size
    assert not np.any(dropped)
    jax.tree.map(np.testing.assert_array_equal, (tokens, counts, dropped), run(x, ids.astype(np.int32)))


def test_the_gradient_by_tokens_that_all_ranks_share(mesh):
    """Each rank routes the same tokens by ids of its own: the gradient is the sum over the ranks."""
    one = case()
    tokens = len(one.ids) // N
    x = one.x[:tokens]

    def mine(x, ids, weights):
        sent = jaxring.moe.dispatch(x, ids, "e", EXPERTS)
        return jaxring.moe.combine(sent.tokens, sent, weights)

    run = jax.shard_map(mine, mesh=mesh, in_specs=(P(), P("e"), P("e")), out_specs=P("e"))
    theirs = dense(one._replace(scale=np.ones(EXPERTS, np.float32)), None)

    def loss(x):
        return jnp.sum(jnp.sin(run(x, one.ids, one.weights)))

    def reference(x):
        return jnp.sum(jnp.sin(theirs(jnp.tile(x, (N, 1)), one.weights, np.ones(EXPERTS, np.float32))))

    np.testing.assert_allclose(jax.jit(jax.grad(loss))(x), jax.grad(reference)(x), rtol=2e-5, atol=1e-5)


def test_the_gradient_by_answers_and_weights_that_all_ranks_share(mesh):
    one = case()
    tokens = len(one.ids) // N
    weights = one.weights[:tokens]

    def mine(answer, x, ids, weights):
        sent = jaxring.moe.dispatch(x, ids, "e", EXPERTS)
        answers = jnp.broadcast_to(answer, sent.tokens.shape)
        return jaxring.moe.combine(answers, sent, weights)

    specs = (P(), P("e"), P("e"), P())
    run = jax.shard_map(mine, mesh=mesh, in_specs=specs, out_specs=P("e"))

    def loss(answer, weights):
        return jnp.sum(jnp.sin(run(answer, one.x, one.ids, weights)))

    def reference(answer, weights):
        share = kept(one.ids, None) * jnp.tile(weights, (N, 1))
        return jnp.sum(jnp.sin(share.sum(1)[:, None] * answer))

    answer = np.linspace(0.5, 1.5, one.x.shape[1], dtype=np.float32)
    ours = jax.jit(jax.grad(loss, (0, 1)))(answer, weights)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5),
        ours,
        jax.grad(reference, (0, 1))(answer, weights),
    )


@pytest.mark.parametrize("capacity", [None, 3])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.sampled(3)
def test_the_weight_of_a_choice_that_was_not_sent_may_be_anything(mesh, capacity, value):
    one = case()
    sent = kept(one.ids, capacity)
    assert not sent.all()
    weights = np.where(sent, one.weights, np.float32(value))
    run, theirs = program(mesh, capacity=capacity), dense(one, capacity)

    def loss(x, weights, scale):
        y = run(x, one.ids, weights, scale)[0]
        return jnp.sum(jnp.sin(y)), y

    def reference(x, weights, scale):
        y = theirs(x, weights, scale)
        return jnp.sum(jnp.sin(y)), y

    def both(f, weights):
        return jax.jit(jax.value_and_grad(f, (0, 1, 2), has_aux=True))(one.x, weights, one.scale)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5),
        both(loss, weights),
        both(reference, one.weights),
    )


@pytest.mark.parametrize("capacity", [None, 3])
@pytest.mark.parametrize(("tokens", "width"), [(0, 5), (32, 0)])
@pytest.mark.sampled(3)
def test_no_tokens_and_rows_of_no_elements(mesh, tokens, width, capacity):
    one = case(tokens=tokens, width=width)

    def everything(f, x, weights):
        return f(x, weights), jax.grad(lambda x, weights: jnp.sum(jnp.sin(f(x, weights))), (0, 1))(x, weights)

    # XLA refuses a region all of whose operands have no elements.
    def mine(x, ids, weights, numbers):
        def f(x, weights):
            sent = jaxring.moe.dispatch(x, ids, "e", EXPERTS, capacity=capacity)
            return jaxring.moe.combine(sent.tokens, sent, weights)

        sent = jaxring.moe.dispatch(x, ids, "e", EXPERTS, capacity=capacity)
        return everything(f, x, weights), sent.counts, numbers * 0 + sent.dropped

    run = jax.jit(jax.shard_map(mine, mesh=mesh, in_specs=P("e"), out_specs=P("e")))
    ours, counts, dropped = run(one.x, one.ids, one.weights, np.arange(N))
    theirs = dense(one, capacity)
    expected = everything(lambda x, weights: theirs(x, weights, jnp.ones(EXPERTS)), one.x, one.weights)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, strict=True), ours, expected)
    assert np.sum(counts) == np.sum(kept(one.ids, capacity))
    assert np.sum(dropped) == np.sum(~kept(one.ids, capacity))


@pytest.mark.parametrize("options", [{"capacity": jnp.int32(3)}, {"rows": np.int64(64)}])
def test_numbers_of_any_integer_type(mesh, options):
    """What was dispatched is a pytree, whose static parts are hashed when it leaves a jitted function."""
    one = case()

    @jax.jit
    def mine(x, ids):
        return jaxring.moe.dispatch(x, ids, "e", EXPERTS, **options)

    def both(x, ids, weights):
        sent = mine(x, ids)
        return jaxring.moe.combine(sent.tokens, sent, weights)

    y = jax.jit(jax.shard_map(both, mesh=mesh, in_specs=P("e"), out_specs=P("e")))(one.x, one.ids, one.weights)
    expected = dense(one, 3 if "capacity" in options else None)(one.x, one.weights, np.ones(EXPERTS, np.float32))
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "bfloat16"])
def test_answers_of_narrow_dtypes_add_in_float32(mesh, dtype):
    one = case()
    x = one.x.astype(dtype)

    def mine(x, ids, weights):
        sent = jaxring.moe.dispatch(x, ids, "e", EXPERTS)
        return jaxring.moe.combine(sent.tokens, sent, weights)

    y = jax.jit(jax.shard_map(mine, mesh=mesh, in_specs=P("e"), out_specs=P("e")))(x, one.ids, one.weights)
    wide = one._replace(x=x.astype(np.float32))
    expected = dense(wide, None)(wide.x, one.weights, np.ones(EXPERTS, np.float32))
    assert y.dtype == dtype
    # One rounding of a sum in float32, of which another order of products may be another last bit.
    unit = float(jnp.finfo(dtype).eps) * np.maximum(np.abs(expected), float(jnp.finfo(dtype).smallest_normal))
    assert np.all(np.abs(np.asarray(y).astype(np.float32) - expected) <= unit)


def test_dtypes_that_are_not_served(mesh):
    one = case()

    def mine(x, ids):
        return jaxring.moe.dispatch(x, ids, "e", EXPERTS).tokens

    run = jax.shard_map(mine, mesh=mesh, in_specs=P("e"), out_specs=P("e"))
    with pytest.raises(TypeError, match="no collectives for dtype int4"):
        jax.eval_shape(run, jnp.zeros(one.x.shape, "int4"), one.ids)
    with pytest.raises(NotImplementedError, match=r"axis 'e' is one of jax\.vmap"):
        jax.vmap(mine, axis_name="e")(one.x.reshape(N, -1, 5), one.ids.reshape(N, -1, 2))
