"""Time small messages on two installed versions of jaxring, which take turns, and say new / old.

    python -m benchmarks.versions --old ../release/.venv --new .venv -n 2 --bytes 8 1K 64K
    python -m benchmarks.versions --old ../release/.venv --new .venv -n 1 --devices 8
    python -m benchmarks.versions --old ../release/.venv --new .venv -n 4 --hosts

The last one gives each process a network namespace, which needs root and iproute2. Each version's job has its own
processes, which the Python of its environment runs, so the versions may differ in everything but the public
collectives. Both jobs live all the time, and one of them works while the other one waits for a request. The order
changes with every turn. Ratios are taken turn by turn; where the quartiles lie on both sides of 1, the versions do
not differ by more than this machine does.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import select
import socket
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.turns import spread
from jaxring.bench.hosts import Hosts
from jaxring.errors import JaxringError
from jaxring.launcher.job_environment import environment
from jaxring.settings.sizes import shown, size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MEMBER = pathlib.Path(__file__).with_name("versions_member.py")
KINDS = ("program", "communicator")
ANSWER_S = 120.0


class Job(NamedTuple):
    """The processes of one version's job, and where they write what is no answer."""

    name: str
    members: list[subprocess.Popen[bytes]]
    log: pathlib.Path

    def ask(self, *request: Any) -> list[Any]:
        """The answers of all processes, in their order; JaxringError where one has ended or says nothing."""
        for member in self.members:
            assert member.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it has ended, which the missing answer tells
                member.stdin.write(json.dumps(request).encode() + b"\n")
                member.stdin.flush()
        return self.answers()

    def answers(self) -> list[Any]:
        """What all processes say next."""
        deadline, found = time.monotonic() + ANSWER_S, []
        for process, member in enumerate(self.members):
            assert member.stdout is not None
            ready, _, _ = select.select([member.stdout], [], [], max(0.0, deadline - time.monotonic()))
            line = member.stdout.readline() if ready else b""
            if not line:
                said = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
                what = "has ended" if ready else f"did not answer in {ANSWER_S:g} s"
                raise JaxringError(f"Process {process} of the job on {self.name} {what}. It said:\n{said}")
            found.append(json.loads(line))
        return found


def python_of(given: str) -> str:
    """The Python of an environment, given as its folder or as the program itself. Raises JaxringError."""
    path = pathlib.Path(given)
    # Not resolved: an environment's Python is a link, by whose place it finds its packages.
    python = (path / "bin" / "python" if path.is_dir() else path).absolute()
    if not os.access(python, os.X_OK):
        raise JaxringError(f"There is no Python at {python}: name an environment's folder, or its Python.")
    return str(python)


@contextlib.contextmanager
def started(name: str, python: str, processes: int, devices: int, hosts: Hosts | None) -> Iterator[Job]:
    """A job run by this Python, on this host or with a process on each of ``hosts``; its processes have ended when the
    context has."""
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jaxring-versions-")))
        # Kept bound, not listening, so that no other program gets the port: see `jaxring run`.
        reserved = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("127.0.0.1", 0))
        address = hosts.address(0) if hosts else "127.0.0.1"
        coordinator = f"{address}:{reserved.getsockname()[1]}"
        job = Job(name, [], folder / "log")
        log = stack.enter_context(job.log.open("wb"))
        for process in range(processes):
            # -I: of neither the current folder nor PYTHONPATH, either of which may hold another version.
            command = [python, "-I", str(MEMBER)]
            member = subprocess.Popen(
                hosts.command(process, folder, command) if hosts else command,
                env=environment(os.environ, coordinator, processes, process, devices),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
            job.members.append(stack.enter_context(member))
            stack.callback(member.kill)
        yield job
        for member in job.members:
            assert member.stdin is not None
            member.stdin.close()
        for member in job.members:
            with contextlib.suppress(subprocess.TimeoutExpired):
                member.wait(10)


def measure(old: Job, new: Job, kind: str, nbytes: int, turns: int, seconds: float) -> dict[str, list[float]]:
    """The median time in s of an execution in each turn of each job, where the slowest process counts."""
    # Both run as often, so that a turn of one is as exposed to the rest of the machine as one of the other.
    each = max(max(job.ask("prepare", kind, nbytes)) for job in (old, new))
    count = max(10, int(seconds / each))
    times: dict[str, list[float]] = {"old": [], "new": []}
    jobs = [("old", old), ("new", new)]
    for turn in range(turns):
        for name, job in jobs if turn % 2 == 0 else reversed(jobs):
            times[name].append(max(job.ask("run", count)))
    return times


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and say."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.versions", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--old", required=True, metavar="VENV", help="the environment to compare with")
    parser.add_argument("--new", required=True, metavar="VENV", help="the environment that is compared")
    parser.add_argument("-n", dest="processes", type=int, default=2, help="processes of each job (default: 2)")
    parser.add_argument("--devices", type=int, default=1, help="of each process (default: 1)")
    parser.add_argument("--hosts", action="store_true", help="a network namespace for each process")
    parser.add_argument("--bytes", type=size, nargs="+", default=[8, 1024, 65536], help="operand per rank (8 1K 64K)")
    parser.add_argument("--kind", choices=KINDS, nargs="+", default=KINDS, help="in a program, or by Communicator")
    parser.add_argument("--turns", type=int, default=21, help="turns of each version (default: 21)")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a turn, about (default: 0.5)")
    args = parser.parse_args(argv)
    try:
        with (
            Hosts(args.processes) if args.hosts else contextlib.nullcontext() as hosts,
            started("--old", python_of(args.old), args.processes, args.devices, hosts) as old,
            started("--new", python_of(args.new), args.processes, args.devices, hosts) as new,
        ):
            where = f"{args.processes} {'hosts' if args.hosts else 'processes'}"
            if args.devices > 1:
                where += f" of {args.devices} devices"
            for job in (old, new):
                print(f"{job.name[2:]}: {job.answers()[0]}")
            for kind in args.kind:
                for nbytes in args.bytes:
                    times = measure(old, new, kind, nbytes, args.turns, args.seconds)
                    print(f"{kind}, all_reduce of {shown(nbytes)} on {where}")
                    for name, found in times.items():
                        print(f"  {name} {spread([1e6 * one for one in found])} us")
                    ratios = [b / a for a, b in zip(times["old"], times["new"], strict=True)]
                    print(f"  new / old {spread(ratios)}", flush=True)
    except JaxringError as error:
        print(f"benchmarks.versions: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
