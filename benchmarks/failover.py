"""Cut, throttle and flap one of two links of each host while a collective runs: right results, and how much later.

    python -m benchmarks.failover

starts a process on each of four network namespaces with two shaped links, and a third one for `jax.distributed`; it
needs root and iproute2. In each case one link of one host is disturbed at one phase of an all-reduce: `cut` (a switch
that fails silently), `throttled` to a hundredth, or `flapping` (cut for 100 ms of every 200). All results are compared
to the bit with sums of whole numbers, which differ from case to case. The exit status is 1 if one is wrong, or if a
case takes more than two seconds longer than undisturbed ones.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any, Self

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxring
from benchmarks import turns
from jaxring.bench.hosts import Hosts
from jaxring.errors import JaxringError
from jaxring.launcher.job_environment import environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_PORT = 19230
ALGORITHMS = ("ring", "tree")
DISTURBANCES = ("cut", "throttled", "flapping")
# The networks of data; network 0 is that of the coordinator.
_DATA = (1, 2)
_UNDISTURBED = 9
_ALLOWED_S = 2.0
_LIMIT_S = 60.0
_FLAP_S = 0.1
# So long after a case nothing is disturbed: a path that was silent is tried again by TCP in up to twice that.
_SETTLE_S = 1.0


class _Disturber(threading.Thread):
    """A thread whose exception is kept."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__()
        self._work = work
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._work()
        except Exception as error:  # raised by the thread that joins this one
            self.error = error


class _Job:
    """A process on each host. ``rate``: of each link, as `tc` writes it. ``nbytes``: of a rank's float32 operand.

    ``net``: JAXRING_NET.
    """

    def __init__(self, hosts: int, rate: str, nbytes: int, net: str) -> None:
        self._hosts, self.rate, self._nbytes, self._net = Hosts(hosts, 1 + len(_DATA), rate), rate, nbytes, net
        self._count = hosts
        self._members: list[subprocess.Popen[str]] = []
        self._number = 0

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._hosts)
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jaxring-failover-")))
            names = ",".join(f"={self._hosts.device(network)}" for network in _DATA).replace(",=", ",")
            for process in range(self._count):
                env = environment(os.environ, f"{self._hosts.address(0)}:{_PORT}", self._count, process, 1)
                env |= {
                    "JAXRING_NET": self._net,
                    "JAXRING_DEBUG": os.environ.get("JAXRING_DEBUG", "WARN"),
                    "JAXRING_SOCKET_IFNAME": names,
                }
                words = [sys.executable, "-m", "benchmarks.failover", "--member", "--bytes", str(self._nbytes)]
                member = subprocess.Popen(
                    self._hosts.command(process, folder, words),
                    env=env,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                self._members.append(member)
                stack.callback(member.wait)
                stack.callback(member.kill)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, algorithm: str, disturb: _Disturber | None = None) -> float:
        """Seconds of the slowest process for an all-reduce, while another thread disturbs it.

        Raises JaxringError where a process ends, takes too long, or has another result than the sum, and what the
        disturbing thread has raised.
        """
        self._number += 1
        for member in self._members:
            assert member.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it has ended, so it answers nothing
                member.stdin.write(f"{algorithm} {self._number}\n")
                member.stdin.flush()
        if disturb is not None:
            disturb.start()
        late = threading.Timer(_LIMIT_S, self._kill)
        late.start()
        answers = []
        try:
            for member in self._members:
                assert member.stdout is not None
                answers.append(member.stdout.readline().split())
        finally:
            late.cancel()
        error = None
        if disturb is not None:
            disturb.join()
            error = disturb.error
        for process, words in enumerate(answers):
            if words[1:] != ["right"]:
                raise JaxringError(
                    f"Process {process} of {algorithm}, operation {self._number}: {words or 'it ended'}."
                ) from error
        if error is not None:
            raise error
        return max(float(words[0]) for words in answers)

    def _kill(self) -> None:
        """Ends the lines that `run` waits for, where a member hangs."""
        for member in self._members:
            member.kill()

    @contextlib.contextmanager
    def disturbed(self, what: str, host: int, network: int, delay_s: float) -> Iterator[_Disturber]:
        """A thread that disturbs that link after so many seconds; the link is as before afterwards."""
        hosts = self._hosts
        over = threading.Event()

        def disturb() -> None:
            time.sleep(delay_s)
            if what == "throttled":
                number = int("".join(filter(str.isdigit, self.rate)))
                unit = self.rate[len(str(number)) :]
                hosts.throttle(
                    host, network, f"{number * 10}mbit" if unit == "gbit" else f"{max(1, number // 100)}{unit}"
                )
            elif what == "cut":
                hosts.sever(host, network)
            else:
                for _ in range(5):
                    hosts.sever(host, network)
                    over.wait(_FLAP_S)
                    hosts.rejoin(host, network)
                    over.wait(_FLAP_S)

        try:
            yield _Disturber(disturb)
        finally:
            over.set()
            if what == "throttled":
                hosts.throttle(host, network, self.rate)
            else:
                hosts.rejoin(host, network)


@dataclasses.dataclass
class Found:
    """Seconds that the cases of one kind took longer than the median of undisturbed ones."""

    algorithm: str
    disturbance: str
    undisturbed_s: float
    longer_s: list[float]

    def __str__(self) -> str:
        low, middle, high = turns.quartiles(self.longer_s)
        return (
            f"{self.algorithm:6} {self.disturbance:10} {len(self.longer_s):5} {1e3 * self.undisturbed_s:14.0f} "
            f"{1e3 * middle:8.0f} {1e3 * low:8.0f} .. {1e3 * high:.0f} {1e3 * max(self.longer_s):8.0f}"
        )


def measure(job: _Job, hosts: int, phases: int) -> list[Found]:
    """All cases. Prints each kind's line as it is complete."""
    found = []
    print(f"{'':6} {'':10} cases undisturbed ms  later ms by quartiles          most", flush=True)
    for algorithm in ALGORITHMS:
        job.run(algorithm)
        usual = statistics.median(job.run(algorithm) for _ in range(_UNDISTURBED))
        links = itertools.cycle(itertools.product(_DATA, range(hosts)))
        for what in DISTURBANCES:
            longer = []
            for phase in range(phases):
                network, host = next(links)
                with job.disturbed(what, host, network, usual * phase / phases) as thread:
                    longer.append(job.run(algorithm, thread) - usual)
                time.sleep(_SETTLE_S)
                job.run(algorithm)
            found.append(Found(algorithm, what, usual, longer))
            print(found[-1], flush=True)
    return found


def member(nbytes: int) -> int:
    """Serves operations by their lines on stdin: the time and whether the result is right, on stdout."""
    jax.distributed.initialize(
        os.environ["JAX_COORDINATOR_ADDRESS"], int(os.environ["JAX_NUM_PROCESSES"]), int(os.environ["JAX_PROCESS_ID"])
    )
    mesh = turns.mesh("r")
    sharding = NamedSharding(mesh, P("r"))  # type: ignore[no-untyped-call]

    def program(algorithm: str) -> Callable[[Any], Any]:
        def add(x: Any) -> Any:
            return jaxring.all_reduce(x, "r", algorithm=algorithm)

        spec = sharding.spec
        return jax.jit(jax.shard_map(add, mesh=mesh, in_specs=spec, out_specs=spec))

    programs = {name: program(name) for name in ALGORITHMS}
    each = np.arange(nbytes // 4, dtype=np.int64)
    for line in sys.stdin:
        algorithm, number = line.split()
        # Whole numbers whose sum over the ranks float32 holds, and which differ from operation to operation.
        values = (each * 31 + int(number) * 17) % 1009
        own = values * (jax.process_index() + 1)
        x = jax.make_array_from_process_local_data(sharding, own.astype(np.float32))  # type: ignore[no-untyped-call]
        begun = time.perf_counter()
        y = jax.block_until_ready(programs[algorithm](x))  # type: ignore[no-untyped-call]
        took = time.perf_counter() - begun
        total = values * (mesh.size * (mesh.size + 1) // 2)
        right = np.array_equal(np.asarray(y.addressable_shards[0].data), total)
        print(took, "right" if right else "wrong", flush=True)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run all cases and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.failover", description=__doc__.split("\n")[0])
    parser.add_argument("--hosts", type=int, default=4, help="default: 4")
    parser.add_argument("--rate", default="1gbit", help="of each link (default: 1gbit)")
    parser.add_argument("--bytes", type=int, default=1 << 26, help="of a rank's operand (default: 64 MiB)")
    parser.add_argument("--phases", type=int, default=17, help="of each kind of case (default: 17)")
    parser.add_argument("--net", default="Socket", choices=("Socket", "TLS"), help="JAXRING_NET (default: Socket)")
    parser.add_argument("--member", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.member:
        return member(arguments.bytes)
    try:
        with _Job(arguments.hosts, arguments.rate, arguments.bytes, arguments.net) as job:
            found = measure(job, arguments.hosts, arguments.phases)
    except JaxringError as error:
        print(f"benchmarks.failover: {error}", file=sys.stderr)
        return 1
    most = max(longer for each in found for longer in each.longer_s)
    cases = sum(len(each.longer_s) for each in found)
    print(f"{cases} cases, all results right; at most {most:.2f} s longer")
    return int(most > _ALLOWED_S)


if __name__ == "__main__":
    sys.exit(main())
