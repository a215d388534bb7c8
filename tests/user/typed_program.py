"""A user's program that calls every public function once, with types: run and type-checked by test_types.py."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import assert_type

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped, unused-ignore]
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
import jaxring.optax
from jaxring.plan.schedule import Buffer, Chunk, Kind, Peer, ScheduleError, Spec, Step
from jaxring.typing import Op

RANKS = 4
RING = [(i, (i + 1) % RANKS) for i in range(RANKS)]
MESH = Mesh(np.array(jax.devices()), ("x",))
# What is not typed here is JAX's and Optax's.
SPLIT, WHOLE = P("x"), P()  # type: ignore[no-untyped-call, unused-ignore]


def on_ranks(function: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """What the ranks' calls give, one after the other; each is called with its row of 4 x 4 values."""
    mapped = jax.shard_map(function, mesh=MESH, in_specs=SPLIT, out_specs=SPLIT, check_vma=False)
    found: jax.Array = jax.jit(mapped)(jnp.arange(float(RANKS * RANKS)))
    return found


def lanes(spec: Spec, rank: int) -> list[list[Step]]:
    """An all-gather in which everybody sends to everybody."""
    others = tuple(Peer(r) for r in range(spec.nranks) if r != rank)
    own = Step(Kind.MOVE, Chunk(Buffer.INPUT, 0), Chunk(Buffer.OUTPUT, rank), send=others)
    return [[own, *(Step(Kind.MOVE, dst=Chunk(Buffer.OUTPUT, p.rank), recv=(p,)) for p in others)]]


def collectives(x: jax.Array) -> jax.Array:
    op: Op = "mean"
    total: jax.Array = assert_type(jaxring.all_reduce(x, "x", op, timeout=60.0), jax.Array)
    whole = assert_type(jaxring.all_gather(x, "x", tiled=True, protocol="simple"), jax.Array)
    total += assert_type(jaxring.reduce_scatter(whole, "x", tiled=True), jax.Array)
    total += assert_type(jaxring.all_to_all(x, "x", 0, 0, tiled=True), jax.Array)
    total += assert_type(jaxring.permute(x, "x", RING), jax.Array)
    total += assert_type(jaxring.broadcast(x, "x", root=1), jax.Array)
    total += assert_type(jaxring.reduce(x, "x", "max", root=1), jax.Array)
    gathered = assert_type(jaxring.gather(x, "x", tiled=True), jax.Array)
    total += assert_type(jaxring.scatter(gathered, "x", tiled=True), jax.Array)
    total += assert_type(jaxring.reproducible_sum(x, "x"), jax.Array)
    total += assert_type(jaxring.pcast(jnp.ones(()), "x", to="varying"), jax.Array)
    total += jaxring.all_gather(x, "x", algorithm="everybody").sum(0)
    both = {"a": x, "b": x}
    pair = assert_type(jaxring.all_reduce(both, "x", compress="int8", seed=1), dict[str, jax.Array])
    after = jaxring.epilogues.scale(0.5).then(jaxring.epilogues.clip(-1.0, 1.0)).then(jaxring.epilogues.cast(x.dtype))
    total += jaxring.all_reduce(x, "x", epilogue=assert_type(after, jaxring.epilogues.Epilogue))
    x, trace = jaxring.reduce_scatter(
        whole, "x", tiled=True, epilogue=jaxring.epilogues.sgd(x, 0.1, momentum=0.9, trace=jnp.zeros_like(x))
    )
    adam = jaxring.epilogues.adam(x, trace, trace**2, 1, 0.1)
    total += sum(jaxring.reduce_scatter(whole, "x", tiled=True, epilogue=adam))
    return total + pair["a"] + assert_type(jaxring.barrier("x"), jax.Array).astype(x.dtype).sum()


def starts(x: jax.Array) -> jax.Array:
    handles = [
        assert_type(jaxring.all_reduce_start(x, "x"), jaxring.Handle[jax.Array]),
        assert_type(jaxring.broadcast_start(x, "x"), jaxring.Handle[jax.Array]),
        assert_type(jaxring.permute_start(x, "x", RING), jaxring.Handle[jax.Array]),
        assert_type(jaxring.all_to_all_start(x, "x", 0, 0, tiled=True), jaxring.Handle[jax.Array]),
    ]
    gathered, doubled = jaxring.all_gather_start(x, "x", tiled=True).done(2 * x)
    x = x + doubled
    last = jaxring.reduce_scatter_start(assert_type(gathered, jax.Array), "x", tiled=True)
    return sum((assert_type(handle.done(), jax.Array) for handle in handles), last.done())


def messages(x: jax.Array) -> jax.Array:
    token = assert_type(jaxring.send(x, "x", RING, assert_type(jaxring.new_token(), jax.Array), tag=3), jax.Array)
    came, _ = assert_type(jaxring.recv(x, "x", RING, token, tag=3), tuple[jax.Array, jax.Array])
    ones, offsets = jnp.ones(RANKS, jnp.int32), jnp.arange(RANKS, dtype=jnp.int32)
    own = jnp.full(RANKS, jax.lax.axis_index("x"), jnp.int32)
    uneven = jaxring.ragged_all_to_all(x, jnp.zeros_like(x), offsets, ones, own, ones, axis_name="x")
    return came + assert_type(uneven, jax.Array)


def models(x: jax.Array) -> jax.Array:
    square = jnp.outer(x, x)
    product = assert_type(jaxring.all_gather_matmul(square, square, "x"), jax.Array)
    product += assert_type(jaxring.matmul_reduce_scatter(square, square, "x"), jax.Array).sum()
    ids = jnp.arange(RANKS, dtype=jnp.int32)[:, None]
    sent = jaxring.moe.dispatch(square, ids, "x", experts=RANKS, capacity=RANKS)
    assert_type(sent, jaxring.moe.Dispatched)
    answers = jaxring.moe.combine(sent.tokens, sent)
    _, gradient = jaxring.data_parallel.value_and_grad(lambda w: (w * x).sum(), "x")(x)
    gradient += jaxring.overlap_gradients(jax.grad(lambda w: (w * x).sum()), "x")(x)
    for transformation in (
        jaxring.optax.compressed_mean("x"),
        jaxring.optax.diloco("x", optax.sgd(0.1), every=2),
    ):
        state = transformation.init(x)
        jaxring.optax.state_specs(state, "x")
        gradient, _ = transformation.update(gradient, state, x)
    return product.sum(0) + jnp.sum(answers) + jnp.asarray(gradient)


def lax(x: jax.Array) -> jax.Array:
    total = jaxring.lax.psum(x, "x") + jaxring.lax.pmean(x, "x") + jaxring.lax.pmax(x, "x") + jaxring.lax.pmin(x, "x")
    total += jaxring.lax.psum_scatter(jaxring.lax.all_gather(x, "x", tiled=True), "x", tiled=True)
    total += jaxring.lax.all_to_all(x, "x", 0, 0, tiled=True) + jaxring.lax.ppermute(x, "x", RING)
    total += jaxring.lax.pshuffle(x, "x", [1, 2, 3, 0]) + jaxring.lax.pswapaxes(x, "x", 0)
    ones, offsets = jnp.ones(RANKS, jnp.int32), jnp.arange(RANKS, dtype=jnp.int32)
    own = jnp.full(RANKS, jaxring.lax.axis_index("x"), jnp.int32)
    total += jaxring.lax.ragged_all_to_all(x, jnp.zeros_like(x), offsets, ones, own, ones, axis_name="x")
    total += jaxring.lax.pcast(jnp.ones(()), "x", to="varying")
    return jnp.asarray(total + jaxring.lax.pbroadcast(x, "x", 0))


def whole_arrays() -> None:
    x = jnp.arange(float(RANKS * RANKS))
    split: jax.Array = jax.device_put(x, NamedSharding(MESH, SPLIT))
    parts = [
        assert_type(jaxring.sharded.all_reduce(x, MESH, "x"), jax.Array),
        assert_type(jaxring.sharded.all_gather(x, MESH, "x"), jax.Array),
        assert_type(jaxring.sharded.reduce_scatter(x, MESH, "x"), jax.Array),
        assert_type(jaxring.sharded.all_to_all(x, MESH, "x", 0, 0), jax.Array),
        assert_type(jaxring.sharded.broadcast(x, MESH, "x", timeout=60.0), jax.Array),
        assert_type(jaxring.sharded.permute(x, MESH, "x", RING), jax.Array),
        assert_type(jaxring.reshard(split, NamedSharding(MESH, WHOLE)), jax.Array),
    ]
    assert all(part.size for part in parts)
    own, comm = np.ones(3, np.float32), jaxring.Communicator(timeout=60.0)
    out: np.ndarray = comm.all_reduce(comm.reduce_scatter(comm.all_gather(comm.all_to_all(own[None])[0])))
    assert comm.permute(comm.broadcast(out), []).size


def job() -> None:
    members = [assert_type(jaxring.suspend(), jaxring.recovery.Membership), jaxring.resume()]
    kept = [assert_type(jaxring.commit(), bool), jaxring.commit(ok=False), jaxring.commit(True, timeout=60.0)]
    jaxring.abort("a test")
    assert assert_type(jaxring.recovery.halted(), str | None)
    told = ""
    try:
        on_ranks(lambda x: jaxring.all_reduce(x, "x")).block_until_ready()
    except jaxring.recovery.ERRORS as error:
        told = str(error)
    assert "a test" in told
    assert [*kept, jaxring.recovery.commit()] == [True, False, True, False]
    members += [jaxring.rebuild(), jaxring.shrink(timeout=60.0), jaxring.recovery.members()]
    epochs: list[int] = [each.epoch for each in members]
    assert sorted(epochs) == epochs
    assert (jaxring.recovery.restarted(), jaxring.recovery.waiting()) == (False, ())
    jaxring.install()
    jaxring.uninstall()
    with jaxring.installed(whole_program=False), jaxring.profiler.trace(sys.argv[1]):
        on_ranks(lambda x: jaxring.all_reduce(x, "x"))
    names = {assert_type(plan.algorithm, str) for plan in jaxring.plans()}
    assert "everybody" in names, jaxring.explain()
    assert "everybody" in assert_type(jaxring.explain(clear=True), str)
    assert jaxring.plans() == ()
    assert assert_type(jaxring.counters(), dict[str, int])["failures"] >= 0
    assert jaxring.build_info()
    assert jaxring.export_checks()


def main() -> None:
    jaxring.register_algorithm("everybody", "all_gather", lanes)
    for function in (collectives, starts, messages, models, lax):
        assert np.isfinite(np.asarray(on_ranks(function))).all(), function
    whole_arrays()
    job()
    errors: tuple[type[Exception], ...] = (jaxring.SettingsError, jaxring.JoinError, jaxring.MemoryLimitError)
    assert all(issubclass(error, jaxring.JaxringError) for error in (*errors, jaxring.PlanError))
    assert issubclass(ScheduleError, ValueError)
    assert issubclass(jaxring.ReplicatedOperandWarning, UserWarning)


if __name__ == "__main__":
    main()
