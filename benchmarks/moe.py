"""Time the tokens of a mixture of experts, there and back, in two levels against flat, in turns.

    python -m benchmarks.moe --hosts 4 --devices 2
    jaxring run -n 2 --devices-per-process 2 --output rank0 -m benchmarks.moe

The first command starts a process on each of four network namespaces, whose links are shaped; it needs root and
iproute2. Each program dispatches the tokens of each rank to experts of all ranks and combines what comes back. "rows
alone" exchanges the rows and no counts. There are two algorithms of two levels: PXN sends a message from each host to
each rank elsewhere, the multi-leader one from each host to each host. All results are compared to the bit.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from benchmarks import namespaces, turns

if TYPE_CHECKING:
    from collections.abc import Sequence

FLAT, TWO_LEVELS = "direct", ("pxn", "multileader")
PARTS = ("there and back", "rows alone")


def measure(tokens: int, width: int, choices: int, iterations: int) -> turns.Times:
    """Times in s of dispatch and combine by each algorithm, and of the rows' way there alone."""
    mesh = turns.mesh("r")
    experts = mesh.size
    rng = np.random.default_rng(0)
    x = rng.standard_normal((mesh.size * tokens, width), np.float32)
    ids = np.argsort(rng.random((mesh.size * tokens, experts)), axis=1)[:, :choices].astype(np.int32)
    sharding = NamedSharding(mesh, P("r"))  # type: ignore[no-untyped-call]
    operands = tuple(jax.make_array_from_callback(v.shape, sharding, v.__getitem__) for v in (x, ids))

    def there_and_back(algorithm: str) -> Any:
        def program(x: Any, ids: Any) -> Any:
            sent = jaxring.moe.dispatch(x, ids, "r", experts, algorithm=algorithm)
            return jaxring.moe.combine(sent.tokens * 2, sent)

        return program

    def rows_alone(algorithm: str) -> Any:
        each = tokens * choices // experts
        places = jnp.arange(experts, dtype=jnp.int32) * each

        def program(x: Any, ids: Any) -> Any:
            rows = jnp.repeat(x, choices, axis=0) + ids.reshape(-1, 1)
            lands = jnp.full(experts, each * jax.lax.axis_index("r"), jnp.int32)
            sizes = jnp.full(experts, each, jnp.int32)
            return jaxring.ragged_all_to_all(
                rows, jnp.zeros_like(rows), places, sizes, lands, sizes, axis_name="r", algorithm=algorithm
            )

        return program

    names = {f"{name}, {algorithm}": make(algorithm)
             for name, make in zip(PARTS, (there_and_back, rows_alone), strict=True)
             for algorithm in (FLAT, *TWO_LEVELS)}  # fmt: skip
    programs, results = turns.compiled(names, mesh, (sharding.spec, sharding.spec), operands)
    for name, algorithm in itertools.product(PARTS, TWO_LEVELS):
        np.testing.assert_array_equal(results[f"{name}, {FLAT}"], results[f"{name}, {algorithm}"])
    return turns.measure_in_turns(programs, operands, iterations)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and let process 0 report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.moe", description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=64, help="of each rank (default: 64)")
    parser.add_argument("--width", type=int, default=16, help="float32 of a token (default: 16)")
    parser.add_argument("--choices", type=int, default=2, help="experts of a token (default: 2)")
    turns.add_arguments(parser, iters=100)
    namespaces.add_arguments(parser, rate="10gbit")
    arguments = parser.parse_args(argv)
    status = namespaces.run_or_join("benchmarks.moe", arguments, argv)
    if status is not None:
        return status
    times = measure(arguments.tokens, arguments.width, arguments.choices, arguments.iters)
    if jax.process_index() == 0:
        middle = turns.medians(times)

        def gains(algorithm: str) -> str:
            each = (f"{name} {middle[f'{name}, {FLAT}'] / middle[f'{name}, {algorithm}']:.2f}" for name in PARTS)
            return f"{FLAT} / {algorithm}: {', '.join(each)}"

        ranks = turns.ranks()
        title = f"{arguments.tokens} tokens of {arguments.width} float32 a rank, {arguments.choices} choices, {ranks}"
        turns.report(times, title, "\n".join(map(gains, TWO_LEVELS)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
