"""What each call of a program takes, from the whole flight records of its processes, and the time lost waiting."""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics
from typing import TYPE_CHECKING, Any

from jaxring.plan import labels
from jaxring.trace.clocks import aligned
from jaxring.trace.recorded_calls import Call, about

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jaxring.trace.flight import Flight, Record


@dataclasses.dataclass(frozen=True)
class Site(Call):
    """One call of the program, over the operations that are recorded and have ended well.

    ``median_us``, ``p99_us``: from launch to end, over all processes; ``busbw`` is at the median. ``lost_us``: from a
    process's launch to that of the last one, summed over executions and processes, where each waits for all others;
    ``latest_us``: how much of it was lost for ``latest``, for which most was. ``failed``: operations that failed, which
    count nowhere else.
    """

    failed: int
    median_us: float
    p99_us: float
    lost_us: float
    latest_us: float


def sites(flights: Sequence[Flight]) -> list[Site]:
    """The calls in these records, those that took most of the time first."""
    by_call: dict[str, dict[str, list[Record]]] = collections.defaultdict(lambda: collections.defaultdict(list))
    launches: dict[tuple[int, int], dict[str, tuple[int, int]]] = collections.defaultdict(dict)
    calls: dict[tuple[int, int], str] = {}
    for flight, error in aligned(flights):
        for record in flight.records:
            if record.ended:
                by_call[record.what][flight.name()].append(record)
            if record.state == "done" and error is not None and labels.synchronises(record.label):
                launches[record.key, record.sequence][flight.name()] = (record.launched, error)
                calls[record.key, record.sequence] = record.what
    lost: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for execution, of_it in launches.items():
        latest, waited = _lost(of_it)
        lost[calls[execution]][latest] += waited
    found = [_site(by_process, lost[what]) for what, by_process in by_call.items()]
    return sorted(found, key=lambda site: -site.median_us * site.executions)


def _lost(launches: dict[str, tuple[int, int]]) -> tuple[str, int]:
    """Who came last to an execution, and how long the others have waited for it together, in ns: waits that are longer
    than the clocks may differ."""
    latest = max(launches, key=lambda name: launches[name])
    last, error = launches[latest]
    waits = ((last - launched, error + own) for name, (launched, own) in launches.items() if name != latest)
    return latest, sum(wait for wait, exact in waits if wait > exact)


def _site(by_process: dict[str, list[Record]], lost: collections.Counter[str]) -> Site:
    records = [record for of_it in by_process.values() for record in of_it]
    well = [record for record in records if record.state == "done"]
    times = sorted((record.ended - record.launched) / 1e3 for record in well)
    median = statistics.median(times) if times else 0.0
    latest, most = max(lost.items(), key=lambda item: item[1], default=("", 0))
    return Site(
        **about(records, median),
        executions=max(sum(record.state == "done" for record in of_it) for of_it in by_process.values()),
        latest=latest if most else "",
        failed=len(records) - len(well),
        median_us=median,
        p99_us=times[math.ceil(0.99 * len(times)) - 1] if times else 0.0,
        lost_us=lost.total() / 1e3,
        latest_us=most / 1e3,
    )


def as_json(found: Iterable[Site]) -> list[dict[str, Any]]:
    """For `json.dumps`."""
    return [dataclasses.asdict(site) for site in found]
