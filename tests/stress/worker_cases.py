"""Cases for jobs of any layout, and those of `stress_threads.py`: `python worker_cases.py CASE ...`."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring
from tests.stress import stress_threads
from tests.stress.stress_ranks import AXIS, Mixture, check, over, put, rows, same, start


def independent() -> None:
    """64 collectives that do not depend on each other: XLA reaches them in a different order on each device."""
    mixture = Mixture(start(), 64)
    results = [mixture.launch() for _ in range(5)]
    for result in results:
        mixture.check(result)


def launches() -> None:
    """2000 launches without blocking: independent ones, and ones that depend on the one before."""
    mesh = start()
    n = mesh.size
    base = rows(n, 33, "int32")
    add = over(mesh, lambda x, k: jaxring.all_reduce(x + k, AXIS))
    scalars = [put(mesh, np.full((n,), k, "int32")) for k in range(50)]
    x = put(mesh, base)
    results = [add(x, scalars[i % 50]) for i in range(1000)]
    step = over(mesh, lambda x: jaxring.permute(x, AXIS, [(i, (i + 1) % n) for i in range(n)]))
    y = x
    for _ in range(1000):
        y = step(y)
    for i, result in enumerate(results):
        check(result, same(base.sum(0, dtype="int32") + n * (i % 50), n), i)
    check(y, np.roll(base, 1000 % n, axis=0))


def scan() -> None:
    mesh = start()
    n = mesh.size
    a = rows(n, 65, "int32")

    def body(carry, k):
        carry = jaxring.permute(carry, AXIS, [(i, (i + 1) % n) for i in range(n)])
        return carry, jaxring.all_reduce(carry * k, AXIS)

    carry, sums = over(mesh, lambda x: jax.lax.scan(body, x, jnp.arange(50, dtype="int32")))(put(mesh, a))
    check(carry, np.roll(a, 50 % n, axis=0))
    check(sums, same(np.arange(50, dtype="int32")[:, None] * a.sum(0, dtype="int32"), n))


def while_loop() -> None:
    """The condition itself is a collective's result."""
    mesh = start()
    n = mesh.size
    a = np.arange(1, n + 1, dtype="int32")[:, None]

    def program(x):
        def going(state):
            return jaxring.all_reduce(state[0], AXIS, "max")[0] < 1000

        def body(state):
            x, count = state
            return x + jaxring.all_reduce(x, AXIS, "min"), count + 1

        count = jax.lax.pcast(jnp.int32(0), (AXIS,), to="varying")
        return jax.lax.while_loop(going, body, (x, count))

    expected, count = a.copy(), 0
    while expected.max() < 1000:
        expected, count = expected + expected.min(), count + 1
    x, counted = over(mesh, program)(put(mesh, a))
    check(x, expected)
    check(counted, np.full(n, count, "int32"))


def while_loop_of_groups() -> None:
    """Each row of a 2-D mesh goes round its own number of times; collectives join the ranks of a row only."""
    devices = np.array(start().devices).reshape(2, -1)
    mesh = Mesh(devices, ("row", "column"))
    columns = devices.shape[1]

    def program(x):
        limit = 3 + 40 * jax.lax.axis_index("row")

        def body(state):
            i, x = state
            return i + 1, jaxring.all_reduce(x, "column", "sum") % 1009 + jax.lax.axis_index("column")

        return jax.lax.while_loop(lambda state: state[0] < limit, body, (jnp.int32(0), x))[1]

    spec = P("row", "column")
    run = jax.jit(jax.shard_map(program, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    a = np.arange(2 * columns, dtype="int32").reshape(2, columns)
    expected = a.copy()
    for row, times in enumerate((3, 43)):
        for _ in range(times):
            expected[row] = expected[row].sum() % 1009 + np.arange(columns)
    x = put(mesh, a, spec)
    for result in [run(x) for _ in range(20)]:
        check(result, expected)


def branches() -> None:
    """cond and switch, nested, with a predicate that all ranks share; each branch has collectives of its own."""
    mesh = start()
    n = mesh.size
    a = rows(n, 2 * n, "int32")

    def program(x, which):
        total = jaxring.all_reduce(which, AXIS, "max")

        def even(x):
            return jax.lax.cond(
                total % 4 == 0,
                lambda x: x + jaxring.all_reduce(x, AXIS),
                lambda x: jaxring.permute(
                    jaxring.permute(x, AXIS, [(i, (i + 1) % n) for i in range(n)]),
                    AXIS,
                    [(i, (i + 1) % n) for i in range(n)],
                ),
                x,
            )

        def odd(x):
            choices = [
                lambda x: x + jaxring.all_reduce(x, AXIS, "max"),
                lambda x: jaxring.all_to_all(x, AXIS, 0, 0, tiled=True),
                lambda x: -x,
            ]
            return jax.lax.switch(total // 2, choices, x)

        return jax.lax.cond(total % 2 == 0, even, odd, x)

    expected = [
        a + a.sum(0, dtype="int32"),
        a + a.max(0),
        np.roll(a, 2, axis=0),
        a.reshape(n, n, -1).swapaxes(0, 1).reshape(n, -1),
        a + a.sum(0, dtype="int32"),
        -a,
    ]
    run = over(mesh, program)
    x = put(mesh, a)
    which = [put(mesh, np.full(n, w, "int32")) for w in range(6)]
    order = [int(w) for w in np.random.default_rng(0).integers(0, 6, 120)]
    for w, result in zip(order, [run(x, which[w]) for w in order], strict=True):
        check(result, expected[w], w)


def cond_in_scan() -> None:
    mesh = start()
    n = mesh.size
    a = rows(n, 9, "int32")

    def body(carry, k):
        carry = jax.lax.cond(
            k % 3 == 0,
            lambda c: c - jaxring.all_reduce(c, AXIS, "min"),
            lambda c: jaxring.permute(c, AXIS, [(i, (i + 3) % n) for i in range(n)]) + k,
            carry,
        )
        return carry, None

    result = over(mesh, lambda x: jax.lax.scan(body, x, jnp.arange(40, dtype="int32"))[0])(put(mesh, a))
    expected = a
    for k in range(40):
        expected = expected - expected.min(0) if k % 3 == 0 else np.roll(expected, 3, axis=0) + k
    check(result, expected.astype("int32"))


def inner_jit() -> None:
    """An inner jit called twice gives two call sites whose attributes are equal."""
    mesh = start()
    n = mesh.size
    a, b = rows(n, 50, "int32", 1), rows(n, 50, "int32", 2)

    @jax.jit
    def f(x):
        return jaxring.all_reduce(x, AXIS) + jax.lax.axis_index(AXIS)

    both = over(mesh, lambda x, y: (f(x) + f(y), f(x), f(y), f(f(x)), f(f(f(y)))))
    x, y = put(mesh, a), put(mesh, b)

    def g(rows):
        return rows.sum(0, dtype="int32") + np.arange(n, dtype="int32")[:, None]

    for results in [both(x, y) for _ in range(30)]:
        for result, expected in zip(results, (g(a) + g(b), g(a), g(b), g(g(a)), g(g(g(b)))), strict=True):
            check(result, expected)


def checkpoint() -> None:
    """Rematerialised: the collective runs again in the backward pass. Only the factor is differentiated."""
    mesh = start()
    n = mesh.size
    a = rows(n, 8)

    def program(w, x):
        @jax.checkpoint
        def layer(w):
            return jnp.sin(w * jaxring.all_reduce(x, AXIS))

        return jax.value_and_grad(lambda w: layer(layer(w)).sum())(w)

    w = np.linspace(-1, 1, n * 8, dtype="float32").reshape(n, 8)
    value, grad = over(mesh, program)(put(mesh, w), put(mesh, a))

    def reference(w):
        s = a.sum(0)
        return jnp.sin(jnp.sin(w * s) * s).sum()

    for shard in value.addressable_shards:
        rank = shard.index[0].start
        np.testing.assert_allclose(shard.data[0], reference(w[rank]), rtol=1e-5, atol=1e-5)
    for shard in grad.addressable_shards:
        rank = shard.index[0].start
        np.testing.assert_allclose(shard.data[0], jax.grad(reference)(w[rank]), rtol=1e-4, atol=1e-3)


def donation() -> None:
    mesh = start()
    n = mesh.size
    a = rows(n, 70001, "int32")
    step = over(mesh, lambda x: jaxring.all_reduce(x, AXIS) % 10007 + jax.lax.axis_index(AXIS), donate_argnums=0)
    plain = over(mesh, lambda x: jaxring.all_reduce(x, AXIS), donate_argnums=0)
    x = put(mesh, a)
    expected = a
    for i in range(30):
        old, x = x, (step, plain)[i % 2](x)
        assert old.is_deleted()
        total = expected.sum(0, dtype="int32")
        expected = same(total, n) if i % 2 else total % 10007 + np.arange(n, dtype="int32")[:, None]
    check(x, expected)
    # What is not donated stays.
    y = put(mesh, a)
    keep = over(mesh, lambda x: jaxring.all_reduce(x, AXIS))
    check(keep(y), same(a.sum(0, dtype="int32"), n))
    check(y, a)


def with_psum() -> None:
    """XLA's own collectives and ours in one program: independent ones, and chains of both."""
    mesh = start()
    n = mesh.size
    data = [rows(n, 10 + i, "int32", i) for i in range(12)]

    def program(*xs):
        ours = [jaxring.all_reduce(x, AXIS) for x in xs]
        xla = [jax.lax.psum(x + 1, AXIS) for x in xs]
        chains = [jaxring.all_reduce(jax.lax.psum(jaxring.all_reduce(x, AXIS, "max"), AXIS), AXIS, "min") for x in xs]
        return ours, xla, chains

    run = over(mesh, program)
    inputs = [put(mesh, a) for a in data]
    for ours, xla, chains in [run(*inputs) for _ in range(10)]:
        for i, a in enumerate(data):
            check(ours[i], same(a.sum(0, dtype="int32"), n), i)
            check(xla[i], same((a + 1).sum(0, dtype="int32"), n), i)
            check(chains[i], same(n * a.max(0), n), i)


if __name__ == "__main__":
    cases = {**vars(stress_threads), **globals()}
    for case in sys.argv[1:]:
        print(case, "begins", file=sys.stderr, flush=True)
        cases[case]()
    print("checked")
