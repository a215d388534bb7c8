"""Time what unauthenticated peers cost a job: its collective without any, and while they flood its listeners.

    python -m benchmarks.flood -n 2 --bytes 64K --rate 2000

A job of processes on this host works over TCP. Three kinds of turns alternate: "quiet"; "beside", where a client
(`benchmarks.unauthenticated`) floods ports that do not belong to the job and that no process serves; and "flooded",
where it floods the ports of all the job's processes. A real client would have its own machine. Here it has the last
core, and the job has the others, in turns of every kind; with `--share` both use all cores. "beside" shows what the
client costs by sharing memory and caches, so flooded / beside is the cost of the job's own work for the client. Ratios
are taken turn by turn.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from benchmarks import unauthenticated
from benchmarks.turns import spread
from jaxring.bench.fleet import Crew
from jaxring.bench.peers import PEERS
from jaxring.bench.work import Case
from jaxring.settings.sizes import size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_KINDS = ("quiet", "beside", "flooded")
# What is replayed: it looks like a handshake, and its proof is wrong as a captured one's is.
_REPLAY = (b"jaxring\x01" + bytes(3) + b"\x01" + bytes(4) + bytes(32) + bytes(32)).hex()


@contextlib.contextmanager
def _clients(targets: list[str], rate: float, cores: set[int]) -> Iterator[None]:
    """A client on these cores floods the targets, if there are any."""
    if not targets:
        yield
        return
    command = [sys.executable, "-I", "-S", str(pathlib.Path(unauthenticated.__file__)), "--rate", str(rate), *targets]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        os.sched_setaffinity(child.pid, cores)
        assert child.stdin is not None
        child.stdin.write(_REPLAY.encode())
        child.stdin.close()
        time.sleep(0.3)  # the client has started, and its burst of first connections is over
        yield
    finally:
        child.kill()
        child.wait()


def measure(
    processes: int, nbytes: int, rate: float, turns: int, seconds: float, share: bool
) -> dict[str, list[float]]:
    """The median time in s of an all-reduce in each turn of each kind."""
    cores = sorted(os.sched_getaffinity(0))
    ours, clients = (cores, cores) if share or len(cores) == 1 else (cores[:-1], cores[-1:])
    times: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    case = Case("all_reduce", "sum", "float32", nbytes)
    with contextlib.ExitStack() as stack:
        # What this process starts inherits it.
        os.sched_setaffinity(0, ours)
        stack.callback(os.sched_setaffinity, 0, cores)
        crew = stack.enter_context(Crew(PEERS["jaxring"], processes, 1, {"JAXRING_SHM_DISABLE": "1"}))
        crew.ask("prepare", case)
        crew.ask("run", (20, 1))
        each = statistics.median(max(one) for one in zip(*crew.ask("run", (50, 1)), strict=True))
        count = max(10, int(seconds / each))
        doors = [stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1024)) for _ in range(processes)]
        targets = {
            "quiet": [],
            "beside": [f"127.0.0.1:{door.getsockname()[1]}" for door in doors],
            "flooded": [name for names in crew.ask("listens") for name in names],
        }
        for turn in range(turns):
            for kind in (*_KINDS[turn % 3 :], *_KINDS[: turn % 3]):
                with _clients(targets[kind], rate, set(clients)):
                    found = crew.ask("run", (count, 1))
                times[kind].append(statistics.median(max(one) for one in zip(*found, strict=True)))
    return times


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and say."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flood", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-n", dest="processes", type=int, default=2, help="processes of the job (default: 2)")
    parser.add_argument("--bytes", type=size, default=size("64K"), help="operand per rank (default: 64K)")
    parser.add_argument("--rate", type=float, default=0.0, help="connections a second (default: as fast as it goes)")
    parser.add_argument("--turns", type=int, default=15, help="turns of each kind (default: 15)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn, about (default: 1)")
    parser.add_argument("--share", action="store_true", help="the client and the job share all cores")
    args = parser.parse_args(argv)
    times = measure(args.processes, args.bytes, args.rate, args.turns, args.seconds, args.share)
    for kind, found in times.items():
        print(f"{kind:8} {spread([1e6 * each for each in found])} us")
    for kind, other in (("beside", "quiet"), ("flooded", "quiet"), ("flooded", "beside")):
        ratios = [a / b for a, b in zip(times[kind], times[other], strict=True)]
        print(f"{kind} / {other}: {spread(ratios)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
