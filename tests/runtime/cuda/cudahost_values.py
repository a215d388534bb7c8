"""What collectives on GPUs give, and which way they went."""

from __future__ import annotations

import os
import socket

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import jaxring
from jaxring import _compat
from jaxring.runtime import schedules
from jaxring.settings import settings
from jaxring.world.store import JaxStore
from tests.runtime.cuda.cudahost_engine import (
    RANKS,
    REAL,
    check,
    devices,
    engine,
    error_of,
    mesh,
    over,
    process,
    processes,
)


def collectives(**options):
    rows = np.arange(RANKS * 96, dtype=np.float32).reshape(RANKS, 96) % 17
    total = np.broadcast_to(rows.sum(0), rows.shape)
    check(lambda v: jaxring.all_reduce(v, "d", **options), rows, total)
    check(lambda v: jaxring.all_reduce(v, "d", "max"), rows, np.broadcast_to(rows.max(0), rows.shape))
    check(
        lambda v: jaxring.all_gather(v[0], "d").reshape(1, -1),
        rows,
        np.broadcast_to(rows.reshape(1, -1), (RANKS, rows.size)),
    )
    blocks = rows.reshape(RANKS, RANKS, -1)
    check(lambda v: jaxring.reduce_scatter(v[0], "d")[None], blocks, blocks.sum(0))
    check(lambda v: jaxring.all_to_all(v[0], "d", 0, 0)[None], blocks, blocks.swapaxes(0, 1))
    check(lambda v: jaxring.broadcast(v, "d", root=RANKS - 1), rows, np.broadcast_to(rows[-1], rows.shape))
    shift = [(i, (i + 1) % RANKS) for i in range(RANKS)]
    check(lambda v: jaxring.permute(v, "d", shift), rows, np.roll(rows, 1, axis=0))
    half = (rows % 5).astype(jnp.bfloat16)
    mean = (half.astype(np.float32).sum(0) / RANKS).astype(half.dtype)
    check(lambda v: jaxring.all_reduce(v, "d", "mean"), half, np.broadcast_to(mean, half.shape))


def smoke():
    """The first that a GPU runs under JAX: one small and one large all-reduce, twice each."""
    for elements in (1 << 10, 1 << 20):
        rows = np.arange(RANKS * elements, dtype=np.float32).reshape(RANKS, elements) % 17
        for _ in range(2):
            check(lambda v: jaxring.all_reduce(v, "d"), rows, np.broadcast_to(rows.sum(0), rows.shape))
        print(elements * 4, "bytes are right", flush=True)
    print(jaxring.explain(), flush=True)


def grows(calls=8, runs=6):
    """A program whose memory is elsewhere in each run, since the results of all are kept: XLA updates its graph."""
    elements = 4 << 20 if REAL else 1 << 17  # more than goes by the one-shot all-reduce
    run = jax.jit(jax.shard_map(lambda v: _chain(v, calls), mesh=mesh, in_specs=P("d"), out_specs=P("d")))
    rows = np.arange(RANKS, dtype=np.float32)[:, None] * np.ones((1, elements), np.float32)
    x = jax.make_array_from_callback(rows.shape, jax.sharding.NamedSharding(mesh, P("d")), lambda at: rows[at])
    kept = [run(x) for _ in range(runs)]
    for result in kept:
        for shard in result.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), (RANKS - 1) / 2 + calls)
    counted = engine.native.counters()
    print("grows:", {name: counted[name] for name in ("staged_launches", "shared_by_descriptor")})
    # Of each kind there are some, or no graph had to be updated from one to the other.
    assert counted["staged_launches"] > 0, counted
    assert not REAL or counted["staged_launches"] < calls * runs, counted


def _chain(v, calls):
    for _ in range(calls):
        v = jaxring.all_reduce(v, "d", "mean") + 1
    return v


def joined():
    """Two sums that XLA's partitioner inserts, in one call: each is an operation of its own."""
    rows = np.arange(RANKS * 96, dtype=np.float32).reshape(RANKS, 96) % 17
    sharding = jax.sharding.NamedSharding(mesh, P("d"))
    x = jax.make_array_from_callback(rows.shape, sharding, lambda at: rows[at])
    with jaxring.installed(whole_program=True):
        compiled = jax.jit(lambda x: (x.sum(0), (x * 3)[:, :7].sum(0))).lower(x).compile()
    assert compiled.as_text().count('custom_call_target="jaxring_all_reduce"') == 1
    for result, expected in zip(compiled(x), (rows.sum(0), (rows * 3)[:, :7].sum(0)), strict=True):
        np.testing.assert_array_equal(result.addressable_data(0), expected)
    assert [plan.nbytes for plan in jaxring.plans()] == [96 * 4, 7 * 4], jaxring.explain()


def sharded(steps=5):
    """Steps of an unchanged program, by data and by tensor parallelism, whose collectives the compiler inserts."""
    random = np.random.default_rng(0)
    weights = [random.normal(size=shape).astype(np.float32) for shape in ((16, 8 * RANKS), (8 * RANKS, 4))]
    x, y = (random.normal(size=(8 * RANKS, width)).astype(np.float32) for width in (16, 4))

    def loss(weights, x, y):
        return ((jnp.tanh(x @ weights[0]) @ weights[1] - y) ** 2).mean()

    def step(weights, x, y):
        return [w - 0.1 * g for w, g in zip(weights, jax.grad(loss)(weights, x, y), strict=True)]

    def place(value, spec):
        sharding = jax.sharding.NamedSharding(mesh, spec)
        return jax.make_array_from_callback(value.shape, sharding, lambda at: value[at])

    expected = [w.astype(np.float64) for w in weights]
    for _ in range(steps):
        hidden = np.tanh(x @ expected[0])
        error = 2 * (hidden @ expected[1] - y) / y.size
        slopes = x.T @ (error @ expected[1].T * (1 - hidden**2)), hidden.T @ error
        expected = [w - 0.1 * g for w, g in zip(expected, slopes, strict=True)]
    for data, first, second in ((P("d"), P(), P()), (P(), P(None, "d"), P("d", None))):
        given = [place(weights[0], first), place(weights[1], second)]
        with jax.default_matmul_precision("highest"), jaxring.installed(whole_program=True):
            compiled = jax.jit(step).lower(given, place(x, data), place(y, data)).compile()
        text = compiled.as_text()
        assert 'custom_call_target="jaxring_' in text, text
        assert " all-reduce(" not in text, text
        for _ in range(steps):
            given = compiled(given, place(x, data), place(y, data))
        for got, wanted in zip(given, expected, strict=True):
            for shard in got.addressable_shards:
                np.testing.assert_allclose(np.asarray(shard.data), wanted[shard.index], rtol=1e-3, atol=1e-5)


def abstract():
    """One program over a mesh without devices, on two orders of them: XLA must not capture it before ranks are read."""
    rows = np.arange(RANKS * 6, dtype=np.float32).reshape(RANKS, 6)
    specs = {"in_specs": P("d"), "out_specs": P("d"), "check_vma": False}

    def gather(v):
        return jaxring.all_gather(v[0], "d").reshape(1, -1)

    run = jax.jit(jax.shard_map(gather, mesh=mesh.abstract_mesh, **specs))
    for order in (jax.devices(), jax.devices()[::-1]):
        sharding = jax.sharding.NamedSharding(jax.sharding.Mesh(np.array(order), ("d",)), P("d"))
        given = jax.make_array_from_callback(rows.shape, sharding, lambda at: rows[at])
        assert "@jaxring_uncaptured_all_gather(" in run.lower(given).as_text()
        for shard in run(given).addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), rows.reshape(1, -1))
        for named in (sharding.mesh, None):  # jax.set_mesh says which devices there are, too
            with jax.set_mesh(sharding.mesh):
                text = jax.jit(jax.shard_map(gather, mesh=named, **specs)).lower(given).as_text()
            assert "@jaxring_all_gather(" in text


def copied():
    """What copy engines do, and that they did it."""
    options = {"algorithm": "copy_engine"}
    rows = np.arange(RANKS * 96, dtype=np.float32).reshape(RANKS, 96) % 17
    every = np.broadcast_to(rows.reshape(1, -1), (RANKS, rows.size))
    check(lambda v: jaxring.all_gather(v[0], "d", **options).reshape(1, -1), rows, every)
    blocks = rows.reshape(RANKS, RANKS, -1)
    check(lambda v: jaxring.all_to_all(v[0], "d", 0, 0, **options)[None], blocks, blocks.swapaxes(0, 1))
    check(lambda v: jaxring.broadcast(v, "d", root=1, **options), rows, np.broadcast_to(rows[1], rows.shape))
    # Nobody sends to rank 1.
    pairs = [(i, (i + 1) % RANKS) for i in range(1, RANKS)]
    shifted = np.roll(rows, 1, axis=0)
    shifted[1] = 0
    check(lambda v: jaxring.permute(v, "d", pairs, **options), rows, shifted)
    assert {plan.algorithm for plan in jaxring.plans()} == {"copy_engine"}, jaxring.explain()


def switched():
    """What goes through the NVLink switch, and that it did."""
    from tests.runtime.cuda import cudahost_floats

    options = {"algorithm": "nvls"}
    if not REAL and processes > 1:
        # What one process cannot do is told to the others, by groups of their own.
        engine.native.fake_options(devices=RANKS, no_bind=process == 1)
        groups = [list(range(start, RANKS, devices)) for start in range(devices)]
        rows = np.ones((RANKS, 4), np.float32)
        told = error_of(lambda: over(lambda v: jaxring.all_reduce(v, "d", axis_index_groups=groups, **options), rows))
        for part in ("rank 1 (process 1 on", "cannot bind memory to the multicast object", "JAXRING_ALGO=^nvls"):
            assert part in told, told
        engine.native.fake_options(devices=RANKS)
    before = len(jaxring.plans())
    rows = np.arange(RANKS * 96, dtype=np.float32).reshape(RANKS, 96) % 17
    every = np.broadcast_to(rows.reshape(1, -1), (RANKS, rows.size))
    check(lambda v: jaxring.all_reduce(v, "d", **options), rows, np.broadcast_to(rows.sum(0), rows.shape))
    check(lambda v: jaxring.all_gather(v[0], "d", **options).reshape(1, -1), rows, every)
    blocks = rows.reshape(RANKS, RANKS, -1).astype(jnp.bfloat16)
    total = blocks.astype(np.float32).sum(0).astype(blocks.dtype)
    check(lambda v: jaxring.reduce_scatter(v[0], "d", **options)[None], blocks, total)
    cudahost_floats.floats(over, RANKS, **options)
    assert {(plan.algorithm, plan.transports) for plan in jaxring.plans()[before:]} == {("nvls", ("nvls",))}
    assert any("2 times as wide" in plan.reason for plan in jaxring.plans()[before:]), jaxring.explain()
    check(lambda v: jaxring.all_reduce(v, "d"), rows, np.broadcast_to(rows.sum(0), rows.shape))
    why_not = "not chosen unasked, since it is experimental: it has not run on a GPU yet (JAXRING_ALGO=+nvls)"
    assert why_not in jaxring.plans()[-1].reason, jaxring.explain()
    told = error_of(lambda: over(lambda v: jaxring.all_reduce(v, "d", "prod", **options), rows))
    assert "switches have no prod of float32" in told, told
    loop(chains=SWITCHED_CHAINS)


def not_switched():
    """Ranks that share GPUs have no multicast memory."""
    rows = np.ones((RANKS, 4), np.float32)
    told = error_of(lambda: over(lambda v: jaxring.all_reduce(v, "d", algorithm="nvls"), rows))
    assert "'nvls' cannot do this all_reduce: each rank needs a GPU of its own" in told, told


# Floats and options of means that follow one another: by the one-shot all-reduce, between barriers, and by messages. A
# result that was left over from the step before is too small by one.
CHAINS = ((8, {}), (20_000, {}), (3000, {"algorithm": "ring", "protocol": "ll128"}))
# The same through the NVLink switch.
SWITCHED_CHAINS = ((3000, {"algorithm": "nvls"}),)


def loop(steps=20, chains=CHAINS):
    """A site that runs again and again, as in training."""
    for elements, options in chains:
        rows = np.arange(RANKS * elements, dtype=np.float32).reshape(RANKS, elements) % 1000

        def body(v, options=options):
            return jax.lax.fori_loop(0, steps, lambda i, x: jaxring.all_reduce(x, "d", "mean", **options) + 1, v)

        for part in over(body, rows).values():
            np.testing.assert_allclose(part[0], rows.mean(0) + steps, rtol=1e-5)


def replays():
    """Programs many times: XLA makes CUDA graphs of them, and each run begins where the last one ended."""
    sharding = jax.sharding.NamedSharding(mesh, P("d"))
    specs = {"mesh": mesh, "in_specs": P("d"), "out_specs": P("d"), "check_vma": False}
    steps = 1000 if REAL else 10
    for elements, options in CHAINS:
        rows = np.arange(RANKS * elements, dtype=np.float32).reshape(RANKS, elements) % 1000
        given = jax.make_array_from_callback(rows.shape, sharding, lambda index, rows=rows: rows[index])

        def mean(v, options=options):
            return jaxring.all_reduce(v, "d", "mean", **options) + 1

        step = jax.jit(jax.shard_map(mean, **specs))
        for _ in range(steps):
            given = step(given)
        for shard in given.addressable_shards:
            np.testing.assert_allclose(np.asarray(shard.data)[0], rows.mean(0) + steps, rtol=1e-5)


def independent():
    """Collectives of one program that do not need each other, many times: none must overtake another."""
    steps = 200 if REAL else 5
    sharding = jax.sharding.NamedSharding(mesh, P("d"))
    rows = [np.arange(RANKS * size, dtype=np.float32).reshape(RANKS, size) % 1000 for size in (8, 20_000, 96, 9000)]
    given = [jax.make_array_from_callback(each.shape, sharding, lambda at, each=each: each[at]) for each in rows]

    def means(*values):
        return [jaxring.all_reduce(each, "d", "mean") + 1 for each in values]

    step = jax.jit(jax.shard_map(means, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))
    for _ in range(steps):
        given = step(*given)
    for each, value in zip(rows, given, strict=True):
        for shard in value.addressable_shards:
            np.testing.assert_allclose(np.asarray(shard.data)[0], each.mean(0) + steps, rtol=1e-5)


def traced_again():
    """A program that is traced again has the plans that there are, and leaves nothing in the job's store."""
    rows = np.arange(RANKS * 96, dtype=np.float32).reshape(RANKS, 96) % 17
    plans = []
    for _ in range(3):
        check(lambda v: jaxring.all_reduce(v, "d"), rows, np.broadcast_to(rows.sum(0), rows.shape))
        plans.append(engine.native.counters()["plans"])
    assert plans == plans[:1] * 3, plans
    if processes > 1:
        _compat.distributed_state().client.wait_at_barrier("traced_again", 60_000)
        assert not [key for key in JaxStore().list("jaxring/cuda/") if "/met/" in key]


def ordered():
    """Rings visit hosts in a file's order: 0, 2, 1. Each process is a host of its own, with a name of its own."""
    socket.gethostname = lambda: f"host{process}"
    os.environ["JAXRING_HOSTID"] = str(process)
    engine.start()
    build, asked = schedules.schedule, []
    schedules.schedule = lambda half, spec, results: asked.append(spec) or build(half, spec, results)
    rows = np.arange(RANKS * 96, dtype=np.float32).reshape(RANKS, 96) % 17
    total = np.broadcast_to(rows.sum(0), rows.shape)
    check(lambda v: jaxring.all_reduce(v, "d", algorithm="ring"), rows, total)
    check(lambda v: jaxring.all_reduce(v, "d", algorithm="direct"), rows, total)
    assert [spec.order for spec in asked] == [(0, 2, 1), ()]
    told = [plan.order for plan in jaxring.plans()]
    assert told == [f"hosts in the order of {settings().topo_file}: host0, host2, host1", ""], told


def explained(word):
    assert any(word in d.transports for d in jaxring.plans()), jaxring.explain()


def memory():
    """By which path memory was really shared: what is counted is what the decisions say."""
    counted, plans = engine.native.counters(), jaxring.plans()
    reasons = {plan.reason.partition("; buffers ")[2] for plan in plans}
    print("memory:", {name: counted[name] for name in ("staged_launches", "shared_by_descriptor", "unshared")}, reasons)
    if "staged" in settings().p2p:
        # Those of the one-shot all-reduce, which accesses no other rank's buffers, say nothing of them.
        assert reasons - {""} == {"staged: JAXRING_P2P=staged asks for it"}, reasons
    elif processes == 1:  # XLA's allocator may have named the other devices itself
        assert reasons <= {"", "granted to the process's other devices, which XLA's allocator had not named"}, reasons
    elif REAL:
        assert all(reason.startswith("shared by file descriptor") for reason in reasons - {""}), reasons
    else:  # buffers of JAX's CPU backend, which the fake GPU does not know
        unshared = "is not shared, since the driver exports no such memory"
        assert all(unshared in reason for reason in reasons - {""}), reasons
    staged = any("staged" in plan.transports for plan in plans)
    copied = processes > 1 and (not REAL or "staged" in settings().p2p)
    assert staged == copied == (counted["staged_launches"] > 0), counted
    assert counted["failed_mappings"] == 0, counted


def over_rdma():
    """Collectives between hosts, and how many messages NICs moved."""
    engine.start()
    rows = np.arange(RANKS * 30_000, dtype=np.float32).reshape(RANKS, -1) % 23
    for size in (50, 30_000):
        some, options = rows[:, :size], {"protocol": "simple"}
        total = np.broadcast_to(some.sum(0), some.shape)
        check(lambda v, how=options: jaxring.all_reduce(v, "d", **how), some, total)
        check(lambda v: jaxring.all_reduce(v, "d", protocol="ll"), some, total)
        every = np.broadcast_to(some.reshape(1, -1), (RANKS, some.size))
        check(lambda v, how=options: jaxring.all_gather(v[0], "d", **how).reshape(1, -1), some, every)
        blocks = some.reshape(RANKS, RANKS, -1)
        check(lambda v, how=options: jaxring.all_to_all(v[0], "d", 0, 0, **how)[None], blocks, blocks.swapaxes(0, 1))
    counted = engine.native.counters()
    carried, direct, from_gpu = (counted[f"{how}_messages"] for how in ("carried", "direct", "gpu_direct"))
    print("moved", carried, direct, from_gpu)
    if REAL:  # LL's messages are carried by the CPU, and the NIC reads all others in the GPU's memory
        assert 0 < from_gpu == direct < carried, "the log says where the slots are, with JAXRING_DEBUG=INFO"
