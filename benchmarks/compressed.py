"""Time all-reduces of float32 that are compressed against those that are not, which take turns.

    jaxring run -n 2 --output rank0 -m benchmarks.compressed
    python -m benchmarks.compressed --hosts 4 --rate 1gbit

The second command starts a process on each of four network namespaces, whose links are shaped; it needs root and
iproute2. It also says how far each result is off, and whether all ranks have the same bits.
"""

from __future__ import annotations

import argparse
import functools
import sys
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from benchmarks import namespaces, turns
from jaxring.compress.formats import FORMATS
from jaxring.settings.sizes import shown, size

if TYPE_CHECKING:
    from collections.abc import Sequence

PLAIN = "float32"


def measure(nbytes: int, formats: Sequence[str], iterations: int) -> tuple[turns.Times, list[str]]:
    """Times in s of each program, and a line on each result."""
    mesh = turns.mesh("r")
    count = max(1, nbytes // 4)
    sharding = NamedSharding(mesh, P("r"))  # type: ignore[no-untyped-call]

    def values(index: Any) -> Any:
        return np.random.default_rng(index[0].start or 0).standard_normal((1, count), np.float32)

    x = jax.make_array_from_callback((mesh.size, count), sharding, values)
    spec = sharding.spec
    shard_map = functools.partial(jax.shard_map, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    programs: dict[str, Any] = {
        name: jax.jit(
            shard_map(functools.partial(jaxring.all_reduce, axis_name="r", compress=None if name == PLAIN else name))
        )
        for name in (PLAIN, *formats)
    }
    results = {name: np.asarray(program(x).addressable_shards[0].data) for name, program in programs.items()}
    notes = []
    for name in formats:
        error = np.max(np.abs(results[name] - results[PLAIN])) / np.max(np.abs(results[PLAIN]))
        digest = np.frombuffer(results[name].tobytes(), np.uint32).sum(dtype=np.uint32)
        gathered: Any = multihost_utils.process_allgather(digest)
        same = "the same" if np.unique(gathered).size == 1 else "DIFFERENT"
        notes.append(f"{name}: {same} bits on all ranks; largest error / largest value {error:.2g}")
    return turns.measure_in_turns(programs, (x,), iterations), notes


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and let process 0 report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compressed", description=__doc__.split("\n")[0])
    parser.add_argument("--bytes", type=size, default=size("64M"), help="of float32 per rank (default: 64M)")
    parser.add_argument("--formats", nargs="+", choices=tuple(FORMATS), default=["int8"], help="default: int8")
    turns.add_arguments(parser, iters=11)
    namespaces.add_arguments(parser, rate="1gbit")
    arguments = parser.parse_args(argv)
    status = namespaces.run_or_join("benchmarks.compressed", arguments, argv)
    if status is not None:
        return status
    times, notes = measure(arguments.bytes, arguments.formats, arguments.iters)
    if jax.process_index() == 0:
        middle = turns.medians(times)
        gains = ", ".join(f"{PLAIN} / {name}: {middle[PLAIN] / middle[name]:.2f}" for name in arguments.formats)
        ranks = turns.ranks()
        turns.report(times, f"all_reduce of {shown(arguments.bytes)} per rank, {ranks}", "\n".join([gains, *notes]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
