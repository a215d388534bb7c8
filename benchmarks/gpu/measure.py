"""Measure the CUDA engine's kernels among ranks that share the GPUs of one process, without XLA.

A row for each collective, way of doing it, number of ranks and size; a line of JSON each, written as it is measured.
Every launch has inputs that the one before did not have, and results are read after the last one, too. With --graphs
the launches that are timed are nodes of one CUDA graph, so that no host's work is in their time.

Beside a collective's time stand those of a copy within the GPU that reads and writes as many bytes as the collective
must at least (n inputs read, or the root's alone where only that counts, and n outputs written: a copy of half the
sum), of an empty kernel of one thread launched on as many streams, and of an empty kernel of the largest number of
blocks with a collective's parameters ("alike"). What a program's calls have, a trap where they fail, these have, too.

Run by `suite.py`, or by hand: python -m benchmarks.gpu.measure --rows rows.jsonl
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

# Ranks that share a GPU are streams there, and streams that share a queue would wait for each other. CUDA reads it when
# it starts.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

import jaxring._native as _native
from benchmarks.gpu import rows
from benchmarks.gpu.standalone import How, Ranks
from jaxring.plan.collectives import Root
from jaxring.plan.gpu import copy_engine, nvls
from jaxring.plan.gpu.lanes import Path, lanes_for, one_shot_bytes
from jaxring.settings.sizes import size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jaxring.plan.schedule import Spec

# Of the slots that the ring's messages lie in.
_SLOT_BYTES = 1 << 20
# Of ways by bulk copies: all slices that have a whole pack.
_BULK_BYTES = 16


class Way(NamedTuple):
    """One way of doing a collective. ``fused``: the number of its fused kernel, or -1 for the step table; ``bulk``:
    slices that only move go by bulk copies."""

    collective: str
    algorithm: str
    protocol: str
    fused: int = -1
    bulk: bool = False


# The first way of each collective is the planner's for ranks of one domain. Bulk copies come after what they replace.
WAYS = (
    Way("all_reduce", "direct", "memory", 0),
    Way("all_reduce", "direct", "memory", 1),
    Way("all_reduce", "direct", "memory"),
    Way("all_reduce", "ring", "simple"),
    Way("all_reduce", "ring", "simple", bulk=True),
    Way("all_reduce", "ring", "ll"),
    Way("all_reduce", "ring", "ll128"),
    Way("all_reduce", "tree", "ll"),
    Way("reduce_scatter", "direct", "memory", 2),
    Way("all_gather", "direct", "memory", 3),
    Way("all_gather", "direct", "memory", 3, bulk=True),
    Way("broadcast", "direct", "memory", 4),
    Way("broadcast", "direct", "memory", 4, bulk=True),
    Way("all_to_all", "direct", "memory", 5),
    Way("all_to_all", "direct", "memory", 5, bulk=True),
    Way("all_gather", copy_engine.NAME, "memory"),
    Way("broadcast", copy_engine.NAME, "memory"),
    Way("all_to_all", copy_engine.NAME, "memory"),
    Way("all_reduce", nvls.NAME, "memory"),
    Way("reduce_scatter", nvls.NAME, "memory"),
    Way("all_gather", nvls.NAME, "memory"),
)


def load(path: str) -> Any:
    """The CUDA engine's module: the installed one, or, for tests, the one in the file ``path``."""
    if not path:
        return importlib.import_module("jaxring._native_cuda")
    spec = importlib.util.spec_from_file_location("_native_cuda_fake", path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measure(
    native: Any,
    counts: Sequence[int],
    sizes: Sequence[int],
    lanes: Sequence[int],
    threads: int,
    launches: int,
    write: rows.Write,
    in_graph: bool = False,
    pushed_bytes: int = 0,
) -> int:
    """Measure every way for every number of ranks, of lanes and size; returns how many results were wrong or failed."""
    bad = 0
    copies: dict[tuple[int, int], float] = {}

    def copy_us(nbytes: int, times: int) -> float:
        if (nbytes, times) not in copies:
            copies[nbytes, times] = native.time_copy(0, nbytes, times)
        return copies[nbytes, times]

    for count, most in numbers_of_lanes(counts, lanes, native.device_count(), native.device(0).multiprocessors):
        pushed = pushed_bytes or one_shot_bytes(count)
        ranks = Ranks(native, count, lanes=most, threads=threads, slot_bytes=_SLOT_BYTES, stage_bytes=2 * pushed)
        empty = native.time_empty(count, launches, in_graph, 0, 0)
        alike = native.time_empty(count, launches, in_graph, most, threads)
        no_nvls = ranks.why_not_nvls()
        if no_nvls:
            write({"kind": "nvls", "ranks": count, "left_out": no_nvls})
        for nbytes in sizes:
            times = rows.launches_of(launches, nbytes)
            for way in WAYS:
                if (way.fused == 0 and nbytes > pushed) or (no_nvls and way.algorithm == nvls.NAME):
                    continue
                kind = "graph" if in_graph else "collective"
                row: dict[str, Any] = {"kind": kind, **way._asdict(), "ranks": count, "bytes": nbytes}
                try:
                    found = _one(ranks, way, nbytes, most, times, in_graph)
                except Exception as error:  # the others may still work
                    bad += 1
                    write({**row, "error": str(error)})
                    continue
                if found is None:
                    continue
                row |= found | {"empty_us": empty.us, "empty_waited_us": empty.waited_us}
                row |= {"alike_us": alike.us, "alike_waited_us": alike.waited_us}
                row["copy_us"] = copy_us(row.pop("moved"), times)
                write(row)
    return bad


def numbers_of_lanes(
    counts: Sequence[int], lanes: Sequence[int], gpus: int, multiprocessors: int
) -> Iterator[tuple[int, int]]:
    """(ranks, lanes) to measure. All lanes of the ranks that share a GPU must be resident together."""
    for count in counts:
        fitting = multiprocessors // -(-count // gpus)
        for most in dict.fromkeys(max(1, min(each, fitting)) for each in lanes):
            yield count, most


def _one(ranks: Ranks, way: Way, nbytes: int, most: int, launches: int, in_graph: bool) -> dict[str, Any] | None:
    copied, switched = way.algorithm == copy_engine.NAME, way.algorithm == nvls.NAME
    algorithm = "direct" if copied or switched else way.algorithm
    path = Path.PUSH if way.fused == 0 else Path.MEMORY if way.protocol == "memory" else Path.MESSAGES
    channels = 1 if copied else lanes_for(path, nbytes, most)
    schedule = ranks.schedule(way.collective, algorithm, channels)
    while channels > 1 and schedule.nlanes > most:
        channels //= 2
        schedule = ranks.schedule(way.collective, algorithm, channels)
    if schedule.nlanes > most:
        return None
    # `bytes` is the larger of input and output, as in other benchmarks.
    block = max(1, nbytes // 4 // max(schedule.in_blocks, schedule.out_blocks))
    op = "sum" if way.collective in ("all_reduce", "reduce_scatter") else None
    how = How(way.fused, copied, switched, _BULK_BYTES if way.bulk else 0)
    result = ranks.run_filled(schedule, way.protocol, block, (1, 2), op, how, launches=launches, in_graph=in_graph)
    expected = ranks.count if op else 1
    for each, outputs in ((expected, result.outputs), (2 * expected, result.other_outputs)):
        if not all(output == each for output in outputs):
            raise ValueError("a wrong result")
    moved = moved_bytes(schedule.spec, 4 * block)
    return {"lanes": schedule.nlanes, "us": result.us, "waited_us": result.waited_us, "moved": moved}


def moved_bytes(spec: Spec, block_bytes: int) -> int:
    """The bytes of a copy that reads and writes as many as a collective must: half of what it reads and writes."""
    readers, writers = (1 if spec.facts.root is root else spec.nranks for root in (Root.SOURCE, Root.TARGET))
    return (readers * spec.in_blocks + writers * spec.out_blocks) * block_bytes // 2


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns 1 where a result is wrong, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    rows.add_arguments(parser)
    parser.add_argument("--lanes", type=rows.counts, default="16,32,64", help="of a rank at most, one after another")
    parser.add_argument("--threads", type=int, default=384)
    parser.add_argument(
        "--one-shot-bytes",
        type=size,
        default=0,
        metavar="SIZE",
        help="measure the one-shot all-reduce up to this size (default: as far as the planner takes it)",
    )
    parser.add_argument("--graphs", action="store_true", help="time the nodes of a CUDA graph, not launches")
    parser.add_argument("--module", default="", help="a module in place of jaxring._native_cuda")
    arguments = parser.parse_args(argv)
    native = load(arguments.module)
    if native.device_count() == 0:
        print("There is no NVIDIA GPU here.", file=sys.stderr)
        return 2
    native.start(0, _native.network())
    write = rows.writer(arguments.rows)
    gpu = native.device(0)
    seen = {name: getattr(gpu, name) for name in ("name", "capability", "multiprocessors")}
    write({"kind": "device", **seen})
    given = arguments
    bad = measure(
        native,
        given.ranks,
        given.sizes,
        given.lanes,
        given.threads,
        given.launches,
        write,
        given.graphs,
        given.one_shot_bytes,
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
