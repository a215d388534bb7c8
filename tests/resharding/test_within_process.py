"""Arrays of which no byte leaves the process: values, memory, and what donating one of two that share it does."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring.resharding import within_process
from jaxring.resharding.facts import Facts
from tests.resharding.test_api import BLOCKS, COLUMNS, GRID, HALF, REVERSED, ROWS, TARGETS, WHOLE, numbers

# Nothing is shared; shards are; so much has to be copied that it goes another way.
SMALL, MIDDLE, LARGE = 64, 512, 2048
SHARDS = [(ROWS, REVERSED), (BLOCKS, GRID), (WHOLE, NamedSharding(HALF.mesh, P()))]


def begins(x):
    return {shard.device: shard.data.unsafe_buffer_pointer() for shard in x.addressable_shards}


def moved(source, to, side, may_alias, dtype=np.float32):
    """The operand, and the result where it goes so."""
    x = jax.device_put(numbers(side, jnp.dtype(dtype)), source)
    return x, within_process.move(Facts(x.shape, x.dtype, source, to), x, may_alias)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int4", "bool", "complex64"])
@pytest.mark.parametrize("may_alias", [False, True])
@pytest.mark.parametrize("side", [SMALL, MIDDLE])
def test_values(side, may_alias, dtype):
    for source in (ROWS, BLOCKS, WHOLE, HALF):
        for to in TARGETS:
            x, y = moved(source, to, side, may_alias, dtype)
            assert (y.sharding, y.dtype) == (to, x.dtype)
            np.testing.assert_array_equal(np.asarray(y), numbers(side, x.dtype))


@pytest.mark.parametrize(("source", "to"), SHARDS)
@pytest.mark.parametrize("side", [MIDDLE, LARGE])
def test_whole_shards_lie_in_the_operand_s_memory_where_they_may(source, to, side):
    x, y = moved(source, to, side, may_alias=True)
    assert set(begins(y).values()) <= set(begins(x).values())
    for device, at in begins(y).items():
        region = to.devices_indices_map(x.shape)[device]
        own = source.devices_indices_map(x.shape).get(device)
        assert own != region or at == begins(x)[device], "a shard that stays is the operand's own"
    _, apart = moved(source, to, MIDDLE, may_alias=False)
    assert not set(begins(apart).values()) & set(begins(x).values())


def test_what_has_to_be_copied_is_small():
    for side in (SMALL, MIDDLE, 1024):
        assert moved(ROWS, COLUMNS, side, may_alias=False)[1] is not None
    for to in (COLUMNS, REVERSED):
        assert moved(ROWS, to, LARGE, may_alias=False)[1] is None
    assert moved(ROWS, COLUMNS, LARGE, may_alias=True)[1] is None
    assert moved(ROWS, REVERSED, LARGE, may_alias=True)[1] is not None


@pytest.mark.parametrize(("source", "to"), SHARDS[:1])
@pytest.mark.parametrize("first", ["operand", "result"])
def test_either_of_two_that_share_memory_may_be_donated(source, to, first):
    """Neither has the other's shards as they are, so a program that gets one copies it."""
    values = numbers(LARGE)
    x = jax.jit(lambda v: v + 0, out_shardings=source)(jax.device_put(values, source))
    y = jaxring.reshard(x, to, may_alias=True)
    assert set(begins(y).values()) == set(begins(x).values())
    given, other = (x, y) if first == "operand" else (y, x)
    doubled = jax.jit(lambda v: v * 2, donate_argnums=0, out_shardings=given.sharding)(given)
    np.testing.assert_array_equal(np.asarray(doubled), 2 * values)
    np.testing.assert_array_equal(np.asarray(other), values)
    del x, given, doubled
    np.testing.assert_array_equal(np.asarray(other), values)


def test_an_operand_that_is_gone_leaves_its_memory_to_the_result():
    x, y = moved(ROWS, REVERSED, LARGE, may_alias=True)
    x.delete()
    del x
    taken = [np.full(1 << 20, 7, np.float32) for _ in range(8)]
    np.testing.assert_array_equal(np.asarray(y), numbers(LARGE))
    assert len(taken) == 8
