"""Time what overlap gains: an all-reduce with compute between start and done, and the same with compute after it.

    jaxring run -n 2 --output rank0 -m benchmarks.overlap --bytes 16M
    python -m benchmarks.overlap --devices 4

Four programs take turns: the collective alone, the compute alone, one after the other, and overlapped. The compute is a
chain of matrix products, as long as ``--products`` says. "hidden" is the share of the shorter of the two that
overlapping takes away; it can be 1 only where transfer and compute do not want the same cores and memory.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from benchmarks import turns
from jaxring.settings.sizes import size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SIDE = 512


def programs(mesh: Mesh, products: int) -> dict[str, Callable[[jax.Array, jax.Array], Any]]:
    """The four programs: each takes the collective's operand and a matrix per rank, and returns both results."""

    def compute(a: jax.Array) -> jax.Array:
        for _ in range(products):
            a = jnp.tanh(a @ a)
        return a

    def collective(x: jax.Array, a: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jaxring.all_reduce(x, "r"), a

    def alone(x: jax.Array, a: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x, compute(a)

    def after(x: jax.Array, a: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = jaxring.all_reduce(x, "r")
        # It waits for the collective, and has the same value.
        return y, compute(a + 0 * y[0])

    def overlapped(x: jax.Array, a: jax.Array) -> tuple[jax.Array, jax.Array]:
        y, a = jaxring.all_reduce_start(x, "r").done(compute(a))
        return y, a

    def make(f: Callable[..., Any]) -> Callable[[jax.Array, jax.Array], Any]:
        return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("r"), out_specs=P("r"), check_vma=False))

    return {f.__name__: make(f) for f in (collective, alone, after, overlapped)}


def measure(nbytes: int, products: int, iterations: int) -> turns.Times:
    """Times in s of each program, one after another in every iteration. ``nbytes``: the operand's, per rank."""
    mesh = turns.mesh("r")

    def array(shape: tuple[int, ...]) -> jax.Array:
        whole = np.random.default_rng(0).standard_normal((1, *shape[1:]), np.float32) / SIDE
        block = np.broadcast_to(whole, (shape[0] // mesh.size, *shape[1:])) if len(shape) > 1 else None

        def part(index: Any) -> np.ndarray:
            first = index[0].indices(shape[0])
            return np.ones(first[1] - first[0], np.float32) if block is None else block[: first[1] - first[0]]

        return jax.make_array_from_callback(shape, NamedSharding(mesh, P("r")), part)

    x, a = array((mesh.size * max(1, nbytes // 4),)), array((mesh.size * SIDE, SIDE))
    every = programs(mesh, products)
    results = {name: [np.asarray(s.data) for y in f(x, a) for s in y.addressable_shards] for name, f in every.items()}
    for one, other in zip(results["after"], results["overlapped"], strict=True):
        np.testing.assert_array_equal(one, other)
    return turns.measure_in_turns(every, (x, a), iterations)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and let process 0 report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overlap", description=__doc__.split("\n")[0])
    parser.add_argument("--bytes", type=size, default=size("16M"), help="operand per rank (default: 16M)")
    parser.add_argument("--products", type=int, default=4, help=f"products of {SIDE} x {SIDE} matrices (default: 4)")
    turns.add_arguments(parser, iters=30)
    arguments = parser.parse_args(argv)
    turns.use_devices(arguments.devices)
    times = measure(arguments.bytes, arguments.products, arguments.iters)
    if jax.process_index() != 0:
        return 0
    middle = turns.medians(times)
    gain = middle["after"] - middle["overlapped"]
    hidden = gain / min(middle["collective"], middle["alone"])
    turns.report(
        times,
        f"{arguments.bytes} bytes per rank, {turns.ranks()}",
        f"after / overlapped: {middle['after'] / middle['overlapped']:.2f}, hidden: {hidden:.2f}",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
