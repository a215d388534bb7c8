"""The rows of a benchmark page, each a plot and a table: what is measured, and the command that measures it.

A row's results go to a file of its own, from which `benchmarks.page` writes the page. Peers that are not installed are
named and left out.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import pathlib
import statistics
import sys
from collections.abc import Mapping, Sequence

from jaxring._command import ended_as_by_interrupt
from jaxring.bench import live_rows, peers, report
from jaxring.bench.hosts import Hosts
from jaxring.bench.programs import Program
from jaxring.bench.run import Job, Result
from jaxring.bench.work import Case
from jaxring.errors import JaxringError
from jaxring.settings.sizes import size

# Of a case and a peer: iterations, or seconds if these are over first. With glibc it takes up to seven large results of
# a size until the first one's memory serves again (`jaxring.runtime.freed_memory`).
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
    programs: bool = False  # `collectives` names whole programs
    alone: bool = False  # of these programs only the collectives, `chain` times
    dtype: str = "float32"
    inplace: bool = False
    chain: int = 1
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    network: Network | None = None
    seconds: float = SECONDS

    def cases(self, collective: str) -> Sequence[Case | Program]:
        """Of one collective or program."""
        if self.programs:
            return [Program(collective, size(text), chain=self.chain, alone=self.alone) for text in self.sizes]
        return [
            Case(collective, "sum", self.dtype, size(text), self.inplace, self.chain)
            for text in self.sizes
            if not self.inplace or collective not in ("all_gather", "reduce_scatter")
        ]


def main(module: str, description: str, rows: Sequence[Row], argv: Sequence[str] | None = None) -> int:
    """The command line of ``python -m MODULE``, which measures these rows."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="DIR", help="folder for the rows' files")
    parser.add_argument("--rows", default="", metavar="LIST", help="only these rows, such as 1x8,2x1")
    given = parser.parse_args(argv)
    try:
        with ended_as_by_interrupt():  # or a row's hosts would stay
            return suite(module, rows, given.out, [name for name in given.rows.split(",") if name])
    except JaxringError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1


def suite(module: str, rows: Sequence[Row], folder: pathlib.Path, names: Sequence[str]) -> int:
    """Measures the rows of these names, or all where there are none, and saves each in ``folder``.

    Returns 1 where a result of ours is wrong. JaxringError for a name that no row has, and where a row's hosts cannot
    be made or a job of ours breaks.
    """
    wanted = list(names) or [row.name for row in rows]
    if unknown := set(wanted) - {row.name for row in rows}:
        raise JaxringError(f"No such row: {', '.join(sorted(unknown))}. Rows: {', '.join(row.name for row in rows)}.")
    wrong = 0
    for row in rows:
        if row.name in wanted:
            print(f"\n{row.name}: {row.title} ({wanted.index(row.name) + 1} of {len(wanted)})")
            wrong += _measure(module, row, folder)
    return int(wrong > 0)


def _measure(module: str, row: Row, folder: pathlib.Path) -> int:
    """Elements of our results that are wrong."""
    measured: list[tuple[list[Result], float]] = []
    wire = ""
    with row.network.made() if row.network else contextlib.nullcontext() as hosts:
        job = Job(row.processes, row.devices, peers.with_ours(row.peers), dict(row.environment), hosts)
        live_rows.left_out(sys.stdout, job)
        for collective in row.collectives:
            live_rows.run(
                sys.stdout, job, row.cases(collective), ITERATIONS, WARMUP, True, measured.append, seconds=row.seconds
            )
        if hosts is not None:
            wire = hosts.describe()
    results = [result for found, _ in measured for result in found]
    command = ["python", "-m", module, "--rows", row.name]
    copy_gbs = statistics.median(copy_gbs for _, copy_gbs in measured)
    report.save(folder / f"{row.name}.json", results, copy_gbs, command, wire)
    return sum(result.wrong for result in results if peers.is_ours(result.peer))
