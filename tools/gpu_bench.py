"""Measure the CUDA engine's kernels among ranks that share the GPUs of one process, without XLA.

For each collective, number of ranks and size: microseconds of a launch on all ranks, by the host's clock over many
launches, the algorithm bandwidth, and how that compares with a copy within the GPU of as many bytes as the collective
must read and write at least (n inputs read, n outputs written). Prints a table; --json writes the rows.

usage: python tools/gpu_bench.py [--ranks 2,4,8] [--sizes 1K,32K,1M,16M,256M] [--json FILE] [--fake MODULE]
"""

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
CASES = (
    ("all_reduce", "direct", "memory"),
    ("all_reduce", "ring", "simple"),
    ("all_reduce", "ring", "ll"),
    ("all_reduce", "ring", "ll128"),
    ("all_reduce", "tree", "ll"),
    ("all_gather", "direct", "memory"),
    ("reduce_scatter", "direct", "memory"),
    ("all_to_all", "direct", "memory"),
)


def module(path: str) -> ModuleType:
    if not path:
        import jaxring._native_cuda as native

        return native
    spec = importlib.util.spec_from_file_location("_native_cuda_fake", path)
    native = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(native)
    return native


def number(text: str) -> int:
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--sizes", default="1K,32K,1M,16M,256M")
    parser.add_argument("--lanes", type=int, default=16)
    parser.add_argument("--threads", type=int, default=384)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--fake", default="", help="the module _native_cuda_fake: to try this script without a GPU")
    arguments = parser.parse_args()
    native = module(arguments.fake)
    if native.device_count() == 0:
        sys.exit("there is no NVIDIA GPU here")
    native.start(0, 1 << 20)
    from jaxring.bench.gpu_trial import Ranks
    from jaxring.plan.cuda_tuner import lanes_for

    print(f"# {native.device(0)}, {arguments.lanes} lanes of {arguments.threads} threads, float32 sum")
    print(
        f"{'collective':15} {'algorithm':10} {'protocol':8} {'ranks':>5} {'bytes':>10} {'lanes':>5} {'us':>10} "
        f"{'GB/s':>8} {'copy us':>10} {'of copy':>8}"
    )
    rows = []
    for count in (int(n) for n in arguments.ranks.split(",")):
        sharing = -(-count // native.device_count())
        lanes = max(1, min(arguments.lanes, native.device(0)[3] // sharing))
        ranks = Ranks(native, count, lanes=lanes, threads=arguments.threads, slot_bytes=1 << 20)
        for size in (number(s) for s in arguments.sizes.split(",")):
            launches = 100 if size <= 1 << 20 else 10
            copy = native.time_copy(0, size * count, launches)
            for collective, algorithm, protocol in CASES:
                channels = lanes_for(size, lanes)
                schedule = ranks.schedule(collective, algorithm, channels)
                while channels > 1 and schedule.nlanes > lanes:
                    channels //= 2
                    schedule = ranks.schedule(collective, algorithm, channels)
                if schedule.nlanes > lanes:
                    continue
                # `size` is the larger of input and output, as in other benchmarks.
                block = max(1, size // 4 // max(schedule.in_blocks, schedule.out_blocks))
                x = [np.full(block * schedule.in_blocks, 1, np.float32)] * count
                op = "sum" if collective in ("all_reduce", "reduce_scatter") else None
                try:
                    outputs, us = ranks.run(schedule, protocol, x, op, launches=launches)
                except Exception as error:  # the others may still work
                    print(f"{collective} {algorithm}/{protocol} {count} ranks {size} bytes: {error}")
                    continue
                if op is not None and not (outputs[0] == count).all():
                    sys.exit(f"{collective} {algorithm}/{protocol}: a wrong result")
                row = {
                    "collective": collective,
                    "algorithm": algorithm,
                    "protocol": protocol,
                    "ranks": count,
                    "bytes": size,
                    "lanes": schedule.nlanes,
                    "us": us,
                    "copy_us": copy,
                }
                rows.append(row)
                print(
                    f"{collective:15} {algorithm:10} {protocol:8} {count:5} {size:10} {schedule.nlanes:5} {us:10.1f} "
                    f"{size / us / 1e3:8.2f} {copy:10.1f} {100 * copy / us:7.1f}%",
                    flush=True,
                )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
