"""All-reduce over an operand that may be overwritten, and over one that must stay."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxring
from tests.collectives.cases.coll_ranks import Ranks

N = 4
ALIASED = "output_operand_aliases = [#"


def program(call, donate=(), check_vma=False):
    mesh = Ranks(jax.devices()[:N]).mesh
    mapped = jax.shard_map(
        call, mesh=mesh, in_specs=P("x"), out_specs=P(None) if check_vma else P("x"), check_vma=check_vma
    )
    return jax.jit(mapped, donate_argnums=donate)


def operand():
    return jnp.arange(N * 6.0).reshape(N * 2, 3)


def reduced(x):
    return np.tile(np.asarray(x).reshape(N, 2, 3).sum(0), (N, 1))


def sums(x):
    return jaxring.all_reduce(x, "x")


@pytest.mark.parametrize(
    ("call", "donate", "aliased"),
    [
        (sums, (), False),
        (sums, (0,), True),
        (lambda x: sums(x.reshape(-1)).reshape(2, 3), (), False),
        (lambda x: sums(x * 1.0 + 0.0), (), True),
        (lambda x: jax.jit(sums)(x), (), None),
        (lambda x: jax.lax.fori_loop(0, 1, lambda _, y: sums(y), x), (), True),
    ],
    ids=["argument", "donated", "reshaped", "computed", "called", "carried"],
)
def test_operand_that_must_stay_is_not_aliased(call, donate, aliased):
    run = program(call, donate)
    if aliased is not None:
        assert (ALIASED in run.lower(operand()).as_text()) == aliased
    x = operand()
    want = reduced(x)
    y = run(x)
    np.testing.assert_array_equal(y, want)
    if not donate:
        np.testing.assert_array_equal(x, operand())
        np.testing.assert_array_equal(run(x), want)


def test_with_checked_types():
    run = program(sums, check_vma=True)
    assert ALIASED not in run.lower(operand()).as_text()
    np.testing.assert_array_equal(run(operand()), reduced(operand())[:2])
