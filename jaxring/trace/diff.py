"""Compares the flight records of a job's processes: who is behind whom, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxring.profiler.spans import plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.trace.flight import Flight, Record


def compare(flights: Sequence[Flight]) -> list[str]:
    """Sentences. The first operation that did not end everywhere is what the others wait behind, so it is told.

    Processes are compared by the operations' keys, which are the same in all that take part.
    """
    stuck = _first_stuck(flights)
    if stuck is None:
        ended = ", ".join(f"{flight} {len(flight.records)}" for flight in flights)
        return [f"Nobody is behind: every operation that was begun has ended well. Operations recorded: {ended}."]
    inside, outside = _sides(flights, stuck)
    waiting = ", ".join(f"{flight} ({_state(record)})" for flight, record in inside)
    if not outside:
        return [f"All that take part have begun {stuck}: {waiting}."]
    return [
        f"{str(flight)[0].upper()}{str(flight)[1:]} is behind: it has not begun {stuck}, which others have: {waiting}. "
        + _last(flight, stuck)
        for flight in outside
    ]


def _first_stuck(flights: Sequence[Flight]) -> Record | None:
    records = [record for flight in flights for record in flight.records if record.state != "done"]
    return min(records, key=lambda record: record.launched, default=None)


def _sides(flights: Sequence[Flight], stuck: Record) -> tuple[list[tuple[Flight, Record]], list[Flight]]:
    """Who has begun it, with their records; and who takes part and has not."""
    everybody = plan(stuck.label).get("processes") == len(flights)
    inside, outside = [], []
    for flight in flights:
        mine = next((record for record in flight.records if record.key == stuck.key), None)
        if mine is not None:
            inside.append((flight, mine))
        elif everybody or any(record.what == stuck.what for record in flight.records):
            outside.append(flight)
    return inside, outside


def _state(record: Record) -> str:
    if record.state == "running":
        return "still in it"
    return f"{record.state} after {(record.ended - record.launched) / 1e9:.3g} s"


def _last(flight: Flight, stuck: Record) -> str:
    if not flight.records:
        return "It has begun no operation at all."
    last = flight.records[-1]
    if last.state == "running":
        return f"It is still in {last}."
    apart = (last.ended - stuck.launched) / 1e9
    when = f"{abs(apart):.3g} s {'after' if apart > 0 else 'before'} the others began"
    return f"Its last operation was {last}, {last.state} {when}."
