"""Cases that want a process of their own: `python worker_programs.py CASE ARGUMENT ...`."""

from __future__ import annotations

import gc
import json
import multiprocessing
import pathlib
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import jaxring
from tests.stress.stress_ranks import AXIS, check, over, put, rows, same, start


def say(line: object) -> None:
    print(line, flush=True)


# Programs and what they give.


def program(mesh):
    """A program whose result depends on several collectives, and its reference."""
    n = mesh.size

    def local(x):
        total = jaxring.all_reduce(x, AXIS)
        turned = jaxring.all_to_all(total + x, AXIS, 0, 0, tiled=True)
        return jaxring.permute(turned, AXIS, [(i, (i + 1) % n) for i in range(n)]) - jaxring.broadcast(x, AXIS, n - 1)

    def reference(a):
        turned = (a + a.sum(0, dtype=a.dtype)).reshape(n, n, -1).swapaxes(0, 1).reshape(n, -1)
        return np.roll(turned, 1, axis=0) - a[n - 1]

    return over(mesh, local), reference


def cached(folder: str) -> None:
    """Runs with a persistent compilation cache and says how often it was hit and missed for its program."""
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    mesh = start()
    counts: dict[str, int] = {}
    jax.monitoring.register_event_listener(lambda event, **_: counts.update({event: counts.get(event, 0) + 1}))
    run, reference = program(mesh)
    a = rows(mesh.size, 24 * mesh.size, "int32", 1)
    x = put(mesh, a)
    counts.clear()
    for result in [run(x) for _ in range(3)]:
        check(result, reference(a))
    say(json.dumps([counts.get("/jax/compilation_cache/" + name, 0) for name in ("cache_hits", "cache_misses")]))


def save(path: str) -> None:
    """Exports the program."""
    mesh = start()
    run, _ = program(mesh)
    x = jax.ShapeDtypeStruct((mesh.size, 24 * mesh.size), "int32", sharding=put(mesh, rows(mesh.size, 1)).sharding)
    pathlib.Path(path).write_bytes(export.export(run, disabled_checks=checks())(x).serialize())


def checks():
    names = ("all_reduce", "all_to_all", "permute", "broadcast")
    return [export.DisabledSafetyCheck.custom_call(f"jaxring_{name}") for name in names]


def load(path: str) -> None:
    """Calls the exported program, alone and inside another one, in a process that has not traced it."""
    mesh = start()
    n = mesh.size
    exported = export.deserialize(bytearray(pathlib.Path(path).read_bytes()))
    _, reference = program(mesh)
    for seed in range(3):
        a = rows(n, 24 * n, "int32", seed)
        x = put(mesh, a)
        check(jax.jit(exported.call)(x), reference(a))
        check(jax.jit(lambda x: 2 * exported.call(x + 1))(x), 2 * reference(a + 1))
        check(jax.jit(lambda x: exported.call(exported.call(x)))(x), reference(reference(a)))


def refused() -> None:
    """Without the safety check's exemption, JAX says which target it does not know."""
    mesh = start()
    run, _ = program(mesh)
    with pytest.raises(ValueError, match="jaxring_all_reduce"):
        export.export(run)(put(mesh, rows(mesh.size, 24 * mesh.size, "int32")))


def ahead() -> None:
    """Lowered and compiled ahead of time; shapes alone."""
    mesh = start()
    n = mesh.size
    run, reference = program(mesh)
    a = rows(n, 24 * n, "int32")
    x = put(mesh, a)
    shape = jax.eval_shape(run, x)
    assert (shape.shape, shape.dtype) == ((n, 24 * n), np.int32)
    lowered = run.lower(jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding))
    assert "jaxring_all_reduce" in lowered.as_text()
    compiled = lowered.compile()
    assert "jaxring_all_reduce" in compiled.as_text()
    for result in [compiled(x) for _ in range(3)]:
        check(result, reference(a))
    # The same lowering compiled again is another executable with call sites of its own.
    again = lowered.compile()
    for first, second in [(compiled(x), again(x)) for _ in range(3)]:
        check(first, reference(a))
        check(second, reference(a))
    gathered = jax.eval_shape(
        jax.shard_map(lambda x: jaxring.all_gather(x, AXIS), mesh=mesh, in_specs=jax.P(AXIS), out_specs=jax.P(AXIS)), x
    )
    assert gathered.shape == (n * n, 1, 24 * n)


# Ends.


def dispatched(mesh=None):
    mesh = start() if mesh is None else mesh

    def local(x):
        return jax.lax.fori_loop(0, 30, lambda _, y: jnp.maximum(x, jaxring.all_reduce(y, AXIS, "max")), x)

    run = over(mesh, local)
    return [run(put(mesh, rows(mesh.size, 1 << 18))) for _ in range(3)]


def ends_after_dispatch() -> None:
    """The script ends while its programs run."""
    dispatched()


def ends_by_raising() -> None:
    kept = dispatched()
    raise ValueError(f"the reason, with {len(kept)} results to come")


def ends_by_sys_exit() -> None:
    kept = dispatched()
    sys.exit(3 + 0 * len(kept))


def ends_while_threads_work() -> None:
    """sys.exit in a thread ends that thread; another goes on dispatching when the main thread is through."""
    mesh = start()
    run = over(mesh, lambda x: jaxring.all_reduce(x, AXIS))
    a = rows(mesh.size, 1000)
    x = put(mesh, a)

    def leave():
        jax.block_until_ready(run(x))
        sys.exit(9)

    def work():
        for _ in range(300):
            check(run(x), same(a.sum(0), mesh.size))
        say("worked")

    threads = [threading.Thread(target=target) for target in (leave, work)]
    for thread in threads:
        thread.start()
    threads[0].join()


def ends_while_waiting_for_a_peer(flag: str) -> None:
    """Process 1 ends while its all_reduce waits for process 0, which never joins in and ends when the test says so."""
    jax.config.update("jax_enable_recoverability", True)
    mesh = start()
    run = over(mesh, lambda x: jaxring.all_reduce(x, AXIS))
    x = put(mesh, rows(mesh.size, 1000))
    jax.block_until_ready(run(x))
    if jax.process_index() == 1:
        kept = run(x)
        time.sleep(0.3)
        say("leaves")
        del kept
    else:
        while not pathlib.Path(flag).exists():
            time.sleep(0.02)


def imports_and_ends() -> None:
    assert jaxring.counters() is not None


# Memory.


def resident() -> int:
    """Bytes of this process that are in memory now."""
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096


def launches_keep_memory() -> None:
    """200 launches of a 4 MiB all_reduce: memory before and after."""
    mesh = start()
    run = over(mesh, lambda x: jaxring.all_reduce(x, AXIS))
    donating = over(mesh, lambda x: jaxring.all_reduce(x, AXIS, "max"), donate_argnums=0)
    x = put(mesh, rows(mesh.size, 1 << 20))

    def launch(count):
        y = put(mesh, rows(mesh.size, 1 << 20))
        for i in range(count):
            result = run(x)
            y = donating(y)
            if i % 4 == 0:
                jax.block_until_ready((result, y))
        check(result, same(rows(mesh.size, 1 << 20).sum(0), mesh.size))

    launch(60)
    before = resident()
    launch(200)
    gc.collect()
    say((resident() - before) >> 20)


def programs_are_released() -> None:
    """100 programs are made, run and dropped; the native call sites go with them."""
    mesh = start()
    x = put(mesh, rows(mesh.size, 100, "int32"))

    def make(count):
        for i in range(count):
            run = over(mesh, lambda x, k=i: jaxring.all_reduce(jaxring.permute(x, AXIS, [(0, 1)]) + k, AXIS))
            jax.block_until_ready(run(x))
            del run
            if i % 20 == 19:
                jax.clear_caches()
        jax.clear_caches()
        gc.collect()

    def settled(most):
        # The planning thread drops its last request when it looks for the next one.
        deadline = time.monotonic() + 60
        while (found := jaxring.counters()["sites"]) > most and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    sites = jaxring.counters()["sites"]
    make(20)
    settled(sites + 4)
    before = resident()
    make(100)
    say(json.dumps({"sites": [sites, settled(sites + 4)], "grown": (resident() - before) >> 20}))


# multiprocessing


def child() -> None:
    """What a spawned child does: it uses jaxring by itself."""
    mesh = start()
    a = rows(mesh.size, 5)
    check(over(mesh, lambda x: jaxring.all_reduce(x, AXIS))(put(mesh, a)), same(a.sum(0), mesh.size))


def spawns() -> None:
    jax.block_until_ready(dispatched())
    process = multiprocessing.get_context("spawn").Process(target=child)
    process.start()
    process.join(60)
    assert process.exitcode == 0, process.exitcode
    jax.block_until_ready(dispatched())


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
