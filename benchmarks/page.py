"""Writes the benchmark page of what `python -m benchmarks.cpu` measured.

    python -m benchmarks.page docs/benchmarks/cpu docs/benchmarks.md
    python -m benchmarks.page docs/benchmarks/programs docs/benchmarks/programs.md

The same of `python -m benchmarks.programs`. The page's tables, plots and list of losses come from the JSON files alone;
what DIR/notes.md says of them by hand is put below. Plots go beside the files.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
from typing import TYPE_CHECKING, Any

from benchmarks import bars, cpu, programs
from jaxring.bench import report
from jaxring.bench.peers import find, is_ours
from jaxring.bench.programs import PROGRAMS
from jaxring.settings.sizes import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.rows import Row
    from jaxring.bench.run import Result

METHOD = """\
All peers of a table were measured in one run, each in processes of its own on the same work. They take turns of a
tenth of a second at most, in an order shuffled anew each time. Iterations that are shorter than a millisecond are
timed in batches of about that, as nccl-tests times all of its iterations, and in longer ones where a link is shaped
(20 times as long as what it lets pass at once lasts). A turn's first batch (of long ones, its first iteration) does
not count, for any peer, because caches and pages are still those of the peer before. A time is the median over batches
of the slowest process's time for an iteration; in brackets the quartiles. A ratio is the peer's time over ours:
above 1 we are faster. `light` is the share of our time that reading every operand once and writing every result once
would take at the copy bandwidth measured in the same run. Sizes are nccl-tests': bytes per rank of the larger of
operand and result; what one rank has for another in an all-to-all of n ranks is an n-th of it. Results are used as a
program uses them; nothing is donated where the title does not say so. Absolute times depend on the machine and its
day: compare ratios.
"""
OF_PROGRAMS = """\
Plain `jax.jit` over sharded arrays: XLA inserts the collectives. Ours run under `jaxring.install(whole_program=True)`,
the peers' as JAX does it alone. Times are of whole programs, so a ratio has their compute on both sides; `gather`,
`sum`, `transpose` and `roll` do little else than communicate. JAX's MPI backend takes one device a process, so it is
not in the tables of several. What a program's size counts:
"""
# How many times as fast as JAX's Gloo programs are to be between processes: up to a size, and from a size on.
AIMS = ((0, 64 << 10, 5.0), (1 << 20, float("inf"), 3.0))
OF_AIMS = """\
Between processes collectives are to take a fifth of Gloo's time up to 64 KiB, and a third of it from 1 MiB on. Of
{count} rows of collectives alone {missed} miss that:
"""
OF_PROGRAMS_AIMS = """\
Of the {count} rows of whole programs with Gloo {missed} have a smaller ratio. `fft`, `data_parallel`, `fsdp` and
`tensor_parallel` hold compute, which takes both the same time, and where a process has two devices XLA takes about
0.1 ms to start any program:
"""
OF_ALONE = """\
The collectives that XLA inserts into these programs when it compiles them without jaxring, by themselves: the same
shapes, in the same order, each after the one before, the whole list {chain} times in one program. So neither compute
nor what it takes to start a program hides how fast they are.
"""
# Of pages, by the module that measured them.
TITLES = {"benchmarks.cpu": "Benchmarks of the CPU engine", "benchmarks.programs": "Benchmarks of whole programs"}
ROWS = (*cpu.ROWS, *programs.ROWS)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page. Returns 1 where there is nothing to write of."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path, help="with the JSON files")
    parser.add_argument("page", type=pathlib.Path, help="the Markdown file to write")
    given = parser.parse_args(argv)
    rows = [row for row in ROWS if (given.folder / f"{row.name}.json").exists()]
    if not rows:
        print(f"{given.folder} has no files of python -m {' or '.join(TITLES)}.", file=sys.stderr)
        return 1
    given.page.write_text("\n".join(page(rows, given.folder, given.page.parent)).rstrip() + "\n")
    return 0


def page(rows: Sequence[Row], folder: pathlib.Path, beside: pathlib.Path) -> Iterator[str]:
    """The page's lines. Draws the plots, too."""
    path = pathlib.Path(os.path.relpath(folder, beside)).as_posix()
    files = {row.name: folder / f"{row.name}.json" for row in rows}
    data = {name: json.loads(file.read_text()) for name, file in files.items()}
    results = {name: report.load(file) for name, file in files.items()}
    module = data[rows[0].name]["command"][2]
    yield from (f"# {TITLES[module]}", "")
    yield from ("Written by `python -m benchmarks.page`; do not edit.", "", METHOD)
    if rows[0].programs:
        yield OF_PROGRAMS
        yield from (*(f"* `{name}`: {what}" for name, what in PROGRAMS.items()), "")
    yield from _machine(data[rows[0].name])
    yield from ("```", f"python -m {module} --out {folder.as_posix()}", "```", "")
    lost: list[str] = []
    whole, alone = ([row for row in rows if row.alone == each] for each in (False, True))
    for row in whole:
        yield from (f"## {row.title}", "")
        if data[row.name]["date"] != data[rows[0].name]["date"]:
            yield from _machine(data[row.name])
        if wire := data[row.name]["machine"].get("wire"):
            yield from (f"{wire}. `bus` is our bus bandwidth, as nccl-tests count it.", "")
        if row.programs:
            bars.plot(folder / f"{row.name}.png", row.title, results[row.name])
            yield from (f"![{row.title}]({path}/{row.name}.png)", "")
        for collective in row.collectives:
            own = [r for r in results[row.name] if r.case.name == collective]
            copy = data[row.name]["machine"]["copy_gbs"]
            yield from _table(row, own, copy)
            lost += losses(row, own)
            if not row.programs and len({r.case.nbytes for r in own}) > 2:
                plot = f"{row.name}-{collective}.png"
                report.plot(folder / plot, own)
                yield from (f"![{row.title}: {collective}]({path}/{plot})", "")
    if alone:
        yield from ("## The collectives alone", "", OF_ALONE.format(chain=alone[0].chain))
    for row in alone:
        yield from (f"### {row.title}", "", *_machine(data[row.name]), *_table(row, results[row.name]))
        lost += losses(row, results[row.name])
    yield from ("## Where we lose", "")
    yield from lost or ["Nowhere in these tables."]
    if rows[0].programs:
        yield from ("", "## Where we are less than 5 and 3 times as fast as Gloo", "")
        yield from (*_against_gloo(OF_AIMS, alone, results), "", *_against_gloo(OF_PROGRAMS_AIMS, whole, results))
    notes = folder / "notes.md"
    if notes.exists():
        yield from ("", notes.read_text().rstrip())


def _machine(data: dict[str, Any]) -> Iterator[str]:
    machine, versions = data["machine"], data["versions"]
    yield (
        f"{machine['processor']}, {machine['cores']} cores, Linux {machine['kernel']}, copies "
        f"{machine['copy_gbs']:.0f} GB/s. "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + f". Measured on {data['date']}."
    )
    yield ""


def _table(row: Row, results: Sequence[Result], copy_gbs: float = 0.0) -> Iterator[str]:
    """Of one collective or program; of all programs where their collectives run alone."""
    names = [
        name for name in dict.fromkeys(r.peer for r in results) if any(r.times_us for r in results if r.peer == name)
    ]
    base = find(row.peers[0]).ours
    peers = [name for name in names if find(name).ours == base and name != base]
    if not row.alone:
        how = f"{row.dtype}, {row.processes} x {row.devices} ranks"
        more = [f"{row.chain} in a chain" * (row.chain > 1), "donated" * row.inplace]
        more += [f"`{name}={value}`" for name, value in row.environment.items()]
        yield f"`{results[0].case.name}`, {', '.join([how, *filter(None, more)])}. Ours: {find(base).title}."
        yield ""
    titles = [f"{find(name).title} / ours" for name in peers]
    shares = [] if row.programs else ["bus Gbit/s" if row.network else "light"]
    columns = [*["collectives of"] * row.alone, "size", "ours us", *titles, *shares]
    columns.append("collectives" if row.programs else "choice")
    yield f"| {' | '.join(columns)} |"
    yield "|" + "---|" * len(columns)
    for ours in (r for r in results if r.peer == base and r.times_us):
        low, high = ours.spread
        cells = [f"`{ours.case.name}`"] * row.alone
        cells += [shown(ours.case.moved(ours.ranks)), f"{ours.median_us:,.1f} ({low:,.1f}..{high:,.1f})"]
        cells += [_ratio(ours, next(r for r in results if r.peer == name and r.case == ours.case)) for name in peers]
        if shares:
            cells.append(f"{8 * ours.busbw:.3f}" if row.network else f"{ours.light(copy_gbs):.0%}")
        yield "| " + " | ".join([*cells, ours.choice]) + " |"
    yield ""


def _ratio(ours: Result, peer: Result) -> str:
    """The ratio of medians; in brackets what it is between the peer's quartiles."""
    if not peer.times_us:
        return peer.refused
    low, high = (edge / ours.median_us for edge in peer.spread)
    return f"**{peer.median_us / ours.median_us:.2f}** ({low:.2f}..{high:.2f})"


def losses(row: Row, results: Sequence[Result]) -> Iterator[str]:
    """A line for each case in which a peer took less time than we."""
    for peer in results:
        base = find(peer.peer).ours
        ours = next((r for r in results if r.peer == base and r.case == peer.case and r.times_us), None)
        if is_ours(peer.peer) or not peer.times_us or ours is None or peer.median_us >= ours.median_us:
            continue
        yield (
            f"* {row.title}, {'collectives of ' * row.alone}{peer.case.name} of {shown(peer.case.nbytes)}: "
            f"{find(peer.peer).title} takes "
            f"{peer.median_us / ours.median_us:.2f} of our time."
        )


def _against_gloo(text: str, rows: Sequence[Row], results: dict[str, list[Result]]) -> Iterator[str]:
    """``text``, and a table of the rows that miss AIMS."""
    found = [ratio for row in rows for ratio in ratios_to_gloo(row, results[row.name])]
    missed = [line for line, ratio, aim in found if ratio < aim]
    yield text.format(count=len(found), missed=len(missed))
    if missed:
        yield from ("| row | size | Gloo / ours | aim |", "|---|---|---|---|", *missed)


def ratios_to_gloo(row: Row, results: Sequence[Result]) -> Iterator[tuple[str, float, float]]:
    """Of each case with Gloo for which there is an aim: a line of a table, Gloo's time over ours, and the aim."""
    for gloo in results:
        if gloo.peer != "gloo" or not gloo.times_us:
            continue
        ours = next(r for r in results if r.peer == find("gloo").ours and r.case == gloo.case)
        for least, most, aim in AIMS:
            if ours.times_us and least <= gloo.case.nbytes <= most:
                ratio = gloo.median_us / ours.median_us
                size = shown(gloo.case.nbytes)
                yield f"| {row.title}, `{gloo.case.name}` | {size} | {ratio:.2f} | {aim:.0f} |", ratio, aim


if __name__ == "__main__":
    sys.exit(main())
