"""Gradients in buckets: the same bits, in backward order, while the rest of the backward pass runs."""

from __future__ import annotations

import functools
import itertools
import json
import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring import _native
from jaxring.overlapped import buckets

N = 2
# Widths that differ, so that each gradient can be told by its size.
WIDTHS = (24, 20, 16, 12, 8)


def layers():
    rng = np.random.default_rng(0)
    shapes = itertools.pairwise(WIDTHS)
    return [{"w": rng.standard_normal(s, np.float32) / 4, "b": np.ones(s[1], np.float32)} for s in shapes]


def loss(params, x):
    for layer in params:
        x = jax.nn.gelu(x @ layer["w"] + layer["b"])
    return jnp.mean(x**2)


def on_ranks(f, check_vma=False, ranks=N):
    mesh = Mesh(jax.devices()[:ranks], ("d",))
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=(P(), P("d")), out_specs=P(), check_vma=check_vma))


def operands():
    return layers(), np.random.default_rng(1).standard_normal((8, WIDTHS[0]), np.float32)


@pytest.mark.parametrize("check_vma", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_bits_of_one_all_reduce(check_vma):
    """Among four ranks, since a sum of two values is the same in any order."""
    grad_fn = jax.jit(jax.value_and_grad(loss))
    ours = on_ranks(jaxring.overlap_gradients(grad_fn, "d", bucket_bytes=1000), check_vma, ranks=4)
    plain = on_ranks(jaxring.data_parallel.value_and_grad(loss, "d"), check_vma, ranks=4)
    jax.tree.map(np.testing.assert_array_equal, ours(*operands()), plain(*operands()))


def test_buckets_begin_in_backward_order_each_when_the_last_has_ended():
    run = on_ranks(jaxring.overlap_gradients(jax.grad(loss), "d", bucket_bytes=1))
    jax.block_until_ready(run(*operands()))
    orders = set()
    for _ in range(3):
        before = _native.records(0)[-1].number
        jax.block_until_ready(run(*operands()))
        records = sorted(_native.records(before), key=lambda record: record.launched)
        orders.add(tuple(json.loads(record.label)["nbytes"] for record in records))
        for former, following in itertools.pairwise(records):
            assert former.ended <= following.arrived
    (order,) = orders
    places = [order.index(4 * a * b) for a, b in itertools.pairwise(WIDTHS)]
    assert len(order) == 2 * len(places)
    assert places == sorted(places, reverse=True)


def test_a_bucket_is_full_when_it_has_its_bytes():
    jaxpr = jax.make_jaxpr(lambda x: (x.sum(), jnp.sin(x), 2.0, x * 2, x, jnp.cos(jnp.sin(x))))(np.ones(8, np.float32))
    found = buckets.buckets(jaxpr.jaxpr, 36)
    # What needs no equation comes first: a constant and an argument.
    assert found[0] == buckets.Bucket((2, 4), 0)
    assert [bucket.results for bucket in found[1:]] == [(0, 1), (3, 5)]
    assert [bucket.ready for bucket in found[1:]] == sorted(bucket.ready for bucket in found[1:])
    assert found[-1].ready == len(jaxpr.jaxpr.eqns)


def probe(x, callback):
    """``x``; on the way back each rank computes for a while, and then calls ``callback(rank)``."""

    @jax.custom_vjp
    def same(x):
        return x

    def back(_, ct):
        square = ct @ ct.T
        slow = jnp.sort(jnp.sin(square @ square))[0, 0]
        zero = jax.pure_callback(callback, jax.ShapeDtypeStruct((), jnp.float32), jax.lax.axis_index("d"), slow)
        return (ct + zero,)

    same.defvjp(lambda x: (x, None), back)
    return same(x)


def test_buckets_are_the_gradients_themselves_and_the_sums_take_their_memory():
    """In what XLA makes of the program: no weight's gradient is copied or joined with others."""
    run = on_ranks(jaxring.overlap_gradients(jax.grad(loss), "d", bucket_bytes=1000))
    text = run.lower(*operands()).compile().as_text()
    # The operation that makes each matrix, by name. A fusion is known by its name's parts.
    made = dict(re.findall(r"(%\S+) = f32\[\d+,\d+\]\S* ([\w-]+)\(", text))
    call = r"custom-call\((.*)\), custom_call_target=\"jaxring_all_reduce\".*output_to_operand_aliasing=\{(.*?)\}, api"
    calls = [(re.findall(r"%[\w.-]+", names), aliases) for names, aliases in re.findall(call, text)]
    assert len(calls) > 1
    matrices = [name for names, _ in calls for name in names if name in made]
    assert len(matrices) == len(WIDTHS) - 1
    for name in matrices:
        assert not re.search("copy|concatenate", f"{name} {made[name]}"), (name, made[name])
    for names, aliases in calls:
        for number in range(len(names) - 1):  # the last one is the order
            assert f"{{{number}}}: ({number}, {{}})" in aliases, aliases


def test_the_backward_pass_goes_on_while_a_bucket_is_in_flight():
    """Rank 1 computes the last layer's gradient when rank 0 has gone further back, so rank 0's bucket is waiting."""
    armed, ran, seen = threading.Event(), threading.Event(), []

    def hold(rank, _):
        if armed.is_set() and rank == 1:
            ran.wait(20)
        return np.float32(0)

    def further_back(rank, _):
        if armed.is_set() and rank == 0:
            seen.append(jaxring.counters()["in_flight"])
            ran.set()
        return np.float32(0)

    def probed(params, x):
        first, last = params[0], params[-1]
        x = probe(jnp.tanh(x @ first), further_back)
        return jnp.sum(probe(x @ last, hold) ** 2)

    run = on_ranks(jaxring.overlap_gradients(jax.grad(probed), "d", bucket_bytes=1, timeout=20))
    params = [np.eye(40, dtype=np.float32) / 8] * 2
    x = np.random.default_rng(2).standard_normal((N * 40, 40), np.float32)
    first = jax.tree.map(np.asarray, run(params, x))
    armed.set()
    try:
        jax.tree.map(np.testing.assert_array_equal, run(params, x), first)
    finally:
        ran.set()
    assert seen == [1]


def test_errors():
    with pytest.raises(ValueError, match="bucket_bytes=0 must be 1 or more"):
        jaxring.overlap_gradients(jax.grad(loss), "d", bucket_bytes=0)
    with pytest.raises(NameError, match=r"jaxring\.overlap_gradients: axis 'd' is not bound"):
        jaxring.overlap_gradients(jax.grad(loss), "d")(*operands())


def test_arguments_that_are_no_arrays_stay():
    def scaled(x, *, power, name):
        assert (power, name) == (2, "x")
        return jnp.sum(x**power)

    run = functools.partial(jaxring.overlap_gradients(jax.grad(scaled), "d", op="sum"), power=2, name="x")
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(on_ranks(lambda x, _: run(x))(x, x), 2 * x * N)
