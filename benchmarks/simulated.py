"""Compares the simulator with measurements between hosts that are network namespaces with shaped links.

    python -m benchmarks.simulated --out DIR
    python -m benchmarks.simulated --out DIR --hosts 4 --algorithms ring --sizes 64K,1M

Needs root, as `jaxring bench --hosts` does, and an otherwise idle machine. Two constants are taken from small
collectives: the latency of a message from an all-reduce of 4 bytes between two hosts, and what a message costs its
sender and its receiver from the case's own algorithm with 1 KiB between its hosts, which share the processors of this
machine. Both go in the protocol that all other sizes take. All others are those of the cluster ethernet-1g. Prints a
table and writes simulated.json as it goes. Exits with 1 where a job fails, or a time differs by more than 15%.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys
from typing import TYPE_CHECKING

from benchmarks.rows import ITERATIONS, SECONDS, Network
from jaxring._command import ended_as_by_interrupt
from jaxring.bench.hosts import burst_bytes
from jaxring.bench.run import Job, measure
from jaxring.bench.work import Case
from jaxring.errors import JaxringError
from jaxring.plan import tuner
from jaxring.settings.sizes import shown, size
from jaxring.simulate.cluster import Cluster, ClusterNetwork
from jaxring.simulate.clusters import load
from jaxring.simulate.run import simulate
from jaxring.topology.fabric import VertexKind

if TYPE_CHECKING:
    from collections.abc import Sequence

RATE = "1gbit"
# tbf counts the 1514 bytes of a frame, of which 1448 are data.
_DATA = 1448 / 1514
# GB/s, and bytes in the bucket of tbf.
GOODPUT, BURST = 0.125 * _DATA, burst_bytes(RATE) * _DATA
# So many collectives, or of so many bytes together, are measured in one program, each of the result of the one before,
# and simulated in a row. In programs of their own the threads of JAX that hand over to each other, all hosts' on the
# same processors, take up to 4 ms between two of them.
TIMES, BYTES = 8, 32 << 20
# So few bytes take no time on the link, and make no message empty. Left to choose, they would go in another protocol.
TINY, PROTOCOL = 1024, "simple"
# Programs that are not timed.
WARMUP = 2
CHECKED = 1 << 20
SIZES = ("64K", "256K", "1M", "4M", "16M", "64M")
# Algorithm, collective, devices of a host. Only ranks that share memory have something to gather.
ALGORITHMS = {
    "ring": ("all_reduce", 1),
    "tree": ("all_reduce", 1),
    "halving_doubling": ("all_reduce", 1),
    "pxn": ("all_to_all", 2),
}
TOLERANCE = 0.15


@dataclasses.dataclass(frozen=True)
class Compared:
    """One case: medians in us."""

    hosts: int
    algorithm: str
    collective: str
    nbytes: int
    measured_us: float
    simulated_us: float

    @property
    def error(self) -> float:
        """How much longer the simulation takes, as a share of the measured time."""
        return self.simulated_us / self.measured_us - 1


class Shaped(Cluster):
    """Hosts as `jaxring.bench.hosts` makes them: what leaves them is shaped, and what reaches them is not."""

    def build(self, hosts: int, protocol: str) -> ClusterNetwork:
        """The network without a limit on what reaches a host."""
        network = super().build(hosts, protocol)
        for link, ends in enumerate(network.fabric.links):
            kinds = (network.fabric.vertices[end].kind for end in (ends.source, ends.target))
            if ends.kind == "net":
                network.binding[link] = tuple(kinds) == (VertexKind.NIC, VertexKind.SWITCH)
        return network


def cluster(devices: int, small_us: float) -> Cluster:
    """The hosts: ethernet-1g with so many devices in its one process, and the latency by which two hosts take
    ``small_us`` for an all-reduce of 4 bytes, which is two messages one after the other."""
    described = load("ethernet-1g")
    fields = {field.name: getattr(described, field.name) for field in dataclasses.fields(described)}
    plain = Shaped(**(fields | {"ranks": devices, "domain": devices, "port": GOODPUT, "burst": BURST}))
    if not small_us:
        return plain
    base = plain.models[PROTOCOL]
    latency = max(0.0, (small_us - base.launch) / 2 - base.send_overhead - base.recv_overhead)
    return dataclasses.replace(plain, across_us=dict.fromkeys(plain.across_us, latency))


def busier(machine: Cluster, us: float) -> Cluster:
    """The same hosts, where a message costs its sender and its receiver ``us`` more of their processor."""
    models = {
        name: dataclasses.replace(model, send_overhead=model.send_overhead + us, recv_overhead=model.recv_overhead + us)
        for name, model in machine.models.items()
    }
    return dataclasses.replace(machine, models=models)


def fitted(machine: Cluster, hosts: int, algorithm: str, tiny_us: float) -> Cluster:
    """The hosts, busier by what makes ``tiny_us`` of the collective of `TINY` bytes between so many."""
    low, high = 0.0, tiny_us
    for _ in range(20):
        middle = (low + high) / 2
        if simulated_us(busier(machine, middle), hosts, algorithm, TINY) < tiny_us:
            low = middle
        else:
            high = middle
    return busier(machine, low)


def in_a_row(nbytes: int) -> int:
    """How many collectives of ``nbytes`` follow each other without a pause."""
    return max(1, min(TIMES, BYTES // nbytes))


def simulated_us(machine: Cluster, hosts: int, algorithm: str, nbytes: int) -> float:
    """The simulated time of the plan that the planner makes, with ``nbytes`` of input per rank."""
    collective, _ = ALGORITHMS[algorithm]
    placement = machine.placement(hosts)
    choice = tuner.choose(
        collective, placement, placement, nbytes, "float32", algorithm=algorithm, protocol=PROTOCOL, network="tcp"
    )
    run = simulate(
        machine,
        hosts,
        collective,
        nbytes,
        algorithm,
        protocol=PROTOCOL,
        channels=choice.channels,
        times=in_a_row(nbytes),
    )
    return run.time_us


def measured_us(hosts: int, algorithm: str, sizes: Sequence[int]) -> list[float]:
    """Our medians between so many hosts, of one collective."""
    collective, devices = ALGORITHMS[algorithm]
    with Network(hosts, RATE).made() as made:
        job = Job(hosts, devices, ("jaxring",), {"JAXRING_ALGO": algorithm, "JAXRING_PROTO": PROTOCOL}, made)
        cases = [Case(collective, "sum", "float32", nbytes, chain=in_a_row(nbytes)) for nbytes in sizes]
        # One by itself, since only its result is checked.
        cases.insert(0, Case(collective, "sum", "float32", CHECKED))
        found = []
        for results, _ in measure(job, cases, ITERATIONS, WARMUP, True, lambda _: None, SECONDS):
            if results[0].wrong or not results[0].times_us:
                raise JaxringError(f"{algorithm} between {hosts} hosts: {results[0].refused or 'wrong results'}.")
            found.append(results[0].median_us / results[0].case.chain)
        return found[1:]


HEADER = "| hosts | algorithm | bytes | measured us | simulated us | difference |\n|---|---|---|---|---|---|"


def row(c: Compared) -> str:
    """In Markdown, under `HEADER`."""
    return (
        f"| {c.hosts} | {c.algorithm} {c.collective} | {shown(c.nbytes)} | {c.measured_us:,.0f} | "
        f"{c.simulated_us:,.0f} | {c.error:+.0%} |"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, simulate, print. Returns 1 where a case is not met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulated", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="DIR", help="folder for simulated.json")
    parser.add_argument("--hosts", default="4,8", metavar="LIST")
    parser.add_argument("--algorithms", default=",".join(ALGORITHMS), metavar="LIST")
    parser.add_argument("--sizes", default=",".join(SIZES), metavar="LIST")
    given = parser.parse_args(argv)
    sizes = [size(text) for text in given.sizes.split(",")]
    given.out.mkdir(parents=True, exist_ok=True)
    compared: list[Compared] = []
    failed = False
    try:
        small = measured_us(2, "ring", [4])[0]
    except JaxringError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    print(f"4 bytes between 2 hosts take {small:.0f} us.\n\n{HEADER}", flush=True)
    for hosts in map(int, given.hosts.split(",")):
        for algorithm in given.algorithms.split(","):
            try:
                times = measured_us(hosts, algorithm, [TINY, *sizes])
            except JaxringError as error:
                failed = True
                print(f"{parser.prog}: {algorithm} between {hosts} hosts: {error}", file=sys.stderr)
                continue
            machine = fitted(cluster(ALGORITHMS[algorithm][1], small), hosts, algorithm, times[0])
            for nbytes, time_us in zip(sizes, times[1:], strict=True):
                ours = simulated_us(machine, hosts, algorithm, nbytes)
                compared.append(Compared(hosts, algorithm, ALGORITHMS[algorithm][0], nbytes, time_us, ours))
                print(row(compared[-1]), flush=True)
            rows = [dataclasses.asdict(each) for each in compared]
            (given.out / "simulated.json").write_text(json.dumps({"small_us": small, "cases": rows}, indent=1) + "\n")
    return int(failed or any(abs(each.error) > TOLERANCE for each in compared))


if __name__ == "__main__":
    with ended_as_by_interrupt():  # or the hosts would stay
        sys.exit(main())
