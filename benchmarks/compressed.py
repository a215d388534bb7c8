"""Time all-reduces of float32 that are compressed against those that are not, which take turns.

    jaxring run -n 2 --output rank0 -m benchmarks.compressed
    python -m benchmarks.compressed --hosts 4 --rate 1gbit

    python -m benchmarks.compressed --parts

The second command starts a process on each of four network namespaces, whose links are shaped; it needs root and
iproute2. It also says how far each result is off, and exits with 1 where not all ranks have the same bits. The third
one times the arithmetic of one of two ranks on one device.
"""

from __future__ import annotations

import argparse
import functools
import sys
import zlib
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from benchmarks import namespaces, turns
from jaxring.compress import native
from jaxring.compress.formats import BLOCK, FORMATS
from jaxring.settings.sizes import shown, size

if TYPE_CHECKING:
    from collections.abc import Sequence

PLAIN = "float32"


def measure(nbytes: int, formats: Sequence[str], iterations: int) -> tuple[turns.Times, list[str], bool]:
    """Times in s of each program, a line on each result, and whether all ranks have the same bits of each."""
    mesh = turns.mesh("r")
    count = max(1, nbytes // 4)
    sharding = NamedSharding(mesh, P("r"))  # type: ignore[no-untyped-call]

    def values(index: Any) -> Any:
        return np.random.default_rng(index[0].start or 0).standard_normal((1, count), np.float32)

    x = jax.make_array_from_callback((mesh.size, count), sharding, values)
    spec = sharding.spec
    shard_map = functools.partial(jax.shard_map, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    choices: dict[str, Any] = {PLAIN: None, **{name: name for name in formats}}
    programs: dict[str, Any] = {
        name: jax.jit(shard_map(functools.partial(jaxring.all_reduce, axis_name="r", compress=compress)))
        for name, compress in choices.items()
    }
    results = {name: [np.asarray(s.data) for s in f(x).addressable_shards] for name, f in programs.items()}
    plain = results[PLAIN][0]
    notes, equal = [], True
    for name in formats:
        error = np.max(np.abs(results[name][0] - plain)) / np.max(np.abs(plain))
        digests = np.asarray([zlib.crc32(part.tobytes()) for part in results[name]], np.uint32)
        gathered: Any = multihost_utils.process_allgather(digests)
        same = np.unique(gathered).size == 1
        equal = equal and same
        bits = "the same" if same else "DIFFERENT"
        notes.append(f"{name}: {bits} bits on all ranks; largest error / largest value {error:.2g}")
    return turns.measure_in_turns(programs, (x,), iterations), notes, equal


def measure_parts(nbytes: int, name: str, iterations: int) -> turns.Times:
    """Times in s of what a rank of two computes.

    It quantises the half that the other one owns, sums its own half and the other's codes of it, quantises and decodes
    that, and decodes the other half.
    """
    form, count = FORMATS[name], nbytes // 4 // (2 * BLOCK) * 2 * BLOCK
    x = jax.numpy.asarray(np.random.default_rng(0).standard_normal(count, np.float32))
    key = jax.numpy.zeros(3, np.uint32)
    rows = native.Rows(2, count // 2, count, native.Own.LEFT_OUT)
    nearest, at_random = native.Rounding(False), native.Rounding(True)
    codes = jax.block_until_ready(native.quantize(form, x, key, rows, nearest))  # type: ignore[no-untyped-call]

    def total(x: Any) -> Any:
        return native.sum_quantized(form, codes, key, rows, x, 0, nearest)

    every = {
        f"{name}: quantise a half": lambda x: native.quantize(form, x, key, rows, nearest),
        f"{name}: the same, rounded at random": lambda x: native.quantize(form, x, key, rows, at_random),
        f"{name}: sum, quantise and decode a half": total,
        f"{name}: the same, and decode the other half": lambda x: native.dequantize(
            form, codes, key, rows, total(x)[1]
        ),
        "copy both halves": lambda x: x + 0,
    }
    programs = {what: jax.jit(f) for what, f in every.items()}
    for f in programs.values():
        jax.block_until_ready(f(x))  # type: ignore[no-untyped-call]
    return turns.measure_in_turns(programs, (x,), iterations)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and let process 0 report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compressed", description=__doc__.split("\n")[0])
    parser.add_argument("--bytes", type=size, default=size("64M"), help="of float32 per rank (default: 64M)")
    parser.add_argument("--parts", action="store_true", help="time the arithmetic of each format on one device alone")
    parser.add_argument("--formats", nargs="+", choices=tuple(FORMATS), default=["int8"], help="default: int8")
    turns.add_arguments(parser, iters=11)
    namespaces.add_arguments(parser, rate="1gbit")
    arguments = parser.parse_args(argv)
    if arguments.parts:
        for name in arguments.formats:
            turns.report(measure_parts(arguments.bytes, name, arguments.iters), shown(arguments.bytes), "")
        return 0
    status = namespaces.run_or_join("benchmarks.compressed", arguments, argv)
    if status is not None:
        return status
    times, notes, equal = measure(arguments.bytes, arguments.formats, arguments.iters)
    if jax.process_index() == 0:
        middle = turns.medians(times)
        gains = ", ".join(f"{PLAIN} / {name}: {middle[PLAIN] / middle[name]:.2f}" for name in arguments.formats)
        ranks = turns.ranks()
        turns.report(times, f"all_reduce of {shown(arguments.bytes)} per rank, {ranks}", "\n".join([gains, *notes]))
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
