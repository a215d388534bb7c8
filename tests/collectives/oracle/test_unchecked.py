"""What JAXRING_CHECKSUM=oracle leaves out: `jaxring.explain` names each such call of a program, and says why."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring.tracing.unchecked import Unchecked

N = 4
PAIR = [(0, 1)]
MESH = Mesh(np.array(jax.devices()[:N]), ("a",))
ROWS, COLUMNS = NamedSharding(MESH, P("a")), NamedSharding(MESH, P(None, "a"))
LINE = re.compile(r"JAXRING_CHECKSUM=oracle does not check (\w+) at (.+?): (.+?)(?: \(x\d+\))?")


def ranks(function):
    """A program of a function of each rank's four values."""

    def run():
        mapped = jax.shard_map(function, mesh=MESH, in_specs=P("a"), out_specs=P("a"), check_vma=False)
        return jax.jit(mapped)(jax.device_put(np.ones(N * N, np.float32), ROWS))

    return run


def message(x):
    return jaxring.recv(x, "a", PAIR, jaxring.send(x, "a", PAIR))[0]


def ragged(x):
    each, ones = jnp.arange(N), jnp.ones(N, jnp.int32)
    lands = jnp.full(N, jax.lax.axis_index("a"))
    return jaxring.ragged_all_to_all(x, x, each, ones, lands, ones, axis_name="a")


def products(x):
    gathered = jaxring.all_gather_matmul(x[:, None], x[None], "a")
    return jaxring.matmul_reduce_scatter(gathered, x[:, None], "a")


def over_vmap(x):
    return jax.vmap(lambda v: jaxring.all_reduce(v, ("v", "a")), axis_name="v")(jnp.stack([x, x]))[0]


def loss(x):
    return (jaxring.all_gather(x * x, "a") ** 3).sum()


def resharded():
    x = jax.device_put(np.ones((N, N), np.float32), ROWS)
    return jax.jit(lambda x: jaxring.reshard(x, COLUMNS, from_sharding=ROWS))(x)


def inserted():
    x = jax.device_put(np.ones((N, N), np.float32), ROWS)
    with jaxring.installed(whole_program=True):
        return jax.jit(lambda x: x.sum(0))(x)


# A program of each kind, and what is left out of it.
LEFT_OUT = {
    Unchecked.BARRIER: (ranks(lambda x: x + jaxring.barrier("a")), {"barrier"}),
    Unchecked.MESSAGE: (ranks(message), {"send", "recv"}),
    Unchecked.RAGGED: (ranks(ragged), {"ragged_all_to_all"}),
    Unchecked.EPILOGUE: (
        ranks(lambda x: jaxring.all_reduce(x, "a", epilogue=jaxring.epilogues.scale(0.5))),
        {"all_reduce"},
    ),
    Unchecked.COMPRESSED: (ranks(lambda x: jaxring.all_reduce(x, "a", compress="int8")), {"all_reduce"}),
    Unchecked.STARTED: (ranks(lambda x: jaxring.overlap.all_reduce_start(x, "a").done()), {"all_reduce"}),
    Unchecked.PRODUCT: (ranks(products), {"all_gather_matmul", "matmul_reduce_scatter"}),
    Unchecked.REPRODUCIBLE: (ranks(lambda x: x + jaxring.reproducible_sum(x, "a", 0)), {"reproducible_sum"}),
    Unchecked.RESHARD: (resharded, {"reshard"}),
    Unchecked.VMAPPED: (ranks(over_vmap), {"all_reduce"}),
    Unchecked.DERIVATIVE: (ranks(jax.grad(loss)), {"all_gather", "reduce_scatter"}),
    Unchecked.INSERTED: (inserted, {"all_reduce"}),
    Unchecked.COMMUNICATOR: (lambda: jaxring.Communicator().all_reduce(np.ones(3)), {"all_reduce"}),
}


def left_out(program):
    """(collective, why) of what `jaxring.explain` lists after this program; each is of a call with its place."""
    jaxring.explain(clear=True)
    jax.block_until_ready(program())
    jax.effects_barrier()
    lines = [line for line in jaxring.explain(clear=True).splitlines() if "oracle" in line]
    found = [LINE.fullmatch(line) for line in lines]
    assert all(found), lines
    assert all("test_unchecked.py:" in each[2] or "communicator " in each[2] for each in found), lines
    return {(each[1], each[3]) for each in found}


@pytest.mark.parametrize("kind", Unchecked, ids=lambda kind: kind.name)
def test_what_is_left_out_is_named_with_its_reason(consulted, kind):
    program, names = LEFT_OUT[kind]
    assert left_out(program) == {(name, kind.why) for name in names}
    assert not consulted[1]


def test_a_call_that_is_checked_is_not_named(consulted):
    assert left_out(ranks(lambda x: jaxring.all_reduce(x, "a"))) == set()
    assert [name for name, _ in consulted[0]] == ["all_reduce"] * N


@pytest.mark.parametrize("consulted", ["messages"], indirect=True)
def test_nothing_is_named_where_the_oracle_is_off(consulted):
    for kind in (Unchecked.MESSAGE, Unchecked.DERIVATIVE, Unchecked.COMMUNICATOR):
        assert left_out(LEFT_OUT[kind][0]) == set()
    assert not consulted[0]
