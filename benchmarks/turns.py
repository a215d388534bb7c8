"""Programs that take turns: what the small benchmarks share. Times of one alone say little on a busy machine."""

from __future__ import annotations

import itertools
import statistics
import time
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxring.bench import table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

Times = dict[str, list[float]]


def mesh(axis: str) -> Mesh:
    """All devices of the job along one axis, those of a process next to each other."""
    return Mesh(np.array(sorted(jax.devices(), key=lambda d: (d.process_index, d.id))), (axis,))


def compiled(
    every: Mapping[str, Callable[..., Any]], over: Mesh, specs: tuple[Any, Any], operands: tuple[Any, ...]
) -> tuple[dict[str, Callable[..., Any]], dict[str, np.ndarray]]:
    """Each function over a mesh, by (in_specs, out_specs), and what it gives this process's first device."""
    programs: dict[str, Callable[..., Any]] = {
        name: jax.jit(jax.shard_map(f, mesh=over, in_specs=specs[0], out_specs=specs[1], check_vma=False))
        for name, f in every.items()
    }
    return programs, {name: np.asarray(f(*operands).addressable_shards[0].data) for name, f in programs.items()}


def measure_in_turns(
    programs: Mapping[str, Callable[..., Any]],
    operands: tuple[Any, ...] | Callable[[], tuple[Any, ...]],
    iterations: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Times:
    """Times in s of each program, one after another in every iteration. They must have run once before.

    The order changes in every iteration, because each program inherits the caches and awake threads of the one before.
    A function makes new operands for each call, whose time does not count.
    """
    times: Times = {name: [] for name in programs}
    order = itertools.cycle(itertools.permutations(programs))
    for names in itertools.islice(order, iterations):
        for name in names:
            given = operands() if callable(operands) else operands
            begun = clock()
            jax.block_until_ready(programs[name](*given))
            times[name].append(clock() - begun)
    return times


def medians(times: Times) -> dict[str, float]:
    """In s."""
    return {name: statistics.median(found) for name, found in times.items()}


def quartiles(values: list[float]) -> list[float]:
    """The lower one, the median and the upper one."""
    # The other method gives quartiles of two values that lie beyond them.
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3


def spread(values: list[float]) -> str:
    """The median and the quartiles in words, in the unit of the values."""
    low, middle, high = quartiles(values)
    return f"{middle:.4g} (quartiles {low:.4g} .. {high:.4g})"


def report(times: Times, title: str, conclusion: str) -> None:
    """Prints a table of medians and quartiles, and a line below it."""
    columns = [table.Column("program", 0, text=True), table.Column("median ms", 0), table.Column("quartiles ms", 0)]
    lines = []
    for name, found in times.items():
        low, middle, high = quartiles(found)
        lines.append((name, f"{middle * 1e3:.3f}", f"{low * 1e3:.3f} .. {high * 1e3:.3f}"))
    print("\n".join([title, *table.rows(columns, lines, table.width_of()), conclusion]))


def add_arguments(parser: argparse.ArgumentParser, iters: int) -> None:
    """``--iters``, with this default, and ``--devices``, for `use_devices` or `namespaces.run_or_join`."""
    parser.add_argument("--iters", type=int, default=iters, help=f"iterations that count (default: {iters})")
    parser.add_argument(
        "--devices", type=int, help="CPU devices of each process; under `jaxring run` it is --devices-per-process"
    )


def ranks() -> str:
    """How many there are, in how many processes, for a title."""
    return f"{jax.device_count()} ranks in {jax.process_count()} process(es)"


def use_devices(count: int | None) -> None:
    """Sets the number of CPU devices, if one is given."""
    if count:
        jax.config.update("jax_num_cpu_devices", count)
