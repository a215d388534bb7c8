"""JAX's collectives that are started and done later, under installed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.lax import parallel
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring import lax
from tests.dropin.inst_cases import mesh

STARTS = {
    "psum_start": {},
    "all_gather_start": {},
    "psum_scatter_start": {"tiled": True},
    "all_to_all_start": {"split_axis": 0, "concat_axis": 0},
    "ppermute_start": {"perm": [(i, i ^ 1) for i in range(8)]},
    "pbroadcast_start": {"source": 3},
}


# What this version of JAX has; newer ones have psum_start with check_vma only.
FOUND = [
    (name, vma)
    for name in STARTS
    for vma in (True, False)
    if hasattr(parallel, name) and (vma or name != "psum_start" or hasattr(parallel, "psum_start_p"))
]


def test_starts_exist():
    assert len(FOUND) >= 9


@pytest.mark.parametrize(("name", "check_vma"), FOUND)
@pytest.mark.sampled(3)
def test_start_and_done(name, check_vma):
    start = getattr(parallel, name)
    sync, arguments = getattr(jax.lax, name.removesuffix("_start")), STARTS[name]
    x = jnp.arange(64.0).reshape(8, 8)

    def program(call):
        def rank(x):
            return jnp.reshape(call(x[0]), (1, -1))

        specs = P(("x", "y"))
        return jax.jit(jax.shard_map(rank, mesh=mesh(), in_specs=specs, out_specs=specs, check_vma=check_vma))

    def asynchronous(x):
        future = start(x, ("x", "y"), **arguments)
        return jax.jit(lambda: future.done())() + 1

    with jaxring.installed():
        f = program(asynchronous)
        text = f.lower(x).as_text()
        assert "stablehlo.async" not in text
        assert "-start" not in text
        assert "@jaxring_" in text
        np.testing.assert_array_equal(f(x), program(lambda x: sync(x, ("x", "y"), **arguments) + 1)(x))


@pytest.mark.parametrize("check_vma", [True, False])
def test_lax_has_the_public_one(check_vma):
    """`jaxring.lax.psum_scatter_start`, where JAX has it, runs without install; others are the same in one step."""
    x = jnp.arange(64.0).reshape(8, 8)
    specs = P(("x", "y"))

    def program(call):
        rank = lambda x: call(x[0] * 2, ("x", "y"), tiled=True).reshape(1, -1) + 1  # noqa: E731
        return jax.jit(jax.shard_map(rank, mesh=mesh(), in_specs=specs, out_specs=specs, check_vma=check_vma))

    def in_two_halves(*args, **kwargs):
        return lax.psum_scatter_start(*args, **kwargs).done()

    f = program(in_two_halves if hasattr(jax.lax, "psum_scatter_start") else lax.psum_scatter)
    text = f.lower(x).as_text()
    assert "@jaxring_reduce_scatter" in text
    assert "-start" not in text
    assert "-done" not in text
    np.testing.assert_array_equal(f(x), program(jax.lax.psum_scatter)(x))
