"""What a job does now, from the flight records of its processes on this host: rates, times, and who comes late.

Two looks at the records make a view of the time between them. The processes of a host have one clock, so their moments
can be compared; processes of other hosts are not seen.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING, Any

from jaxring.plan.collectives import COLLECTIVES
from jaxring.profiler.spans import plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jaxring.trace.flight import Flight, Record


@dataclasses.dataclass(frozen=True)
class Process:
    """One process in a view. Times are microseconds, means of an operation.

    ``operations``: that have ended; ``per_second``: of them. ``in_collectives``: the share of the time in which at
    least one ran. ``waited_us``: from its own launch to the last process's, where others came later. ``late_us``: from
    the first process's launch to its own. ``last``: the share of operations with other processes to which it came last.
    ``running``: the oldest operation that runs, and since how many seconds, or "" and 0.
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


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of the program in a view. ``nbytes``: of a rank's input. ``us``: mean time from launch to end;
    ``per_second``: executions; ``busbw``: GB/s as nccl-tests counts it, while it runs; ``latest``: the process that
    came last most often, and in which share of the executions, where several processes of this host take part."""

    what: str
    nbytes: int
    ranks: int
    processes: int
    way: str
    executions: int
    per_second: float
    us: float
    busbw: float
    latest: str
    latest_share: float


@dataclasses.dataclass(frozen=True)
class View:
    """A job over ``seconds``: its processes on this host, and its calls, those that took most of the time first."""

    job: str
    seconds: float
    processes: tuple[Process, ...]
    calls: tuple[Call, ...]

    def as_json(self) -> dict[str, Any]:
        """For `json.dumps`."""
        return dataclasses.asdict(self)


def view(job: str, before: Iterable[Flight], after: Sequence[Flight], begin_ns: int, end_ns: int) -> View:
    """The time from ``begin_ns`` to ``end_ns`` (ns since 1970), when ``before`` and ``after`` were read."""
    known = {flight.pid: max((r.number for r in flight.records), default=0) for flight in before}
    # What ran at the first look may have ended since: by its end it is of this view.
    ended = {flight.pid: _ended(flight, known.get(flight.pid, 0), begin_ns) for flight in after}
    # A record holds the last 4096 operations: for those that newer ones have pushed out the others stand.
    scale = {flight.pid: _scale(flight, known.get(flight.pid, 0)) for flight in after}
    launches: dict[tuple[int, int], dict[int, int]] = collections.defaultdict(dict)
    for flight in after:
        for record in ended[flight.pid]:
            launches[record.key, record.sequence][flight.pid] = record.launched
    together = {execution: by_pid for execution, by_pid in launches.items() if len(by_pid) > 1}
    seconds = max(end_ns - begin_ns, 1) / 1e9
    names = {flight.pid: flight.name() for flight in after}
    return View(
        job,
        seconds,
        tuple(
            _process(flight, ended[flight.pid], scale[flight.pid], together, seconds, begin_ns, end_ns)
            for flight in after
        ),
        _calls(ended, scale, together, names, seconds),
    )


def _process(
    flight: Flight,
    ended: Sequence[Record],
    scale: float,
    together: dict[tuple[int, int], dict[int, int]],
    seconds: float,
    begin_ns: int,
    end_ns: int,
) -> Process:
    shared = [by_pid for execution, by_pid in together.items() if flight.pid in by_pid]
    waited = [max(by_pid.values()) - by_pid[flight.pid] for by_pid in shared]
    late = [by_pid[flight.pid] - min(by_pid.values()) for by_pid in shared]
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
    )


def _calls(
    ended: dict[int, list[Record]],
    scale: dict[int, float],
    together: dict[tuple[int, int], dict[int, int]],
    names: dict[int, str],
    seconds: float,
) -> tuple[Call, ...]:
    # An operation's key is that of one execution; executions of one call share its text.
    by_call: dict[str, dict[int, list[Record]]] = collections.defaultdict(lambda: collections.defaultdict(list))
    last: dict[str, collections.Counter[int]] = collections.defaultdict(collections.Counter)
    for pid, each in ended.items():
        for record in each:
            by_call[record.what][pid].append(record)
            launches = together.get((record.key, record.sequence))
            if launches and max(launches, key=lambda other: launches[other]) == pid:
                last[record.what][pid] += 1
    found = []
    for what, by_process in by_call.items():
        pid, records = max(by_process.items(), key=lambda item: len(item[1]))
        executions = len(records) * scale[pid]
        facts = plan(next((r.label for r in records if r.label), ""))
        us = _mean([r.ended - r.launched for each in by_process.values() for r in each]) / 1e3
        nbytes, ranks, processes = (_number(facts.get(name)) for name in ("nbytes", "ranks", "processes"))
        collective = COLLECTIVES.get(str(facts.get("collective")))
        total = collective.total(ranks, nbytes) if collective and ranks else 0
        busbw = total * collective.bus_factor(ranks) / us / 1e3 if collective and us and ranks > 1 else 0.0
        latest = last[what].most_common(1)
        found.append(
            Call(
                what or "an operation",
                nbytes,
                ranks,
                processes,
                f"{facts.get('algorithm', '?')}/{facts.get('protocol', '?')}",
                round(executions),
                executions / seconds,
                us,
                busbw,
                names[latest[0][0]] if latest else "",
                latest[0][1] / last[what].total() if latest else 0.0,
            )
        )
    return tuple(sorted(found, key=lambda call: -call.us * call.per_second))


def _ended(flight: Flight, known: int, begin_ns: int) -> list[Record]:
    return [r for r in flight.records if r.ended and (r.number > known or r.ended > begin_ns)]


def _scale(flight: Flight, known: int) -> float:
    """How many operations were begun since the one numbered ``known``, for each of them that is still recorded."""
    since = [r.number for r in flight.records if r.number > known]
    return (max(since) - known) / len(since) if since else 1.0


def _number(value: object) -> int:
    """A record may come from anywhere."""
    return value if type(value) is int else 0


def _covered(spans: list[tuple[int, int]]) -> int:
    """The length of the union of spans."""
    covered, until = 0, 0
    for begin, end in sorted(spans):
        covered += max(0, end - max(begin, until))
        until = max(until, end)
    return covered


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values) if values else 0.0
