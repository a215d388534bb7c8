"""What the code knows of collectives and commands, written into pages of docs/ between two comments.

Of a collective: who gets what, its types, and what each algorithm costs, counted in its schedules. Of the command line:
the options. Of JAXRING_CHECKSUM=oracle: what it does not check. `make format` runs it; a test holds the pages to it.

usage: python -m tools.reference_pages
"""

from __future__ import annotations

import argparse
import re
import string
import sys
import types
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    # The package itself imports the native module, without which the pages are the same.
    package = types.ModuleType("jaxring")
    package.__path__ = [str(ROOT / "jaxring")]
    sys.modules["jaxring"] = package

from jaxring.cli import _parser  # noqa: E402
from jaxring.plan import dtypes  # noqa: E402
from jaxring.plan.algorithms import ALGORITHMS, build, serving  # noqa: E402
from jaxring.plan.collectives import COLLECTIVES, Arguments, Collective, Folded, Moved, Root  # noqa: E402
from jaxring.plan.schedule import Buffer, Schedule, ScheduleError, Spec, Step  # noqa: E402
from jaxring.tracing.unchecked import Unchecked  # noqa: E402
from jaxring.tracing.wire_dtypes import SENT_AS  # noqa: E402
from tools.markdown_lines import wrapped  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGES = ROOT / "docs" / "reference"
INTEGRITY = ROOT / "docs" / "concepts" / "integrity.md"
BEGIN, END = "<!-- written by tools/reference_pages.py -->", "<!-- end -->"
REGION = re.compile(rf"(?<={re.escape(BEGIN)}\n).*?(?={re.escape(END)})", re.DOTALL)
# (processes, devices of each)
LAYOUTS = ((2, 1), (6, 1), (8, 1), (64, 1), (4, 2))
SHOWN_RANKS = 4


def main() -> None:
    """Write the pages."""
    for path, text in pages():
        path.write_text(text, encoding="utf-8")


def pages() -> Iterator[tuple[Path, str]]:
    """The pages with what is written into them."""
    written = {PAGES / f"{name}.md": collective(name) for name in COLLECTIVES}
    for path, text in {**written, PAGES / "cli.md": commands(), INTEGRITY: unchecked()}.items():
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        if not REGION.search(before):
            raise SystemExit(f"{path} needs a place for what is written here: a line {BEGIN} and a line {END}")
        yield path, wrapped(REGION.sub(lambda _, text=text: f"\n{text}\n", before))


def unchecked() -> str:
    """A table of what JAXRING_CHECKSUM=oracle does not check."""
    rows = [["not checked", "because"], *([what.calls, what.why] for what in Unchecked)]
    return markdown(rows)


def collective(name: str) -> str:
    """The sections of a collective's page."""
    return "\n\n".join(["## Who gets what", results(COLLECTIVES[name]), *accepted(COLLECTIVES[name]), *costs(name)])


def results(record: Collective) -> str:
    """A table of operands and results of a few ranks."""
    n = SHOWN_RANKS
    given = Arguments(n, root=0, pairs=tuple((rank, rank + 1) for rank in range(n - 1)))
    letters = string.ascii_lowercase

    def block(rank: int, index: int) -> str:
        return f"{letters[rank]}{index}" if record.blocks_in else letters[rank]

    def shown(source: object) -> str:
        if isinstance(source, Moved):
            return block(source.rank, source.block)
        if isinstance(source, Folded):
            return "+".join(block(rank, source.block) for rank in range(n))
        return "0"

    has = [" ".join(block(rank, i) for i in range(record.in_blocks(n))) for rank in range(n)]
    gets = [" ".join(map(shown, record.results(given, rank))) for rank in range(n)]
    if record.root is Root.SOURCE:
        has[1:] = ["(any)"] * (n - 1)
    about = {Root.NONE: "", Root.SOURCE: ", with `root=0`", Root.TARGET: ", with `root=0`"}[record.root]
    if record.pairs:
        about = f", with `perm={list(given.pairs)}`"
    if record.reduces:
        about += "; `+` stands for the operation"
    rows = [["", *(f"rank {rank}" for rank in range(n))], ["has", *has], ["gets", *gets]]
    same = "All ranks get the same bits." if record.invariant else ""
    begin = (
        "No rank can end before all have begun."
        if record.needs_all
        else "A rank whose part is done may end before others have begun."
    )
    return f"Among {n} ranks{about}:\n\n{markdown(rows)}\n\n{' '.join(filter(None, (same, begin)))}"


def accepted(record: Collective) -> list[str]:
    """Which dtypes it takes, for which operations."""
    names = list(dtypes.DTYPES)
    if not record.reduces:
        others = f"{listed(list(SENT_AS))} travel in a byte each, typed PRNG keys (`jax.random.key`) as their data"
        return ["## Types", f"Any of {listed([*names, *SENT_AS])}, and typed PRNG keys. {others}."]
    reductions = [[f'`"{op}"`', listed([name for name in names if defined(op, name)])] for op in dtypes.REDUCE_OPS]
    wide = [name for name, each in dtypes.DTYPES.items() if each.accumulator_bytes > each.bytes]
    return [
        "## Types",
        markdown([["operation", "dtypes"], *reductions]),
        f"{listed(wide)} accumulate in float32 and are rounded once, at the end.",
    ]


def defined(op: str, name: str) -> bool:
    """Whether a reduction has a meaning for a dtype. The sum of bool counts, in int32."""
    try:
        dtypes.check(op, name)
    except TypeError:
        return (op, name) == ("sum", "bool")
    return True


def costs(name: str) -> list[str]:
    """What each algorithm costs on some layouts."""
    reduces = COLLECTIVES[name].reduces
    head = [f"{processes} x {devices}" for processes, devices in LAYOUTS]
    rows = [["algorithm", "what it is", *head]]
    for algorithm in serving(name):
        record = ALGORITHMS[algorithm]
        cells = []
        for processes, devices in LAYOUTS:
            placement = tuple(process for process in range(processes) for _ in range(devices))
            if (record.hierarchical and devices == 1) or not record.differs(placement):
                cells.append("")
                continue
            perm = tuple((rank, (rank + 1) % len(placement)) for rank in range(len(placement)))
            spec = Spec(name, len(placement), algorithm, placement=placement, perm=perm if name == "permute" else ())
            steps, nbytes = cost(build(spec))
            cells.append(f"{steps}, {nbytes:.3g} S")
        rows.append([f'`"{algorithm}"`', record.summary, *cells])
    return [
        "## Cost",
        "For layouts of processes x devices: how many messages wait for each other, and the bytes that the "
        "busiest rank sends in messages, where S is the bytes of a rank's operand. Ranks of one process send "
        "none: in one process all collectives read and write memory in place. Empty: the algorithm is not a "
        "candidate there, or the same as a simpler one. Counted in the schedules that the engine runs, with one "
        "channel."
        + (" Sums of float8, float16 and bfloat16 travel as float32 while they are incomplete." if reduces else ""),
        markdown(rows),
        "[How algorithms are chosen](../concepts/tuning.md) says what becomes of these numbers.",
    ]


def cost(schedule: Schedule) -> tuple[int, float]:
    """(messages that wait for each other, bytes sent by the busiest rank over the bytes of its operand)."""
    n = schedule.spec.nranks
    lanes = [(rank, index, lane) for rank in range(n) for index, lane in enumerate(schedule.lanes(rank))]
    # Of each chunk that was written, and of each message on its way: the messages that its value has waited for.
    depth: dict[tuple[int, int, Buffer, int], int] = {}
    ways: dict[tuple[int, int, int], deque[int]] = {}
    sent, deepest, idle = [0] * n, 0, 0
    todo = deque((rank, index, lane, 0) for rank, index, lane in lanes)
    while todo:
        rank, index, lane, at = todo.popleft()
        began = at
        while at < len(lane) and all(ways.get((peer, rank, index)) for peer in senders(rank, lane[at])):
            step = lane[at]
            known = [ways[peer, rank, index].popleft() for peer in senders(rank, step)]
            if step.src:
                where = index if step.src.buffer is Buffer.SCRATCH else -1
                known.append(depth.get((rank, where, step.src.buffer, step.src.index), 0))
            value = max(known, default=0)
            if step.dst:
                where = index if step.dst.buffer is Buffer.SCRATCH else -1
                for target in (rank, *(peer.rank for peer in step.send if peer.memory)):
                    depth[target, where, step.dst.buffer, step.dst.index] = value
            for peer in step.send:
                if not peer.memory:
                    ways.setdefault((rank, peer.rank, index), deque()).append(value + 1)
                    sent[rank] += step.message_chunks
                    deepest = max(deepest, value + 1)
            at += 1
        idle = 0 if at > began else idle + 1
        if at < len(lane):
            todo.append((rank, index, lane, at))
            if idle > len(todo):
                raise ScheduleError(f"rank {rank}, lane {index}, step {at} waits for a message that nobody sends")
    return deepest, max(sent) / (schedule.in_blocks * schedule.pieces)


def senders(rank: int, step: Step) -> list[int]:
    """The ranks whose messages a step takes."""
    return [peer.rank for peer in step.recv if not peer.memory and peer.rank != rank]


def commands() -> str:
    """The options of each subcommand."""
    action = next(each for each in _parser()._actions if isinstance(each, argparse._SubParsersAction))
    return "\n\n".join(section for name, parser in action.choices.items() for section in command(name, parser))


def command(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """The sections of one subcommand, and of its own subcommands."""
    yield f"## jaxring {name}"
    yield "\n".join(parser.description.strip().splitlines()[:1]) if parser.description else ""
    rows = [["argument", "meaning"]]
    inner = []
    for each in parser._actions:
        if isinstance(each, argparse._SubParsersAction):
            inner = list(each.choices.items())
        elif each.help is not argparse.SUPPRESS and not isinstance(each, argparse._HelpAction):
            rows.append([f"`{usage(each)}`", explained(each).replace("|", "\\|")])
    if len(rows) > 1:
        yield markdown(rows)
    for other, parser_of_it in inner:
        yield from command(f"{name} {other}", parser_of_it)


def explained(action: argparse.Action) -> str:
    """The help of an argument, with what argparse puts into it."""
    return (action.help or "") % vars(action)


def usage(action: argparse.Action) -> str:
    """An argument as one types it."""
    value = action.metavar or (
        "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    )
    if not action.option_strings:
        return str(value)
    return ", ".join(action.option_strings) + ("" if action.nargs == 0 else f" {value}")


def listed(names: list[str]) -> str:
    """Names as a list in a sentence."""
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else "".join(names)


def markdown(rows: list[list[str]]) -> str:
    """A table."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


if __name__ == "__main__":
    main()
