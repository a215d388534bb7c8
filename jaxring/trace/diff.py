"""Compares the flight records of a job's processes: which process is behind, in which operation, and who was late."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxring.plan import labels
from jaxring.trace.clocks import aligned
from jaxring.trace.lateness import stragglers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring._stragglers import Straggler
    from jaxring.trace.flight import Flight, Record

# So many processes are named.
_NAMED = 16
_MOST = 1 << 20


class Comparison(NamedTuple):
    """``well``: every operation has ended well in every process of the job.

    ``operation`` is the first that has not ended everywhere, "" where all have; ``begun`` are the records of those that
    have begun it, ``behind`` of those that take part and have not. ``missing``: how many processes of the job have no
    record here.
    """

    sentences: list[str]
    well: bool
    operation: str
    begun: list[Flight]
    behind: list[Flight]
    missing: int
    stragglers: list[Straggler]

    def as_json(self) -> dict[str, Any]:
        """For `json.dumps`."""
        processes = {
            name: [{"process": each.process, "pid": each.pid, "host": each.host} for each in flights]
            for name, flights in (("begun", self.begun), ("behind", self.behind))
        }
        late = [dataclasses.asdict(each) for each in self.stragglers]
        return self._asdict() | processes | {"stragglers": late}


def compare(flights: Sequence[Flight]) -> Comparison:
    """Finds the processes that are behind in the first operation that has not ended everywhere; later ones wait for it.

    Processes are compared by the operations' keys, which are the same in all that take part. A process without a record
    is most likely the one that is behind: a process that was killed leaves none. Moments are compared by the clock of
    the first record, as far as the hosts' clocks have been compared.
    """
    flights = [flight for flight, _ in aligned(flights)]
    stuck = _first_stuck(flights)
    holding = stragglers(flights, None if stuck is None else stuck.launched)
    late = [f"{each}" for each in holding]
    count = _processes(flights, stuck)
    missing, names = _missing(flights, count)
    without = f"There is no record of {names} (of {count})" if missing else ""
    if stuck is None:
        ended = ", ".join(f"{flight} {len(flight.records)}" for flight in flights)
        well = f"every operation that was begun has ended well. Operations recorded: {ended}."
        sentences = [f"{without or 'No process is behind'}: {well}", *late]
        return Comparison(sentences, missing == 0, "", [], [], missing, holding)
    inside, outside = _sides(flights, stuck)
    waiting = ", ".join(f"{flight} ({_state(record)})" for flight, record in inside)
    sentences = [
        f"{str(flight)[0].upper()}{str(flight)[1:]} is behind: it has not begun {stuck}, which others have: {waiting}. "
        + _last(flight, stuck)
        for flight in outside
    ]
    taking_part = labels.parse(stuck.label).get("processes")
    known = len({flight.process for flight, _ in inside} | {flight.process for flight in outside})
    if missing and (type(taking_part) is not int or known < taking_part):
        these = "these have" if missing > 1 else "it has"
        sentences.insert(
            0,
            f"{without}: maybe {these} not begun {stuck}, which others have: {waiting}. A process that was killed "
            "leaves a record only with JAXRING_TRACE_DIR; every host has those of its own processes.",
        )
    elif not outside:
        sentences.append(f"All that take part have begun {stuck}: {waiting}.")
        if missing:
            sentences.append(f"{without}, which takes no part in it.")
    begun = [flight for flight, _ in inside]
    return Comparison([*sentences, *late], False, str(stuck), begun, outside, missing, holding)


def _processes(flights: Sequence[Flight], stuck: Record | None) -> int:
    """How many processes should have a record: all of the job, or those that take part where its size is unknown."""
    count = _of_job(flights)
    if count == 0 and stuck is not None:
        found = labels.parse(stuck.label).get("processes")
        count = found if type(found) is int and found < _MOST else 0
    return count


def _of_job(flights: Sequence[Flight]) -> int:
    """How many processes the job has, 0 where no record says it."""
    return max((flight.processes for flight in flights), default=0)


def _missing(flights: Sequence[Flight], count: int) -> tuple[int, str]:
    """How many of `count` processes have no record, and which these are."""
    there = {flight.process for flight in flights if 0 <= flight.process < count}
    missing = count - len(there)
    # A record that does not say whose it is may be that of one of these.
    if missing <= sum(flight.process < 0 for flight in flights):
        return 0, ""
    named = [str(p) for p in itertools.islice((p for p in range(count) if p not in there), _NAMED)]
    if missing == 1:
        return 1, f"process {named[0]}"
    last = named.pop() if missing <= _NAMED else f"{missing - _NAMED} more"
    return missing, f"processes {', '.join(named)} and {last}"


def _first_stuck(flights: Sequence[Flight]) -> Record | None:
    records = [record for flight in flights for record in flight.records if record.state != "done"]
    return min(records, key=lambda record: record.launched, default=None)


def _sides(flights: Sequence[Flight], stuck: Record) -> tuple[list[tuple[Flight, Record]], list[Flight]]:
    """The processes that have begun the operation, with their records, and those that take part and have not."""
    everybody = labels.parse(stuck.label).get("processes") == (_of_job(flights) or len(flights))
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
