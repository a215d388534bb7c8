"""Time what joining gains: all-reduces of a pytree's leaves in one call, in a call each, and by jax.lax.psum.

    python -m benchmarks.pytrees --devices 8
    jaxring run -n 4 --output rank0 -m benchmarks.pytrees --leaves 50 --bytes 16K

Leaves are of float32 and differ in size, from a hundredth of ``--bytes`` up. Each program takes the mean of all leaves
``--rounds`` times, each time of the results before; times are for one of these. So what JAX takes to launch a program
and to make its results, a millisecond for fifty of each of 8 devices, is spread over the rounds. The first two have the
same bits.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from benchmarks import turns
from jaxring.settings.sizes import size
from jaxring.tracing.lowering import fusion

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FUSED, APART, XLA = "one call", "a call per leaf", "lax.pmean"


def programs(mesh: Mesh, tree: Sequence[jax.Array], rounds: int) -> dict[str, Callable[..., Any]]:
    """The three programs, compiled."""

    def compile_(mean: Callable[[Any], Any]) -> Callable[..., Any]:
        def f(*leaves: jax.Array) -> Any:
            for _ in range(rounds):
                leaves = mean(leaves)
            return leaves

        run = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("r"), out_specs=P("r"), check_vma=False))
        return run.lower(*tree).compile()

    found = {FUSED: compile_(lambda t: jaxring.all_reduce(t, "r", "mean"))}
    with fusion.apart():
        found[APART] = compile_(lambda t: jaxring.all_reduce(t, "r", "mean"))
    found[XLA] = compile_(lambda t: jax.lax.pmean(t, "r"))
    return found


def measure(leaves: int, nbytes: int, rounds: int, iterations: int) -> turns.Times:
    """Times in s of one mean of all leaves. ``nbytes``: the largest leaf's, per rank."""
    mesh = turns.mesh("r")
    counts = [max(1, round(nbytes / 4 * 0.01 ** (i / max(1, leaves - 1)))) for i in range(leaves)]
    rng = np.random.default_rng(0)
    whole = [rng.standard_normal(mesh.size * count, np.float32) for count in counts]
    sharding = NamedSharding(mesh, P("r"))
    tree = [jax.make_array_from_callback(x.shape, sharding, x.__getitem__) for x in whole]
    every = programs(mesh, tree, rounds)
    results = {name: [np.asarray(s.data) for y in f(*tree) for s in y.addressable_shards] for name, f in every.items()}
    for one, other in zip(results[FUSED], results[APART], strict=True):
        np.testing.assert_array_equal(one, other)
    times = turns.measure_in_turns(every, tuple(tree), iterations)
    return {name: [each / rounds for each in found] for name, found in times.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and let process 0 report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pytrees", description=__doc__.split("\n")[0])
    parser.add_argument("--leaves", type=int, default=50, help="how many (default: 50)")
    parser.add_argument("--bytes", type=size, default=size("16K"), help="of the largest, per rank (default: 16K)")
    parser.add_argument("--rounds", type=int, default=32, help="means in a program (default: 32)")
    turns.add_arguments(parser, iters=30)
    arguments = parser.parse_args(argv)
    turns.use_devices(arguments.devices)
    times = measure(arguments.leaves, arguments.bytes, arguments.rounds, arguments.iters)
    if jax.process_index() != 0:
        return 0
    middle = turns.medians(times)
    gains = ", ".join(f"{name} / {FUSED}: {middle[name] / middle[FUSED]:.2f}" for name in (APART, XLA))
    ranks = turns.ranks()
    turns.report(
        times,
        f"{arguments.leaves} leaves of at most {arguments.bytes} bytes per rank, {ranks}",
        gains,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
