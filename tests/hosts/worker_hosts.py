"""What each process of a job over several hosts runs: `python worker_hosts.py CASE ...`."""

from __future__ import annotations

import json
import os
import pathlib
import socket
import sys
import time

if cpus := os.environ.get("CPU_OF"):  # before any thread of ours begins
    os.sched_setaffinity(0, {json.loads(cpus)[int(os.environ["JAX_PROCESS_ID"])]})

import jax
import numpy as np

import jaxring
import jaxring._native as _native
from jaxring.errors import JoinError
from jaxring.runtime import service
from jaxring.world import job_world
from jaxring.world.connections import allowance, handshake
from tests.stress.stress_ranks import AXIS, KINDS, check, collective, only, over, put, rows, same, start


def say(line: str) -> None:
    print(line, flush=True)


def say_transports() -> None:
    """One line for the test: the transports of every plan so far that joined processes."""
    found = sorted({t for plan in jaxring.plans() if plan.processes > 1 for t in plan.transports})
    say("transports " + json.dumps(found))


def core() -> None:
    """The test matrix's core: every collective, all_reduce by every algorithm and operation, dtypes, sizes to 4 MiB."""
    mesh = start()
    n = mesh.size
    for length in (n, 1000 * n):
        for number, kind in enumerate(KINDS):
            function, reference = collective(kind, n, number)
            a = rows(n, length, "int32", number)
            check(over(mesh, function)(put(mesh, a)), reference(a), (kind, length))
    algorithms = ["ring", "tree", "direct", "hier_ring", "hier_tree", "deterministic", None]
    if n & (n - 1) == 0:
        algorithms.append("halving_doubling")
    for algorithm in algorithms:
        for length in (1, 1003, 1 << 18):
            a = rows(n, length, "float32", length)
            run = over(mesh, lambda x, how=algorithm: jaxring.all_reduce(x, AXIS, algorithm=how))
            for result in [run(put(mesh, a)) for _ in range(2)]:
                check(result, same(a.sum(0, dtype="float32"), n), (algorithm, length))
    for protocol in ("ll", "simple"):
        a = rows(n, 900, "float32", 5)
        run = over(mesh, lambda x, how=protocol: jaxring.all_reduce(x, AXIS, protocol=how))
        check(run(put(mesh, a)), same(a.sum(0, dtype="float32"), n), protocol)
    for dtype in ("bool", "int8", "uint16", "bfloat16", "float16", "float32", "complex64"):
        a = rows(n, 777, dtype, 3)
        op, fold = ("or", a.any(0)) if dtype == "bool" else ("sum", a.astype("complex64").sum(0))
        if dtype != "bool":
            fold = (fold if dtype == "complex64" else fold.real).astype(dtype)
        run = over(mesh, lambda x, op=op: (jaxring.all_reduce(x, AXIS, op), jaxring.all_gather(x, AXIS)))
        total, gathered = run(put(mesh, a))
        check(total, same(fold, n), dtype)
        check(gathered, same(a, n), dtype)
    large = np.arange(n * (1 << 20), dtype="float32").reshape(n, -1) % 1024
    function = over(mesh, lambda x: (jaxring.all_reduce(x, AXIS), jaxring.all_to_all(x, AXIS, 0, 0, tiled=True)))
    total, turned = function(put(mesh, large))
    check(total, same(large.sum(0), n), "4 MiB")
    check(turned, large.reshape(n, n, -1).swapaxes(0, 1).reshape(n, -1), "4 MiB")


def gathered() -> None:
    """All-to-alls whose messages are gathered on their way, of blocks in one tile and in several, against direct."""
    mesh = start()
    n = mesh.size
    for length in (1, 1000, 140003):
        a = rows(n, n * length, "float32", length)
        for algorithm in ("pxn", "multileader", "direct", None):
            run = over(mesh, lambda x, how=algorithm: jaxring.all_to_all(x, AXIS, 0, 0, tiled=True, algorithm=how))
            check(run(put(mesh, a)), a.reshape(n, n, -1).swapaxes(0, 1).reshape(n, -1), (length, algorithm))
    ran = {plan.algorithm for plan in jaxring.plans() if plan.collective == "all_to_all"}
    assert ran == {"pxn", "multileader", "direct"}, ran


def crowd() -> None:
    """Says how threads of this process wait once it knows the others."""
    mesh = start()
    meet(mesh)
    time.sleep(0.2)  # the engine looks every 50 ms
    say("waits " + _native.wait_policy())
    meet(mesh)


def messages() -> None:
    """send and recv round the ranks: a token chain orders them; what is sent first is received first."""
    mesh = start()
    n = mesh.size
    a = rows(n, 3000, "float32", 9)
    pairs = [(i, (i + 1) % n) for i in range(n)]
    for first, second in [two_messages(mesh, pairs)(put(mesh, a)) for _ in range(3)]:
        check(first, np.roll(a, 1, axis=0))
        check(second, np.roll(2 * a, 1, axis=0))


def messages_of_one() -> None:
    """The same from one rank to one other; the rest take no part and get zeros."""
    mesh = start()
    n = mesh.size
    a = rows(n, 3000, "float32", 9)
    for first, second in [two_messages(mesh, [(0, n - 1)])(put(mesh, a)) for _ in range(3)]:
        check(first, only(n - 1, a[0], n))
        check(second, only(n - 1, 2 * a[0], n))


def two_messages(mesh, pairs):
    def program(x):
        token = jaxring.send(x, AXIS, pairs)
        token = jaxring.send(2 * x, AXIS, pairs, token)
        first, token = jaxring.recv(x, AXIS, pairs, token)
        second, token = jaxring.recv(x, AXIS, pairs, token)
        return first, second

    return over(mesh, program)


def peers() -> None:
    """Says the remote addresses of this process's TCP connections that carry data, while they exist."""
    mesh = start()
    a = rows(mesh.size, 1 << 18, "float32")
    run = over(mesh, lambda x: jaxring.all_reduce(x, AXIS, algorithm="ring"))
    check(run(put(mesh, a)), same(a.sum(0), mesh.size))
    meet(mesh)
    found = []
    for line in pathlib.Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *_ = line.split()
        if state == "01":
            found.append([address(local), address(remote)])
    say("connections " + json.dumps(found))
    meet(mesh)


def meet(mesh) -> None:
    """All processes are here."""
    jax.block_until_ready(over(mesh, lambda x: jaxring.all_reduce(x, AXIS))(put(mesh, rows(mesh.size, 1, "int32"))))


def address(text: str) -> str:
    return ".".join(str(byte) for byte in reversed(bytes.fromhex(text.partition(":")[0])))


def flooded() -> None:
    """Collectives while unauthenticated peers use up their allowance; then one that needs new links.

    Prints the listeners' addresses, and what process 1 sends to authenticate to process 0.
    """
    mesh = start()
    a, whole = rows(mesh.size, 3000), rows(mesh.size, 1 << 20)
    run = over(mesh, lambda x: jaxring.all_reduce(x, AXIS))
    least = over(mesh, lambda x: jaxring.all_reduce(x, AXIS, "min"))
    x = put(mesh, a)
    check(run(x), same(a.sum(0), mesh.size))
    world = service.job()._world
    say("door " + json.dumps([list(world.own.addresses[0][1:]), captured(world) if world.process == 1 else ""]))
    meet(mesh)
    say("ready")
    enough = False
    while not enough:
        check(run(x), same(a.sum(0), mesh.size))
        had = np.full((mesh.size, 1), jaxring.counters()["connections"] > allowance.BURST + 100, "int32")
        enough = bool(np.asarray(least(put(mesh, had)).addressable_shards[0].data)[0, 0])
    say("had " + json.dumps(jaxring.counters()["connections"]))
    links = over(mesh, lambda x: jaxring.all_reduce(x, AXIS, algorithm="ring", protocol="simple"))
    check(links(put(mesh, whole)), same(whole.sum(0), mesh.size))
    assert jaxring.plans()[-1].channels > 1, jaxring.plans()[-1]
    say("linked")
    while not pathlib.Path(os.environ["FOLDER"], "over").exists():
        time.sleep(0.02)
    check(run(x), same(a.sum(0), mesh.size))


def captured(world) -> str:
    said = bytearray()

    class Tapped(socket.socket):
        def sendall(self, data, *flags):
            said.extend(data)
            super().sendall(data, *flags)

    with Tapped() as sock:
        sock.connect(world.info(0).addresses[0][1:])
        handshake.authenticate(sock, world._published.secret(), world.process, 0, time.monotonic() + 60)
    return said.hex()


def altered() -> None:
    """Makes links to process 1 by way of somebody in the middle, and works until that one changes a byte."""
    jax.config.update("jax_enable_recoverability", True)
    hidden = job_world.Listener

    class Behind(hidden):
        """Others are told the port of who is in the middle."""

        def __init__(self, where, ports):
            super().__init__(where, ports)
            ((name, address, port),) = self.addresses
            say(f"port {port}")
            say("listens")
            self.addresses = [(name, address, int(os.environ["BETWEEN"]))]

    mesh = start()
    if jax.process_index() == 1:
        job_world.Listener = Behind
    world = service.job().join(service.job().membership())
    tries = []
    while jax.process_index() == 0:
        try:
            world.link(1, 0)
            break
        except JoinError as error:
            tries.append(str(error))
    say("tries " + json.dumps(tries))
    a = rows(mesh.size, 1 << 16)
    run = over(mesh, lambda x: jaxring.all_reduce(x, AXIS, algorithm="ring"))
    x = put(mesh, a)
    check(run(x), same(a.sum(0), mesh.size))
    say("ready")
    texts = []
    while not texts:
        for shard in run(x).addressable_shards:
            try:
                np.asarray(shard.data)
            except jax.errors.JaxRuntimeError as error:
                texts.append(str(error))
    say("errors " + json.dumps(texts))
    say("raised")
    while not pathlib.Path(os.environ["FOLDER"], "over").exists():
        time.sleep(0.02)
    sys.stdout.flush()
    os._exit(0)


def survive() -> None:
    """The last process is killed while the others wait for it; each then says what it was told."""
    jax.config.update("jax_enable_recoverability", True)
    mesh = start()
    n = mesh.size
    algorithm = os.environ["ALGORITHM"]
    a = rows(n, 1 << 18, "float32")
    run = over(mesh, lambda x: jaxring.all_reduce(x, AXIS, algorithm=algorithm, timeout=20))
    x = put(mesh, a)
    check(run(x), same(a.sum(0), n))
    flags = [pathlib.Path(os.environ["FOLDER"]) / f"go{attempt}" for attempt in range(2)]
    say("ready")
    if jax.process_index() == jax.process_count() - 1:
        time.sleep(600)
    for attempt in range(2):
        try:
            jax.block_until_ready(run(x))
            say(f"attempt {attempt} ended well")
        except jax.errors.JaxRuntimeError as error:
            say(f"attempt {attempt} raised {json.dumps(str(error))}")
        say(f"after {attempt}")
        while not flags[attempt].exists():
            time.sleep(0.02)
    sys.stdout.flush()
    os._exit(0)  # jax.distributed's shutdown would wait for the dead one


if __name__ == "__main__":
    for case in sys.argv[1:]:
        print(case, "begins", file=sys.stderr, flush=True)
        globals()[case]()
        say_transports()
    say("checked")
