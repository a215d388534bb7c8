"""One process of a job: `python cudahost_worker.py CASE PROCESS PROCESSES DEVICES PORT`.

On the fake GPU where TEST_CUDA_FAKE names its module, on real ones otherwise.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading

case, process, processes, devices, port = sys.argv[1], *(int(a) for a in sys.argv[2:6])
REAL = "TEST_CUDA_FAKE" not in os.environ
if REAL:
    import cudahost_real as engine
else:
    import cudahost_fake as engine
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from jaxring import _compat  # noqa: E402

jaxring = engine.jaxring
engine.configure(process, processes, devices, port, case == "gone")
RANKS = processes * devices
mesh = Mesh(np.array(jax.devices()), ("d",))


def over(function, x):
    """`function` on each rank's row of ``x``; the rows of this process's ranks."""
    run = jax.jit(jax.shard_map(function, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))
    sharding = jax.sharding.NamedSharding(mesh, P("d"))
    given = jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])
    return {s.index[0].start: np.asarray(s.data) for s in run(given).addressable_shards}


def check(function, x, expected):
    got = over(function, x)
    assert len(got) == devices
    for start, rows in got.items():
        np.testing.assert_array_equal(rows, expected[start : start + len(rows)])


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
    import cudahost_floats

    options = {"algorithm": "nvls"}
    if not REAL and processes > 1:
        # What one process cannot do is told to the others, by groups of their own.
        engine.native.fake_options(devices=RANKS, no_bind=process == 1)
        groups = [list(range(start, RANKS, devices)) for start in range(devices)]
        rows = np.ones((RANKS, 4), np.float32)
        told = error_of(lambda: over(lambda v: jaxring.all_reduce(v, "d", axis_index_groups=groups, **options), rows))
        for part in ("rank 1 (process 1 on", "cannot bind memory to the multicast object", "JAXRING_NVLS_ENABLE=0"):
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
    assert "since no hardware has run it (JAXRING_NVLS_ENABLE=1)" in jaxring.plans()[-1].reason, jaxring.explain()
    told = error_of(lambda: over(lambda v: jaxring.all_reduce(v, "d", "prod", **options), rows))
    assert "switches have no prod of float32" in told, told


def not_switched():
    """Ranks that share GPUs have no multicast memory."""
    rows = np.ones((RANKS, 4), np.float32)
    told = error_of(lambda: over(lambda v: jaxring.all_reduce(v, "d", algorithm="nvls"), rows))
    assert "'nvls' cannot do this all_reduce: each rank needs a GPU of its own" in told, told


def start_apart():
    """Starts the engine with a GPU for each rank."""
    engine.start(**({} if REAL else {"apart": True}))


def loop(steps=20):
    """A site that runs again and again, as in training."""
    rows = np.arange(RANKS * 8, dtype=np.float32).reshape(RANKS, 8)

    def body(v):
        return jax.lax.fori_loop(0, steps, lambda i, x: jaxring.all_reduce(x, "d", "mean") + 1, v)

    got = over(body, rows)
    for part in got.values():
        np.testing.assert_allclose(part[0], rows.mean(0) + steps, rtol=1e-6)


def replays():
    """One program many times: XLA makes CUDA graphs of it, and each run begins where the last one ended."""
    rows = np.arange(RANKS * 8, dtype=np.float32).reshape(RANKS, 8)
    sharding = jax.sharding.NamedSharding(mesh, P("d"))
    given = jax.make_array_from_callback(rows.shape, sharding, lambda index: rows[index])
    mean = jax.shard_map(
        lambda v: jaxring.all_reduce(v, "d", "mean") + 1, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False
    )
    step = jax.jit(mean)
    steps = 1000 if REAL else 10
    for _ in range(steps):
        given = step(given)
    for shard in given.addressable_shards:
        np.testing.assert_allclose(np.asarray(shard.data)[0], rows.mean(0) + steps, rtol=1e-5)


def explained(word):
    assert any(word in d.transports for d in jaxring.plans()), jaxring.explain()


def matrix():
    """Ranks of one process that share two GPUs, without XLA, and two nodes that the carrier joins."""
    import cudahost_matrix

    from jaxring.bench.gpu_trial import Ranks

    if REAL:
        engine.start_alone()
        cudahost_matrix.matrix(engine.native, (2, 4, 8), (1, 1000, 65537), cudahost_matrix.ALL_DTYPES, engine.THREADS)
    else:
        engine.start()
        cudahost_matrix.matrix(engine.native, (3,), (1, 700), (np.float32, jnp.bfloat16), engine.THREADS)
    if why_not := cudahost_matrix.through_the_switch(engine.native, (1, 7000), engine.THREADS):
        assert REAL, why_not
        print("nvls is left out:", why_not)
    apart = Ranks(engine.native, 4, placement=(0, 0, 1, 1), threads=engine.THREADS)
    cudahost_matrix.check(apart, "all_reduce", "hier_ring", "ll", np.float32, 3000)
    cudahost_matrix.check(apart, "all_to_all", "direct", "simple", np.int32, 3000)


CASES = {}
CASES["matrix"] = matrix
CASES["collectives"] = lambda: (engine.start(), collectives(), loop(), not_switched())
CASES["ring"] = lambda: (engine.start(), collectives(algorithm="ring", protocol="ll"))
CASES["network"] = lambda: (engine.start(), collectives(), explained("network"))
CASES["shared"] = lambda: (engine.start(), collectives(), explained("ipc"), loop())
CASES["copied"] = lambda: (engine.start(), copied())
CASES["switched"] = lambda: (start_apart(), switched())
CASES["copied_switched"] = lambda: (start_apart(), copied(), switched())
CASES["replays"] = lambda: (engine.start(), replays())


class Reported(logging.Handler):
    """Notes that a fault was logged: faults are reported by a thread of their own. Logging itself goes on as before."""

    def __init__(self):
        super().__init__(logging.ERROR)
        self.seen = threading.Event()
        logging.getLogger("jaxring.runtime").addHandler(self)

    def emit(self, record):
        print(record.getMessage(), flush=True)
        self.seen.set()


def error_of(run):
    """The text of the error that ``run`` ends with."""
    try:
        jax.block_until_ready(run())
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        return str(error)
    raise AssertionError("no error")


def fails(text, **options):
    engine.start(**options)
    rows = np.ones((RANKS, 4), np.float32)
    told = error_of(lambda: over(lambda v: jaxring.all_reduce(v, "d"), rows))
    assert text in told, told


CASES["lost_writes"] = lambda: fails("ACS", lose_writes=True)
CASES["no_export"] = lambda: fails("cannot be shared with other processes", no_export=True)
CASES["no_import"] = lambda: fails("cannot map device memory", no_import=True)


def gone():
    """The last process ends before a call that the others reach: those get errors."""
    engine.start()
    reported = Reported()
    rows = np.ones((RANKS, 4), np.float32)
    spec = P("d")
    call = jax.shard_map(
        lambda v: jaxring.all_reduce(v, "d", timeout=60), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
    )
    step = jax.jit(call)
    given = jax.make_array_from_callback(rows.shape, jax.sharding.NamedSharding(mesh, spec), lambda index: rows[index])
    jax.block_until_ready(step(given))
    if process == processes - 1:
        os._exit(3)
    print(error_of(lambda: step(given)))
    again = error_of(lambda: step(given))
    assert REAL or "failed" in again or "gone" in again, again
    assert reported.seen.wait(60), "nothing was reported"


CASES["gone"] = gone


def damaged():
    """JAXRING_FAULTS spoils what goes over the network, and checksums tell."""
    engine.start()
    reported = Reported()
    print(
        error_of(lambda: over(lambda v: jaxring.all_reduce(v, "d", timeout=20), np.ones((RANKS, 50_000), np.float32)))
    )
    assert reported.seen.wait(60), "nothing was reported"


def messages():
    import cudahost_messages

    engine.start()
    cudahost_messages.messages(2000)
    if RANKS % 2 == 0 and RANKS > 2:
        cudahost_messages.in_groups()


def ahead():
    """As many messages as a queue holds, and then one more."""
    import cudahost_messages

    engine.start()
    jax.block_until_ready(cudahost_messages.ahead(16, timeout=60)())
    refused("ahead", 17, 0.5)


def refused(which, *args):
    """What a program is refused for is logged; it fails itself, or loses its device."""
    import cudahost_messages

    engine.start()
    reported = Reported()
    print(error_of(getattr(cudahost_messages, which)(*args)))
    assert reported.seen.wait(60), "nothing was reported"


def beside():
    import cudahost_beside

    engine.start()
    cudahost_beside.values(lambda: engine.native.counters().get("started", 0))
    if processes == 1:
        cudahost_beside.overlap(lambda: engine.native.counters()["in_flight"])


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
    print("moved", *(counted[name] for name in ("carried_messages", "direct_messages", "gpu_direct_messages")))


CASES["over_rdma"] = over_rdma
CASES["damaged"] = damaged
CASES["beside"] = beside
CASES["messages"] = messages
CASES["disagree"] = lambda: refused("disagree")
CASES["ahead"] = ahead
for what in ("disagree", "negative", "input", "output"):
    CASES[f"sizes_{what}"] = functools.partial(refused, "bad_sizes", what)
REFUSED = [name for name in CASES if name in ("disagree", "ahead") or name.startswith("sizes_")]

CASES[case]()
if processes > 1 and case != "gone":
    # Who fails first must not take the others' connections away.
    _compat.distributed_state().client.wait_at_barrier("cudahost_end", 60_000)
print("OK", case, process, flush=True)
if case == "gone" or (REAL and case in REFUSED):
    os._exit(0)  # JAX would wait for the other, or for the device
