"""Flight records as a timeline for Perfetto."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jaxring.profiler.perfetto import events
from jaxring.profiler.spans import spans
from jaxring.trace.clocks import aligned
from jaxring.trace.lateness import stragglers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.trace.flight import Flight


def timeline(flights: Sequence[Flight]) -> dict[str, Any]:
    """A trace in Chrome's JSON format: a process for each flight, whose name is in its tracks' names.

    What still ran ends with the youngest moment of all. Times count from the oldest moment, by the clock of the first
    flight; the name of a process's track says how exactly its clock is known, where that is another one. Who holds the
    others up is an instant on its track, at the end.
    """
    named = {each.process: each for each in stragglers(flights)}
    exact = aligned(flights)
    flights = [flight for flight, _ in exact]
    moments = [t for flight in flights for r in flight.records for t in (r.arrived, r.launched, r.ended) if t]
    first, last = min(moments, default=0), max(moments, default=0)
    found: list[dict[str, Any]] = []
    for pid, (flight, error) in enumerate(exact):
        found_here = spans(flight.records, last)
        moved = [s._replace(begin_ns=s.begin_ns - first, end_ns=s.end_ns - first) for s in found_here]
        found += events(pid, str(flight) + _clock(error), moved, f" of {flight.name()}")
        if flight.name() in named:
            late = named[flight.name()]
            moment = {"ph": "i", "s": "p", "pid": pid, "tid": 0, "ts": (last - first) / 1000}
            found.append({**moment, "name": f"comes late: {late.cause}", "args": {"why": str(late)}})
    return {"traceEvents": found}


def _clock(error: int | None) -> str:
    if error is None:
        return ", by its host's own clock"
    return f", clock exact to {error / 1e6:.2g} ms" if error else ""
