"""A recorded run as a trace for Perfetto: a process for each rank with a track for each lane, and the critical path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jaxring.profiler.perfetto import events
from jaxring.profiler.spans import Span

if TYPE_CHECKING:
    from jaxring.simulate.history import Record


def timeline(record: Record) -> dict[str, Any]:
    """The trace in Chrome's JSON format. Times count from the beginning of the run."""
    lanes = record.program.lanes
    found: list[dict[str, Any]] = []
    by_rank: dict[int, list[Span]] = {}
    for step in record.steps:
        lane = lanes[step.lane]
        arguments: dict[str, str | int] = {"tile": step.tile}
        if step.message >= 0:
            message = record.messages[step.message]
            arguments |= {"waited for rank": record.program.connections[message.connection][0]}
        name = f"step {step.number}"
        by_rank.setdefault(lane.rank, []).append(_span(name, step.begin, step.end, lane.number, arguments))
    for rank, spans in sorted(by_rank.items()):
        found += events(rank, f"rank {rank}", spans, f" of rank {rank}")
    path = [_span(f"{p.kind}: {p.what}", p.begin, p.end, 0, {}) for p in record.critical_path()]
    found += events(len(record.program.schedule.spec.placement), "critical path", path, " of the critical path")
    return {"traceEvents": found}


def _span(name: str, begin: float, end: float, line: int, arguments: dict[str, str | int]) -> Span:
    return Span(name, round(begin * 1000), round(end * 1000), line, arguments)
