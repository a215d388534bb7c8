"""What a job does now, from the flight records of its processes: rates, times, and who comes late.

Two looks at the records make a view of the time between them. The records are those of the processes of this host or,
with `jaxring top --from`, of all hosts, whose moments are brought to one clock.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING, Any

from jaxring.trace.clocks import aligned
from jaxring.trace.lateness import stragglers
from jaxring.trace.recorded_calls import Call, about

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jaxring._stragglers import Straggler
    from jaxring.trace.flight import Flight, Record


@dataclasses.dataclass(frozen=True)
class Process:
    """One process in a view. Times are microseconds, means of an operation.

    ``operations``: that have ended; ``per_second``: of them. ``in_collectives``: the share of the time in which at
    least one ran. ``waited_us``: from its own launch to the last process's, where others came later. ``late_us``: from
    the first process's launch to its own. ``last``: the share of operations with other processes to which it came last.
    ``running``: the oldest operation that runs, and since how many seconds, or "" and 0. ``newest``: the operation that
    it launched last, with its line, whether it runs or has ended. ``waits_for``: the process that came last most often
    where this one came before, or "". ``resumable``: of the
    connections that it has dialled, those that can go on over another path; ``detours``: those that do so now, or are
    lost.
    """

    name: str
    pid: int
    operations: int
    per_second: float
    in_collectives: float
    waited_us: float
    late_us: float
    last: float
    running: str
    running_s: float
    resumable: int = 0
    detours: int = 0
    newest: str = ""
    waits_for: str = ""


@dataclasses.dataclass(frozen=True)
class LiveCall(Call):
    """One call of the program in a view. ``us``: mean time from launch to end, at which ``busbw`` is; ``per_second``:
    executions; ``latest_share``: in which share of the executions ``latest`` came last."""

    per_second: float
    us: float
    latest_share: float


@dataclasses.dataclass(frozen=True)
class View:
    """A job over ``seconds``: the processes that are seen, its calls, those that took most of the time first, and the
    processes that hold the others up."""

    job: str
    seconds: float
    processes: tuple[Process, ...]
    calls: tuple[LiveCall, ...]
    stragglers: tuple[Straggler, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """For `json.dumps`."""
        return dataclasses.asdict(self)


def view(job: str, before: Iterable[Flight], after: Sequence[Flight], begin_ns: int, end_ns: int) -> View:
    """The time from ``begin_ns`` to ``end_ns`` (ns since 1970), when ``before`` and ``after`` were read."""
    late = tuple(stragglers(after))
    after = [flight for flight, _ in aligned(after)]
    known = {flight.name(): max((r.number for r in flight.records), default=0) for flight in before}
    # What ran at the first look may have ended since: by its end it is of this view.
    ended = {flight.name(): _ended(flight, known.get(flight.name(), 0), begin_ns) for flight in after}
    # A record holds the last 4096 operations: for those that newer ones have pushed out the others stand.
    scale = {flight.name(): _scale(flight, known.get(flight.name(), 0)) for flight in after}
    launches: dict[tuple[int, int], dict[str, int]] = collections.defaultdict(dict)
    for flight in after:
        for record in ended[flight.name()]:
            launches[record.key, record.sequence][flight.name()] = record.launched
    together = {execution: by_process for execution, by_process in launches.items() if len(by_process) > 1}
    seconds = max(end_ns - begin_ns, 1) / 1e9
    return View(
        job,
        seconds,
        tuple(
            _process(flight, ended[flight.name()], scale[flight.name()], together, seconds, begin_ns, end_ns)
            for flight in after
        ),
        _calls(ended, scale, together, seconds),
        late,
    )


def _process(
    flight: Flight,
    ended: Sequence[Record],
    scale: float,
    together: dict[tuple[int, int], dict[str, int]],
    seconds: float,
    begin_ns: int,
    end_ns: int,
) -> Process:
    shared = [by_process for execution, by_process in together.items() if flight.name() in by_process]
    waited = [max(by_process.values()) - by_process[flight.name()] for by_process in shared]
    late = [by_process[flight.name()] - min(by_process.values()) for by_process in shared]
    awaited = collections.Counter(
        last
        for by_process in shared
        if by_process[last := max(by_process, key=lambda name: by_process[name])] > by_process[flight.name()]
    )
    newest = max(flight.records, key=lambda r: r.number, default=None)
    running = min((r for r in flight.records if not r.ended), key=lambda r: r.launched, default=None)
    ran = [*ended, running] if running else ended
    spans = [(max(r.launched, begin_ns), min(r.ended or end_ns, end_ns)) for r in ran]
    return Process(
        flight.name(),
        flight.pid,
        round(len(ended) * scale),
        len(ended) * scale / seconds,
        _covered(spans) / 1e9 / seconds,
        _mean(waited) / 1e3,
        _mean(late) / 1e3,
        sum(moment > 0 and waits == 0 for moment, waits in zip(late, waited, strict=True)) / max(1, len(shared)),
        str(running) if running else "",
        max(0.0, (end_ns - running.launched) / 1e9) if running else 0.0,
        *((flight.samples[-1].resumable, flight.samples[-1].detours) if flight.samples else (0, 0)),
        str(newest) if newest else "",
        awaited.most_common(1)[0][0] if awaited else "",
    )


def _calls(
    ended: dict[str, list[Record]],
    scale: dict[str, float],
    together: dict[tuple[int, int], dict[str, int]],
    seconds: float,
) -> tuple[LiveCall, ...]:
    # An operation's key is that of one execution; executions of one call share its text.
    by_call: dict[str, dict[str, list[Record]]] = collections.defaultdict(lambda: collections.defaultdict(list))
    last: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for name, each in ended.items():
        for record in each:
            by_call[record.what][name].append(record)
            launches = together.get((record.key, record.sequence))
            if launches and max(launches, key=lambda other: launches[other]) == name:
                last[record.what][name] += 1
    found = []
    for what, by_process in by_call.items():
        name, records = max(by_process.items(), key=lambda item: len(item[1]))
        executions = len(records) * scale[name]
        us = _mean([r.ended - r.launched for each in by_process.values() for r in each]) / 1e3
        latest = last[what].most_common(1)
        found.append(
            LiveCall(
                **about(records, us),
                executions=round(executions),
                latest=latest[0][0] if latest else "",
                per_second=executions / seconds,
                us=us,
                latest_share=latest[0][1] / last[what].total() if latest else 0.0,
            )
        )
    return tuple(sorted(found, key=lambda call: -call.us * call.per_second))


def _ended(flight: Flight, known: int, begin_ns: int) -> list[Record]:
    return [r for r in flight.records if r.ended and (r.number > known or r.ended > begin_ns)]


def _scale(flight: Flight, known: int) -> float:
    """How many operations were begun since the one numbered ``known``, for each of them that is still recorded."""
    since = [r.number for r in flight.records if r.number > known]
    return (max(since) - known) / len(since) if since else 1.0


def _covered(spans: list[tuple[int, int]]) -> int:
    """The length of the union of spans."""
    covered, until = 0, 0
    for begin, end in sorted(spans):
        covered += max(0, end - max(begin, until))
        until = max(until, end)
    return covered


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values) if values else 0.0
