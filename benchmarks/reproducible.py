"""Time what exact sums cost: all-reduces by algorithm "reproducible" and by the tuner's choice, in turns.

    python -m benchmarks.reproducible --devices 4
    jaxring run -n 2 --output rank0 -m benchmarks.reproducible --bytes 16M

``--data`` chooses the values. Of "normal" ones practically all sums are exact in two floats. "wide" ones have random
exponents, so most sums need integers, the slow way. The ratio is that of the medians. Exits with 1 where the exact sums
have other bits on another rank, or when the ranks' operands change places, and where they take more than ``--most``
times as long as the tuner's choice.
"""

from __future__ import annotations

import argparse
import math
import sys
import zlib
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from benchmarks import turns
from jaxring.settings.sizes import size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.typing import Op

PLAIN, ORDERED, EXACT = "the tuner's choice", "deterministic", "reproducible"
DTYPES = ("float32", "bfloat16", "float16")


def operand(rows: int, count: int, dtype: str, data: str) -> np.ndarray:
    """Random values of all ranks, a row for each."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, count), np.float32)
    if data == "wide":
        low, high = (-14, 10) if dtype == "float16" else (-120, 100)
        x = np.ldexp(x, rng.integers(low, high, x.shape))
    return x.astype(jax.numpy.dtype(dtype))


def measure(nbytes: int, dtype: str, data: str, op: Op, iterations: int) -> tuple[turns.Times, bool]:
    """Times in s of an all-reduce of ``nbytes`` per rank by each algorithm; whether the exact sums repeat."""
    mesh = turns.mesh("r")
    x = operand(mesh.size, nbytes // jax.numpy.dtype(dtype).itemsize, dtype, data)
    y, moved = (jax.make_array_from_callback(x.shape, NamedSharding(mesh, P("r")), v.__getitem__) for v in (x, x[::-1]))

    def program(algorithm: str | None) -> Any:
        def f(x: Any) -> Any:
            return jaxring.all_reduce(x, "r", op, algorithm=algorithm)

        run = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("r"), out_specs=P("r"), check_vma=False))
        return run.lower(y).compile()

    programs = {PLAIN: program(None), ORDERED: program("deterministic"), EXACT: program("reproducible")}
    for each in programs.values():
        jax.block_until_ready(each(y))
    results = [part for v in (y, moved) for part in programs[EXACT](v).addressable_shards]
    digests = np.asarray([zlib.crc32(np.asarray(part.data).tobytes()) for part in results], np.uint32)
    gathered: Any = multihost_utils.process_allgather(digests)
    return turns.measure_in_turns(programs, (y,), iterations), np.unique(gathered).size == 1


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and let process 0 report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproducible", description=__doc__.split("\n")[0])
    parser.add_argument("--bytes", type=size, default=size("16M"), help="of the operand of a rank (default: 16M)")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="(default: float32)")
    parser.add_argument("--op", choices=("sum", "mean"), default="sum", help="(default: sum)")
    parser.add_argument("--data", choices=("normal", "wide"), default="normal", help="(default: normal)")
    parser.add_argument("--most", type=float, default=math.inf, help="times the tuner's choice (default: any)")
    turns.add_arguments(parser, iters=20)
    arguments = parser.parse_args(argv)
    turns.use_devices(arguments.devices)
    times, repeat = measure(arguments.bytes, arguments.dtype, arguments.data, arguments.op, arguments.iters)
    status = 0 if repeat else 1
    if jax.process_index() != 0:
        return status
    medians = turns.medians(times)
    title = (
        f"all_reduce {arguments.op} of {arguments.bytes} bytes of {arguments.data} {arguments.dtype} per rank, "
        f"{turns.ranks()}, {arguments.iters} iterations"
    )
    ratios = ", ".join(f"{medians[EXACT] / medians[name]:.2f} times {name}" for name in (PLAIN, ORDERED))
    if medians[EXACT] > arguments.most * medians[PLAIN]:
        status = 1
    turns.report(times, title, f"{EXACT}: {ratios}" + ("" if repeat else "\nDIFFERENT bits of the exact sums"))
    return status


if __name__ == "__main__":
    sys.exit(main())
