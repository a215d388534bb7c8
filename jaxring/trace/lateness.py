"""Finds who holds the others up, in flight records."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

from jaxring._stragglers import KEPT, Arrival, Execution, Straggler, find
from jaxring.plan import labels
from jaxring.trace.clocks import aligned

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jaxring.trace.flight import Flight, Record

_RECORDS = 2048


def stragglers(flights: Sequence[Flight], until: int | None = None) -> list[Straggler]:
    """Those that hold others up at the end of these records, the worst first.

    With ``until`` records launched later are left out (ns since 1970, by the first record's clock). Processes whose
    clock nothing has compared with the first one's are left out.
    """
    by_execution: dict[tuple[int, int], dict[str, Arrival]] = collections.defaultdict(dict)
    calls: dict[tuple[int, int], str] = {}
    samples = {}
    synchronising: dict[str, bool] = {}
    for flight, error in aligned(flights):
        if error is None:
            continue
        samples[flight.name()] = flight.samples
        for record, idle in _with_idle(flight.records[-_RECORDS:]):
            if until is not None and record.launched > until:
                continue
            if record.label not in synchronising:
                synchronising[record.label] = labels.synchronises(record.label)
            if not synchronising[record.label]:
                continue
            execution = (record.key, record.sequence)
            by_execution[execution][flight.name()] = Arrival(record.launched, idle, error)
            calls[execution] = record.what
    together = [Execution(calls[each], arrivals) for each, arrivals in by_execution.items() if len(arrivals) > 1]
    together.sort(key=lambda each: min(a.launched for a in each.arrivals.values()))
    kept: collections.Counter[str] = collections.Counter()
    last = []
    for each in reversed(together):
        kept[each.call] += 1
        if kept[each.call] <= KEPT:
            last.append(each)
    begin = last[-1].arrivals if last else {}
    since = min((a.launched for a in begin.values()), default=0)
    recent = {
        name: [s for s in of_it if s.at >= since and (until is None or s.at <= until + 10**9)]
        for name, of_it in samples.items()
    }
    return find(reversed(last), recent, {flight.name(): flight.host for flight in flights})


def _with_idle(records: Iterable[Record]) -> Iterable[tuple[Record, int]]:
    """Each record, and how long before its launch the last operation had ended that ended before: -1, not known."""
    ended: list[int] = []
    for record in records:
        before = [end for end in ended if end <= record.launched]
        yield record, (record.launched - max(before) if before else -1)
        if record.ended:
            ended = [*ended[-15:], record.ended]
