"""What each process of a job over RDMA runs: `python worker_rdma.py CASE ...`, with the hosts' worker's cases too."""

from __future__ import annotations

import hashlib
import json
import sys
import time

import jax
import numpy as np

import jaxring
from tests.hosts import worker_hosts
from tests.stress.stress_ranks import AXIS, KINDS, check, collective, over, put, rows, start

LINKS = 50  # of the chain of small all_reduces


def every() -> None:
    """Every collective on exact data, small and large; then on random floats, of whose bits it says the hash."""
    mesh = start()
    n = mesh.size
    bits = hashlib.sha256()
    # All kinds in one program: compiling is what takes longest in an emulated machine.
    for length, protocol in ((400 * n, "ll"), (100_000 * n, "simple")):
        parts = [collective(kind, n, number, protocol=protocol) for number, kind in enumerate(KINDS)]
        run = over(mesh, lambda *xs, parts=parts: tuple(part[0](x) for part, x in zip(parts, xs, strict=True)))
        exact = [rows(n, length, "float32", number) for number in range(len(KINDS))]
        for _ in range(2):
            results = run(*(put(mesh, a) for a in exact))
            for kind, part, a, result in zip(KINDS, parts, exact, results, strict=True):
                check(result, part[1](a), (kind, length))
        noise = np.random.default_rng(length).standard_normal((len(KINDS), n, length)).astype("float32")
        for result in run(*(put(mesh, a) for a in noise)):
            add(bits, result)
    sizes = np.array([[3, 5], [7, 2]], "int32")  # who sends how many rows to whom
    ragged = over(
        mesh,
        lambda x, out, offsets, sends, places, comes: jaxring.ragged_all_to_all(
            x, out, offsets, sends, places, comes, axis_name=AXIS
        ),
    )
    x = np.arange(n * 9 * 1000, dtype="float32").reshape(n, 9, 1000)
    arguments = (
        x,
        np.full((n, 12, 1000), -1, "float32"),
        np.array([[0, 3], [0, 7]], "int32"),
        sizes,
        np.array([[0, 0], [3, 5]], "int32"),
        np.ascontiguousarray(sizes.T),
    )
    expected = np.full((n, 12, 1000), -1, "float32")
    for rank in range(n):
        expected[rank, : sizes[0, rank]] = x[0, arguments[2][0, rank] :][: sizes[0, rank]]
        expected[rank, sizes[0, rank] :][: sizes[1, rank]] = x[1, arguments[2][1, rank] :][: sizes[1, rank]]
    result = ragged(*(put(mesh, a) for a in arguments))
    check(result, expected, "ragged_all_to_all")
    jax.block_until_ready(over(mesh, lambda x: (jaxring.barrier(AXIS), x)[1])(put(mesh, rows(n, 1))))
    print("bits", bits.hexdigest(), flush=True)


def add(bits, result) -> None:
    for shard in result.addressable_shards:
        bits.update(np.asarray(shard.data).tobytes())


def one() -> None:
    """A single all_reduce; what it raises is printed."""
    mesh = start()
    try:
        a = rows(mesh.size, 1000)
        jax.block_until_ready(over(mesh, lambda x: jaxring.all_reduce(x, AXIS, timeout=30))(put(mesh, a)))
        print("went well", flush=True)
    except jax.errors.JaxRuntimeError as error:
        print("raised", str(error).replace("\n", " "), flush=True)


def speed() -> None:
    """Seconds of an all_reduce of 16 MiB, and of one of 8 bytes in a chain, where JAX's own part weighs least."""
    mesh = start()
    large, small = rows(mesh.size, 4 << 20), rows(mesh.size, 2)

    def chain(x):
        for _ in range(LINKS):
            x = jaxring.all_reduce(x, AXIS, "max")
        return x

    seconds = {
        "large": best_of(6, over(mesh, lambda x: jaxring.all_reduce(x, AXIS)), put(mesh, large)),
        "small": best_of(30, over(mesh, chain), put(mesh, small)) / LINKS,
    }
    (algorithm,) = {plan.algorithm for plan in jaxring.plans() if plan.op == "max"}
    print("speed", json.dumps(seconds | {"algorithm": algorithm}), flush=True)


def best_of(times: int, function, argument) -> float:
    """The shortest of some runs, after one that compiles and joins."""
    jax.block_until_ready(function(argument))
    took = []
    for _ in range(times):
        begin = time.perf_counter()
        jax.block_until_ready(function(argument))
        took.append(time.perf_counter() - begin)
    return min(took)


def explained() -> None:
    print(jaxring.explain(), flush=True)


if __name__ == "__main__":
    for case in sys.argv[1:]:
        (globals().get(case) or getattr(worker_hosts, case))()
    worker_hosts.say_transports()
