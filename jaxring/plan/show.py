"""Schedules as text: a row per step, a column per rank."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from jaxring.plan.schedule import Buffer, Chunk, Flag, Kind, Lane, Peer, Schedule, Step

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_RANKS = 8  # columns; larger schedules are shown by their first ranks and the last one
MAX_STEPS = 40  # rows per lane
MAX_LANES = 8
_GAP = "  "
_COUNTED_RANKS = 64  # with more ranks the header has only rank 0's counts

_NAMES = {Buffer.INPUT: "in", Buffer.OUTPUT: "out", Buffer.SCRATCH: "tmp"}


def _chunk(chunk: Chunk) -> str:
    return f"{_NAMES.get(chunk.buffer, '?')}[{chunk.index}]"


def _ranks(peers: list[int]) -> str:
    """``1,2,3``; long lists are cut to ``0..63`` if they are a range, else to ``0,2,…,62 (32)``."""
    if len(peers) <= 4:
        return ",".join(map(str, peers))
    if peers == list(range(peers[0], peers[0] + len(peers))):
        return f"{peers[0]}..{peers[-1]}"
    return f"{peers[0]},{peers[1]},…,{peers[-1]} ({len(peers)})"


def show_step(rank: int, step: Step) -> str:
    """One step in compact notation, such as ``recv 3 · fold in[2] → send 1``."""
    if step.flags & Flag.ZERO:
        return f"zero {_chunk(step.dst)}" if step.dst else "zero"
    received = [p.rank for p in step.recv if not p.memory and p.rank != rank]
    peeked = [p.rank for p in step.recv if p.memory]
    if step.kind in (Kind.GATHER, Kind.SPREAD):
        return _grouped(step)
    local = not step.recv or any(p.rank == rank for p in step.recv)
    sources = [f"recv {_ranks(received)}"] if received else []
    if step.src and (local or peeked):
        word = "fold " if step.kind == Kind.REDUCE else ""
        of = f" of {_ranks([p.rank for p in step.recv if p.memory or p.rank == rank])}" if peeked else ""
        sources.append(f"{word}{_chunk(step.src)}{of}")
    sent = [p.rank for p in step.send if not p.memory]
    written = [p.rank for p in step.send if p.memory]
    targets = []
    if step.dst:
        targets.append(_chunk(step.dst) + (f" and of {_ranks(written)}" if written else ""))
    if sent:
        targets.append(f"send {_ranks(sent)}")
    applied = ", epilogue" if step.flags & Flag.EPILOGUE else ""
    done = f" (final{applied})" if step.flags & Flag.FINAL else ""
    return " · ".join(sources) + " → " + ", ".join(targets) + done


def _grouped(step: Step) -> str:
    more = "" if step.parts == 1 else " and the next" if step.parts == 2 else f" and the next {step.parts - 1}"
    if step.kind == Kind.GATHER and step.src:
        return f"gather {_chunk(step.src)}{more} of {_ranks([p.rank for p in step.recv])} → send {step.send[0].rank}"
    written = f" and of {_ranks([p.rank for p in step.send])}" if step.send else ""
    return f"recv {step.recv[0].rank} → {_chunk(step.dst) if step.dst else ''}{more}{written}"


def _counts(lanes: tuple[Lane, ...], rank: int) -> tuple[int, int]:
    """(messages sent, chunks moved to and from other ranks by messages sent and by memory read and written)."""
    sent = moved = 0

    def foreign(peer: Peer) -> bool:
        return peer.memory and peer.rank != rank

    for lane in lanes:
        for step in lane:
            messages = sum(not p.memory for p in step.send)
            sent += messages
            by_memory = sum(map(foreign, (*step.send, *step.recv)))
            moved += messages * step.message_chunks + max(1, step.parts) * by_memory
    return sent, moved


def header(schedule: Schedule) -> str:
    """One line: collective, algorithm, ranks, lanes, pieces, messages per rank, chunks moved."""
    spec = schedule.spec
    ranks = range(spec.nranks) if spec.nranks <= _COUNTED_RANKS else range(1)
    counts = [_counts(schedule.lanes(rank), rank) for rank in ranks]
    sent = [count for count, _ in counts]
    moved = sum(count for _, count in counts)
    messages = f"{min(sent)}" if min(sent) == max(sent) else f"{min(sent)}..{max(sent)}"
    if len(counts) == spec.nranks:
        traffic = f"{messages} messages per rank, {moved} chunks moved"
    else:
        traffic = f"rank 0: {messages} messages, {moved} chunks moved"
    return (
        f"{spec.collective} · {spec.algorithm} · {spec.nranks} ranks · {schedule.nlanes} lanes · "
        f"{schedule.pieces} pieces · {traffic}"
    )


def show(schedule: Schedule, width: int = 0, ranks: Sequence[int] = (), lanes: Sequence[int] = ()) -> str:
    """One tile's steps on these ranks, in these lanes; none: on all. A rank that does nothing in a lane is left out.

    Without a choice ranks are cut at MAX_RANKS and lanes at MAX_LANES; the steps of a lane are cut at MAX_STEPS. Lines
    have at most ``width`` characters, where one rank's steps take no more: ranks that do not fit beside the others
    follow below them. 0: all stand beside each other. Raises ValueError for a rank or a lane that there is not.
    """
    n = schedule.spec.nranks
    for what, given, count in (("rank", ranks, n), ("lane", lanes, schedule.nlanes)):
        wrong = [each for each in given if not 0 <= each < count]
        if wrong:
            raise ValueError(f"{what} {wrong[0]} is none of the schedule's, which are 0 to {count - 1}")
    cut = n > MAX_RANKS and not ranks
    ranks = ranks or (list(range(n)) if n <= MAX_RANKS else [*range(MAX_RANKS - 2), n - 1])
    programs = [schedule.lanes(rank) for rank in ranks]
    lines = textwrap.wrap(header(schedule), width) if width else [header(schedule)]
    for index in lanes or range(min(schedule.nlanes, MAX_LANES)):
        depth = max(len(program[index]) for program in programs)
        shown = min(depth, MAX_STEPS)
        columns = [["step", *map(str, range(shown))]]
        for rank, program in zip(ranks, programs, strict=True):
            if cut and rank == n - 1:
                columns.append(["…"] * (shown + 1))
            if program[index]:
                cells = [show_step(rank, step) for step in program[index][:shown]]
                columns.append([f"rank {rank}", *cells, *[""] * (shown - len(cells))])
        lines += ["", f"lane {index}"]
        lines += "\n\n".join(map(_aligned, _blocks(columns, width))).split("\n")
        if depth > shown:
            lines.append(f"… and {depth - shown} more steps")
    if schedule.nlanes > MAX_LANES and not lanes:
        lines += ["", f"… and {schedule.nlanes - MAX_LANES} more lanes"]
    return "\n".join(lines)


def _width(column: list[str]) -> int:
    return max(map(len, column))


def _blocks(columns: list[list[str]], width: int) -> Iterator[list[list[str]]]:
    """The columns in parts that fit, each with the first one, which names the rows."""
    first, block, used = columns[0], [columns[0]], _width(columns[0])
    for column in columns[1:]:
        needs = len(_GAP) + _width(column)
        if width and len(block) > 1 and used + needs > width:
            yield block
            block, used = [first], _width(first)
        block.append(column)
        used += needs
    yield block


def _aligned(columns: list[list[str]]) -> str:
    widths = [*map(_width, columns)]
    return "\n".join(
        _GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in zip(*columns, strict=True)
    )
