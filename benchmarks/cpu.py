"""The measurements of docs/benchmarks.md, a file for each row of its plots and tables.

    python -m benchmarks.cpu --out DIR
    python -m benchmarks.page DIR docs/benchmarks.md

Rows are what the project promises of its CPU engine. Peers that are not installed are named and left out. Exits with 1
where a result of ours is wrong, or a row cannot be measured.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import pathlib
import statistics
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from jaxring.bench import peers, report, show
from jaxring.bench.hosts import Hosts
from jaxring.bench.run import Job, Result
from jaxring.bench.work import Case
from jaxring.errors import JaxringError
from jaxring.settings.sizes import size

if TYPE_CHECKING:
    from collections.abc import Sequence

SMALL = ("4", "64", "1K")
MIDDLE = ("4K", "16K", "64K", "256K", "1M")
LARGE = ("4M", "16M", "64M")
BETWEEN = ("gloo", "mpi", "mpi4jax", "torch")
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
# The malloc settings that JAXRING_KEEP_BYTES makes by default, here for all peers.
KEPT = {"GLIBC_TUNABLES": f"glibc.malloc.mmap_threshold={65 << 20}:glibc.malloc.trim_threshold={260 << 20}"}
# Threads of one process, as XLA has for its devices, keep less memory than that in heaps of their own.
ONE_HEAP = {"MALLOC_ARENA_MAX": "1"}
# Of a case and a peer: iterations, or seconds if these are over first. With glibc it takes up to seven large results of
# a size until the first one's memory serves again (`jaxring.runtime.memory`).
ITERATIONS, SECONDS, WARMUP = 240, 1.5, 10


@dataclasses.dataclass(frozen=True)
class Network:
    """What joins a row's hosts, as `jaxring bench --hosts` makes it."""

    hosts: int
    rate: str
    links: int = 1
    # The usual one of hosts that nobody has tuned is cubic; bbr, where it is the default, takes much of a core.
    congestion: str = "reno"

    def made(self) -> Hosts:
        """To be entered."""
        return Hosts(self.hosts, self.links, self.rate, self.congestion)


@dataclasses.dataclass(frozen=True)
class Row:
    """A plot and a table of the page."""

    name: str
    title: str
    processes: int
    devices: int
    collectives: tuple[str, ...]
    sizes: tuple[str, ...]
    peers: tuple[str, ...]
    dtype: str = "float32"
    inplace: bool = False
    chain: int = 1
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    network: Network | None = None

    def cases(self, collective: str) -> list[Case]:
        """Of one collective."""
        return [
            Case(collective, "sum", self.dtype, size(text), self.inplace, self.chain)
            for text in self.sizes
            if not self.inplace or collective not in ("all_gather", "reduce_scatter")
        ]


OTHERS = ("all_gather", "reduce_scatter", "all_to_all", "permute")
ROWS = tuple(
    [
        Row("1x8", "One process, 8 devices", 1, 8, ("all_reduce",), (*SMALL, *MIDDLE, *LARGE), ("xla",)),
        Row("1x2", "One process, 2 devices", 1, 2, ("all_reduce",), ("1K", "64K", "1M", "16M", "64M"), ("xla",)),
        Row("1x8-donated", "Operands donated", 1, 8, ("all_reduce",), ("1M", "16M", "64M"), ("xla",), inplace=True),
        Row("1x8-bf16", "bfloat16", 1, 8, ("all_reduce",), ("64K", "1M", "16M"), ("xla",), dtype="bfloat16"),
        Row("1x8-others", "Other collectives", 1, 8, OTHERS, ("1K", "64K", "1M", "16M", "64M"), ("xla",)),
        Row(
            "1x8-one-heap",
            "One heap for all threads",
            1,
            8,
            ("all_reduce",),
            ("1M", "16M", "64M"),
            ("xla",),
            environment=ONE_HEAP,
        ),
        Row("1x8-chain", "64 dependent ones in a program", 1, 8, ("all_reduce",), ("64", "1K"), ("xla",), chain=64),
    ]
    + [Row(f"{n}x1", f"{n} processes", n, 1, ("all_reduce",), (*SMALL, *MIDDLE, *LARGE), BETWEEN) for n in (2, 4)]
    + [
        Row(f"{n}x1-chain", f"{n} processes, 64 in a program", n, 1, ("all_reduce",), ("64", "1K"), BETWEEN, chain=64)
        for n in (2, 4)
    ]
    + [
        Row(
            f"{n}x1-{name}",
            f"{n} processes, {title}",
            n,
            1,
            ("all_reduce",),
            ("64K", "1M", "16M", "64M"),
            BETWEEN,
            environment=environment,
        )
        for name, title, environment in (
            ("huge-pages", "huge pages for every peer's malloc", HUGE_PAGES),
            ("kept", "every peer's malloc keeps what is freed", KEPT),
        )
        for n in (2, 4)
    ]
    + [
        Row(
            f"{n}x1-numpy",
            f"{n} processes, NumPy buffers",
            n,
            1,
            ("all_reduce",),
            (*SMALL, *MIDDLE, *LARGE),
            ("raw-mpi", "raw-mpich"),
        )
        for n in (2, 4)
    ]
    + [
        Row("1x16", "16 devices of one process", 1, 16, ("all_reduce",), ("1K", "64K", "1M"), ("xla",)),
        Row("1x64", "64 devices of one process", 1, 64, ("all_reduce",), ("1K", "64K", "1M"), ("xla",)),
        Row("16x1", "16 processes", 16, 1, ("all_reduce",), ("1K", "64K", "1M"), ("gloo", "mpi")),
    ]
    + [
        Row(
            f"{n}-hosts-{rate}",
            f"{n} hosts, {rate} links",
            n,
            1,
            ("all_reduce",),
            ("4", "1K", "16K", "64K", "1M", "16M", "64M"),
            ("gloo", "mpi", "torch"),
            network=Network(n, rate),
        )
        for n, rate in ((2, "1gbit"), (2, "10gbit"), (4, "10gbit"))
    ]
    + [
        Row(
            "2-hosts-two-links",
            "2 hosts, two links of 1gbit",
            2,
            1,
            ("all_reduce",),
            ("16M", "64M"),
            ("gloo",),
            environment={"JAXRING_SOCKET_IFNAME": ",".join(Hosts.device(network) for network in range(2))},
            network=Network(2, "1gbit", links=2),
        ),
        Row(
            "4-hosts-pxn",
            "4 hosts of 2 devices, 10gbit links: PXN, and direct",
            4,
            2,
            ("all_to_all",),
            # What one rank has for another is an eighth of it: 4 bytes to 64 KiB.
            ("32", "512", "4K", "8K", "16K", "32K", "64K", "128K", "512K"),
            ("jaxring:JAXRING_ALGO=direct",),
            environment={"JAXRING_ALGO": "pxn"},
            network=Network(4, "10gbit"),
        ),
    ]
)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="DIR", help="folder for the rows' files")
    parser.add_argument("--rows", default="", metavar="LIST", help="only these rows, such as 1x8,2x1")
    given = parser.parse_args(argv)
    try:
        return suite(given.out, [name for name in given.rows.split(",") if name])
    except JaxringError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1


def suite(folder: pathlib.Path, names: Sequence[str]) -> int:
    """Measures the rows of these names, or all where there are none, and saves each in ``folder``.

    Returns 1 where a result of ours is wrong. JaxringError for a name that no row has, and where a row's hosts cannot
    be made or a job of ours breaks.
    """
    wanted = list(names) or [row.name for row in ROWS]
    if unknown := set(wanted) - {row.name for row in ROWS}:
        raise JaxringError(f"No such row: {', '.join(sorted(unknown))}. Rows: {', '.join(row.name for row in ROWS)}.")
    wrong = 0
    for row in ROWS:
        if row.name in wanted:
            print(f"\n{row.name}: {row.title} ({wanted.index(row.name) + 1} of {len(wanted)})")
            wrong += _measure(row, folder)
    return int(wrong > 0)


def _measure(row: Row, folder: pathlib.Path) -> int:
    """Elements of our results that are wrong."""
    measured: list[tuple[list[Result], float]] = []
    wire = ""
    with row.network.made() if row.network else contextlib.nullcontext() as hosts:
        job = Job(row.processes, row.devices, peers.with_ours(row.peers), dict(row.environment), hosts)
        show.left_out(sys.stdout, job)
        for collective in row.collectives:
            show.run(sys.stdout, job, row.cases(collective), ITERATIONS, WARMUP, True, measured.append, seconds=SECONDS)
        if hosts is not None:
            wire = hosts.describe()
    results = [result for found, _ in measured for result in found]
    command = ["python", "-m", "benchmarks.cpu", "--rows", row.name]
    copy_gbs = statistics.median(copy_gbs for _, copy_gbs in measured)
    report.save(folder / f"{row.name}.json", results, copy_gbs, command, wire)
    return sum(result.wrong for result in results if peers.is_ours(result.peer))


if __name__ == "__main__":
    sys.exit(main())
