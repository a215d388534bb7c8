"""Tokens of a mixture of experts, against NumPy: what arrives where, in which order, what is dropped, derivatives."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring
from tests.moe.mixture import EXPERTS, case, dense, kept, program, sent_rows

N = 4


@pytest.fixture
def mesh():
    return Mesh(jax.devices()[:N], ("e",))


def rows_of_experts(tokens, counts, ranks, capacity):
    """The rows of each expert, of what all ranks got one after the other; what is no row must be zeros."""
    here, found = EXPERTS // ranks, []
    for rank, mine in enumerate(np.split(np.asarray(tokens), ranks)):
        numbers = np.asarray(counts)[rank * here : (rank + 1) * here]
        if capacity is None:
            parts = np.split(mine, np.cumsum(numbers))
            found += parts[:-1]
            assert not parts[-1].any()
        else:
            found += [rows[:number] for rows, number in zip(mine, numbers, strict=True)]
            assert not any(rows[number:].any() for rows, number in zip(mine, numbers, strict=True))
    return found


@pytest.mark.parametrize("capacity", [None, 3])
@pytest.mark.parametrize("ranks", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_each_expert_gets_its_rows_in_order(ranks, capacity):
    one = case()
    y, tokens, counts, dropped = jax.jit(program(Mesh(jax.devices()[:ranks], ("e",)), capacity=capacity))(*one)
    expected = sent_rows(one, capacity)
    for got, want in zip(rows_of_experts(tokens, counts, ranks, capacity), expected, strict=True):
        np.testing.assert_array_equal(got, want)
    np.testing.assert_allclose(y, dense(one, capacity)(one.x, one.weights, one.scale), rtol=1e-6, atol=1e-6)
    assert np.sum(dropped) == np.sum(~kept(one.ids, capacity))


@pytest.mark.parametrize(("capacity", "check_vma"), [(3, True), pytest.param(None, False, marks=pytest.mark.slow)])
def test_derivatives(mesh, capacity, check_vma):
    one = case()
    ours, theirs = program(mesh, check_vma, capacity=capacity), dense(one, capacity)
    x, ids, weights, scale = one

    def loss(x, weights, scale):
        return jnp.sum(jnp.sin(ours(x, ids, weights, scale)[0]))

    def reference(x, weights, scale):
        return jnp.sum(jnp.sin(theirs(x, weights, scale)))

    def both(f):
        def derivatives(*args):
            return jax.grad(f, (0, 1, 2))(*args), jax.jvp(f, args, tuple(map(jnp.cos, args)))[1]

        return jax.jit(derivatives)(x, weights, scale)

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5), both(loss), both(reference))


def test_a_bound_of_rows_is_no_permission_to_drop(mesh):
    one = case()
    most = max(sum(len(rows) for rows in part) for part in np.array_split(np.array(sent_rows(one, None), object), N))
    y, tokens, *_ = jax.jit(program(mesh, rows=most))(*one)
    assert tokens.shape == (N * most, one.x.shape[1])
    np.testing.assert_allclose(y, dense(one, None)(one.x, one.weights, one.scale), rtol=1e-6, atol=1e-6)
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="reaches past the output's end"):
        jax.block_until_ready(jax.jit(program(mesh, rows=most - 1))(*one))


def test_counts_travel_once_and_derivatives_need_none(mesh):
    one = case()

    def calls(f):
        text = jax.jit(f).lower(*one).as_text()
        return {name: len(re.findall(rf"@jaxring_{name}\(", text)) for name in ("all_to_all", "ragged_all_to_all")}

    f = program(mesh)
    assert calls(f) == {"all_to_all": 1, "ragged_all_to_all": 2}
    assert calls(program(mesh, capacity=3)) == {"all_to_all": 2, "ragged_all_to_all": 2}

    def loss(x, *rest):
        return jnp.sum(jnp.sin(f(x, *rest)[0]))

    assert calls(jax.grad(loss)) == {"all_to_all": 1, "ragged_all_to_all": 4}


@pytest.mark.slow
def test_a_batch_of_rows(mesh):
    """vmap over a dimension of the tokens: the same routes, longer rows; and over routes of their own."""
    one, other = case(), case(seed=1)
    x, ids, weights = (np.stack(pair) for pair in zip(one[:3], other[:3], strict=True))

    def mine(x, ids, weights):
        sent = jaxring.moe.dispatch(x, ids, "e", EXPERTS)
        return jaxring.moe.combine(sent.tokens, sent, weights)

    def batched(x, ids, weights):
        apart = jax.vmap(mine)(x, ids, weights)
        return apart, jax.vmap(mine, (2, None, None), 2)(jnp.stack([x[0], x[1]], -1), ids[0], weights[0])

    specs = (P(None, "e"), P("e"))
    run = jax.jit(jax.shard_map(batched, mesh=mesh, in_specs=P(None, "e"), out_specs=specs))
    apart, together = run(x, ids, weights)
    ones = np.ones(EXPERTS, np.float32)
    for got, each in zip(apart, (one, other), strict=True):
        np.testing.assert_allclose(got, dense(each, None)(each.x, each.weights, ones), rtol=1e-6, atol=1e-6)
    for i, each in enumerate((one, other)):
        want = dense(one, None)(each.x, one.weights, ones)
        np.testing.assert_allclose(together[..., i], want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"experts": 6}, ValueError, "experts=6 must be a multiple of the number of ranks, 4"),
        ({"ids": np.zeros((32, 2), np.float32)}, TypeError, "not float32"),
        ({"ids": np.zeros(32, np.int32)}, ValueError, r"must be \[tokens, k\]"),
        ({"capacity": 0}, ValueError, "capacity=0 must be 1 or more"),
        ({"capacity": 2, "rows": 3}, ValueError, "give rows or a capacity"),
        ({"algorithm": "ring"}, ValueError, "use one of direct, pxn, multileader, deterministic"),
        ({"weights": np.ones((32, 1), np.float32)}, ValueError, r"weights \(8, 1\) must be \(8, 2\)"),
        ({"answers": lambda tokens: tokens[:-1]}, ValueError, r"must begin with \(64,\)"),
    ],
)
def test_errors(mesh, changes, error, says):
    one = case()
    options = {"experts": EXPERTS} | {k: v for k, v in changes.items() if k not in ("ids", "weights", "answers")}

    def mine(x, ids, weights):
        sent = jaxring.moe.dispatch(x, ids, "e", **options)
        return jaxring.moe.combine(changes.get("answers", lambda tokens: tokens)(sent.tokens), sent, weights)

    operands = (one.x, changes.get("ids", one.ids), changes.get("weights", one.weights))
    with pytest.raises(error, match=says):
        jax.eval_shape(jax.shard_map(mine, mesh=mesh, in_specs=P("e"), out_specs=P("e")), *operands)
