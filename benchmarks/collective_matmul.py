"""Time what collective matrix products hide: all_gather_matmul and matmul_reduce_scatter, and their two halves.

    python -m benchmarks.collective_matmul --hosts 4 --rate 1gbit
    jaxring run -n 2 --output rank0 -m benchmarks.collective_matmul

The first command starts a process on each of four network namespaces, whose links are shaped; it needs root and
iproute2. Four programs take turns: the transfer alone, the product alone, one after the other, and the pipeline.
"hidden" is the share of the shorter of transfer and product that the pipeline takes away. "busy" is how many of the
machine's processors each program keeps busy: what sends and receives needs them, too, so nothing can be hidden where
transfer and product together take them all.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from benchmarks import namespaces, turns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

TRANSFER, PRODUCT, AFTER, PIPELINE = "transfer", "product", "one after the other", "pipeline"


def gathering(chunks: int | None) -> dict[str, Callable[[Any, Any], Any]]:
    """Programs of (the rows of a rank, w), whose results are those of all ranks."""
    return {
        TRANSFER: lambda x, w: (jaxring.all_gather(x, "r", tiled=True), w)[0],
        PRODUCT: lambda x, w: jax.lax.concatenate([x] * jax.lax.axis_size("r"), 0) @ w,
        AFTER: lambda x, w: jaxring.all_gather(x, "r", tiled=True) @ w,
        PIPELINE: lambda x, w: jaxring.all_gather_matmul(x, w, "r", chunks=chunks),
    }


def scattering(chunks: int | None) -> dict[str, Callable[[Any, Any], Any]]:
    """Programs of (the rows of a rank, w); a rank computes with its rows for each rank."""

    def product(x: Any, w: Any) -> Any:
        return jax.lax.concatenate([x] * jax.lax.axis_size("r"), 0) @ w

    def transfer(x: Any, w: Any) -> Any:
        rows = jax.lax.broadcast_in_dim(w[0], (jax.lax.axis_size("r") * x.shape[0], w.shape[1]), (1,))
        return jaxring.reduce_scatter(rows, "r", tiled=True)

    def pipeline(x: Any, w: Any) -> Any:
        whole = jax.lax.concatenate([x] * jax.lax.axis_size("r"), 0)
        return jaxring.matmul_reduce_scatter(whole, w, "r", chunks=chunks)

    return {
        TRANSFER: transfer,
        PRODUCT: product,
        AFTER: lambda x, w: jaxring.reduce_scatter(product(x, w), "r", tiled=True),
        PIPELINE: pipeline,
    }


def busy(programs: Mapping[str, Callable[..., Any]], operands: tuple[Any, ...], times: int = 10) -> dict[str, float]:
    """How many processors of this machine were busy, on average, while each program ran so many times."""

    def clocks() -> tuple[int, int]:
        """Ticks of all processors, and those of them that were idle or waited for a disk: proc(5)."""
        ticks = list(map(int, pathlib.Path("/proc/stat").read_text(encoding="ascii").split("\n")[0].split()[1:9]))
        return sum(ticks), ticks[3] + ticks[4]

    found = {}
    for name, program in programs.items():
        total, idle = clocks()
        for _ in range(times):
            jax.block_until_ready(program(*operands))  # type: ignore[no-untyped-call]
        after, idle_after = clocks()
        found[name] = (os.cpu_count() or 1) * (1 - (idle_after - idle) / max(1, after - total))
    return found


def measure(
    every: dict[str, Callable[[Any, Any], Any]], rows: int, k: int, columns: int, iters: int
) -> tuple[turns.Times, dict[str, float]]:
    """Times in s of each program, after a comparison of the pipeline's result with the unfused one; and `busy`."""
    mesh = turns.mesh("r")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((mesh.size * rows, k), np.float32)
    w = rng.standard_normal((k, columns), np.float32)
    sharding, whole = NamedSharding(mesh, P("r")), NamedSharding(mesh, P())  # type: ignore[no-untyped-call]
    operands = (
        jax.make_array_from_callback(x.shape, sharding, x.__getitem__),
        jax.make_array_from_callback(w.shape, whole, w.__getitem__),
    )
    programs, results = turns.compiled(every, mesh, ((sharding.spec, whole.spec), sharding.spec), operands)
    np.testing.assert_allclose(results[PIPELINE], results[AFTER], rtol=1e-4, atol=1e-3)
    return turns.measure_in_turns(programs, operands, iters), busy(programs, operands)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and let process 0 report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.collective_matmul", description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=512, help="of each rank (default: 512)")
    parser.add_argument("--long", type=int, default=2048, help="float32 of a row that travels (default: 2048)")
    parser.add_argument("--short", type=int, default=128, help="the product's other dimension (default: 128)")
    parser.add_argument("--chunks", type=int, help="default: the tuner's choice")
    turns.add_arguments(parser, iters=15)
    namespaces.add_arguments(parser, rate="1gbit")
    arguments = parser.parse_args(argv)
    status = namespaces.run_or_join("benchmarks.collective_matmul", arguments, argv)
    if status is not None:
        return status
    rows, chunks = arguments.rows, arguments.chunks
    for title, programs, k, columns in (
        ("all_gather_matmul", gathering(chunks), arguments.long, arguments.short),
        ("matmul_reduce_scatter", scattering(chunks), arguments.short, arguments.long),
    ):
        times, processors = measure(programs, rows, k, columns, arguments.iters)
        if jax.process_index() != 0:
            continue
        middle = turns.medians(times)
        hidden = (middle[TRANSFER] + middle[PRODUCT] - middle[PIPELINE]) / min(middle[TRANSFER], middle[PRODUCT])
        ranks = turns.ranks()
        ratio = middle[AFTER] / middle[PIPELINE]
        conclusion = f"{AFTER} / {PIPELINE}: {ratio:.2f}, hidden of the shorter: {hidden:.0%}; processors busy: "
        conclusion += ", ".join(f"{name} {processors[name]:.2f}" for name in (TRANSFER, PRODUCT, PIPELINE))
        turns.report(times, f"{title}, {rows} rows a rank, w {k} x {columns}, {ranks}", conclusion)
    return 0


if __name__ == "__main__":
    sys.exit(main())
