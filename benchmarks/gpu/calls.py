"""Measure calls inside programs: processes under JAX that share one GPU, each a rank.

    python -m benchmarks.gpu.calls --rows rows.jsonl

A row for each number of processes and size: microseconds of one of many means that follow one another in a program,
which XLA makes a CUDA graph of. Without MPS a GPU runs one process at a time, in slices of a millisecond or two, and
each meeting of ranks costs slices. With MPS (`nvidia-cuda-mps-control -d`, which the environment's
CUDA_MPS_PIPE_DIRECTORY names) all processes run together. XLA's own collectives have no row: NCCL before 2.30 refuses
ranks that share a GPU.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from benchmarks.gpu import rows

if TYPE_CHECKING:
    from collections.abc import Sequence

_DEADLINE_S = 60.0
_WARM_UP, _RUNS = 3, 10
# Of a program, up to 1 MiB and above.
_CALLS, _LARGE_CALLS = 64, 8


def calls_of(nbytes: int) -> int:
    """How many calls a program has."""
    return _CALLS if nbytes <= 1 << 20 else _LARGE_CALLS


def _rank(process: int, processes: int, port: int, sizes: Sequence[int], write: rows.Write) -> None:
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    import jaxring

    jax.distributed.initialize(f"127.0.0.1:{port}", processes, process, local_device_ids=[0])
    mesh = Mesh(np.array(jax.devices()), ("d",))
    spec = P("d")  # type: ignore[no-untyped-call]
    for nbytes in sizes:
        calls = calls_of(nbytes)

        def chain(x: jax.Array, calls: int = calls) -> jax.Array:
            for _ in range(calls):
                x = jaxring.all_reduce(x, "d", "mean") + 1
            return x

        run = jax.jit(jax.shard_map(chain, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
        own = np.full((1, max(1, nbytes // 4)), process, np.float32)
        (device,) = jax.local_devices()
        placed = [jax.device_put(own, device)]
        x = jax.make_array_from_single_device_arrays((processes, own.size), NamedSharding(mesh, spec), placed)
        took = []
        for _ in range(_WARM_UP + _RUNS):
            begin = time.perf_counter()
            result = run(x).block_until_ready()
            took.append(time.perf_counter() - begin)
        expected = (processes - 1) / 2 + calls
        if not all((np.asarray(part.data) == expected).all() for part in result.addressable_shards):
            raise ValueError("a wrong result")
        if process == 0:
            plan = jaxring.plans()[-1]
            write(
                {
                    "kind": "jax",
                    "processes": processes,
                    "mps": "CUDA_MPS_PIPE_DIRECTORY" in os.environ,
                    "bytes": nbytes,
                    "calls": calls,
                    "us": statistics.median(took[_WARM_UP:]) / calls * 1e6,
                    "plan": f"{plan.algorithm}/{plan.protocol}",
                }
            )


def _job(processes: int, arguments: Sequence[str]) -> int:
    """Run the ranks of a job; returns 1 where one of them fails or takes too long."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.gpu.calls", *arguments, "--processes", str(processes)]
    env = {"JAXRING_P2P": "shared", **os.environ}
    started = [subprocess.Popen([*command, "--rank", str(p), "--port", str(port)], env=env) for p in range(processes)]
    end = time.monotonic() + _DEADLINE_S
    try:
        codes = [process.wait(max(0.1, end - time.monotonic())) for process in started]
        return int(any(codes))
    except subprocess.TimeoutExpired:
        print(f"{processes} processes took longer than {_DEADLINE_S:g} s.", file=sys.stderr)
        return 1
    finally:
        for process in started:
            process.kill()
            process.wait()


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns 1 where a job fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    rows.add_arguments(parser)
    parser.set_defaults(ranks=[2, 4], sizes=[1 << 10, 32 << 10, 1 << 20, 16 << 20])
    parser.add_argument("--processes", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.processes:
        _rank(given.rank, given.processes, given.port, given.sizes, rows.writer(given.rows))
        return 0
    arguments = list(sys.argv[1:] if argv is None else argv)
    codes = [_job(processes, arguments) for processes in given.ranks]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
