"""Programs that processes use in different orders: `python worker_orders.py CASE`."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp

import jaxring
from tests.stress.stress_ranks import AXIS, check, over, put, rows, same, start


def alike() -> None:
    """Programs that differ in a constant only, in another order in every other process: no sum mixes the two."""
    mesh = start()
    a = rows(mesh.size, 100_000, "int32", 1)
    x = put(mesh, a)

    def scaled(factor):
        return over(mesh, lambda v: jaxring.all_reduce(v * factor, AXIS, timeout=3))

    programs = {factor: scaled(factor) for factor in (2, 3)}
    started = {f: programs[f](x) for f in ((2, 3) if jax.process_index() % 2 == 0 else (3, 2))}
    for factor, result in started.items():
        try:
            jax.block_until_ready(result)
        except jax.errors.JaxRuntimeError as error:
            said = str(error)
        else:
            said = ""
            check(result, same(factor * a.sum(0, dtype=a.dtype), mesh.size))
        assert not said or "DEADLINE_EXCEEDED" in said, said


def opposite_orders() -> None:
    """Two programs, launched in another order in every other process of one device.

    XLA begins none before the one before it has ended, so one of them has to fail before the other can go on: it is not
    too early to call such orders an error before the deadline (`jaxring/runtime/agreement.py`). The programs compute
    enough for JAX to launch them on a thread of its own; it runs smaller ones where they are called.
    """
    mesh = start()
    x = put(mesh, rows(mesh.size, 1 << 16, "float32", 1))
    side = 1 << 8

    def busy(v):
        return (v.reshape(side, side) @ jnp.eye(side, dtype=v.dtype)).reshape(-1)

    summed = over(mesh, lambda v: jaxring.all_reduce(busy(v), AXIS, timeout=6))
    largest = over(mesh, lambda v: jaxring.all_reduce(busy(v), AXIS, "max", timeout=6))
    started = [program(x) for program in ((summed, largest) if jax.process_index() % 2 == 0 else (largest, summed))]
    said = []
    for result in started:
        try:
            jax.block_until_ready(result)
        except jax.errors.JaxRuntimeError as error:
            said.append(str(error))
    assert said
    assert all("the processes run different programs" in text for text in said), said


if __name__ == "__main__":
    globals()[sys.argv[1]]()
