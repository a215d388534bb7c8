"""Collectives in partition functions of `jax.experimental.custom_partitioning`, which XLA's partitioner calls."""

from __future__ import annotations

import gc
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring

MESH = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def partitioned(local):
    """A function whose partitions are computed by ``local``, from the rows of each rank."""

    @custom_partitioning
    def whole(x):
        return x

    def partition(mesh, arguments, result):
        del arguments, result
        rows = NamedSharding(mesh, P(("x", "y"), None))
        return mesh, local, rows, (rows,)

    whole.def_partition(
        partition=partition,
        infer_sharding_from_operands=lambda mesh, arguments, result: NamedSharding(mesh, P(("x", "y"), None)),
        sharding_rule="i j -> i j",
    )
    return jax.jit(whole)


def collectives(namespace):
    def local(x):
        x = namespace.psum(x, ("x", "y")) / 8 + namespace.pmax(x, "y") + x
        x = x + namespace.all_gather(x, "x", axis=0, tiled=True).sum(0)
        x = x + namespace.ppermute(x, "x", [(i, (i + 1) % 4) for i in range(4)])
        x = x + namespace.ppermute(x, ("x", "y"), [(i, (i + 3) % 8) for i in range(8)])
        blocks = namespace.all_to_all(x.reshape(4, -1), "x", 0, 0, tiled=True)
        return blocks.reshape(x.shape) + namespace.psum_scatter(jnp.tile(x, (2, 1)), "y", tiled=True)

    return local


def operand():
    x = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
    return jax.device_put(x, NamedSharding(MESH, P("x", "y")))


@pytest.mark.parametrize("way", ["lax", "install", "whole program"])
def test_collectives_in_a_partition_function(way):
    x = operand()
    expected = partitioned(collectives(lax))(x)
    f = partitioned(collectives(jaxring.lax if way == "lax" else lax))
    if way != "lax":
        jaxring.install(whole_program=way == "whole program")
    try:
        compiled = f.lower(x).compile()
        calls = compiled.as_text().count('custom_call_target="jaxring_')
        assert calls >= (9 if way == "whole program" else 7)  # the first also reshards
        operations = jaxring.counters()["operations"]
        np.testing.assert_allclose(f(x), expected, rtol=1e-5)
        assert jaxring.counters()["operations"] > operations
    finally:
        jaxring.uninstall()


def test_what_a_thread_of_xlas_has_lowered_outlives_it():
    """What the lowering remembers for a thread is freed by threads of Python's only; freed elsewhere it ends us."""
    x = operand()
    with jaxring.installed():
        for i in range(3):
            f = partitioned(lambda x, i=i: lax.psum(x * i, "x"))
            thread = threading.Thread(target=lambda f=f: jax.block_until_ready(f(x)))
            thread.start()
            thread.join()
        gc.collect()
        np.testing.assert_allclose(f(x).sum(), 2 * 4 * np.asarray(x).sum(), rtol=1e-4)
