"""Flight records as a timeline for Perfetto."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jaxring.profiler.perfetto import events
from jaxring.profiler.spans import spans

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.trace.flight import Flight


def timeline(flights: Sequence[Flight]) -> dict[str, Any]:
    """A trace in Chrome's JSON format: a process for each flight, whose name is in its tracks' names.

    What still ran ends with the youngest moment of all. Times count from the oldest moment; clocks of different hosts
    are taken as they are.
    """
    moments = [t for flight in flights for r in flight.records for t in (r.arrived, r.launched, r.ended) if t]
    first, last = min(moments, default=0), max(moments, default=0)
    found: list[dict[str, Any]] = []
    for pid, flight in enumerate(flights):
        found_here = spans(flight.records, last)
        moved = [s._replace(begin_ns=s.begin_ns - first, end_ns=s.end_ns - first) for s in found_here]
        found += events(pid, str(flight), moved, f" of {flight.name()}")
    return {"traceEvents": found}
