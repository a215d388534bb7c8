"""Totals of a job's operations on this host, from looks at its flight records: what a metrics endpoint gives."""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from jaxring.plan import labels

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jaxring.trace.flight import Flight, Record


class Operations(NamedTuple):
    """Operations of one kind in one process. ``call``: as errors name it; ``way``: algorithm/protocol."""

    process: str
    collective: str
    call: str
    way: str


@dataclasses.dataclass
class Total:
    """Operations that have ended: ``seconds`` from launch to end, ``nbytes`` of a rank's input, all summed."""

    count: int = 0
    failed: int = 0
    seconds: float = 0.0
    nbytes: int = 0


@dataclasses.dataclass
class Meeting:
    """How one process met others of this host, over the operations that it had with them.

    ``waited_s``: from its launch to that of the last one; ``late_s``: from that of the first one to its own, both
    summed. ``last``: how often it came last.
    """

    operations: int = 0
    waited_s: float = 0.0
    late_s: float = 0.0
    last: int = 0


class Totals:
    """Sums since the first look. Looks must come before a record's 4096 places have been used again; what was missed
    is counted in ``missed``, by process."""

    def __init__(self) -> None:
        self.operations: dict[Operations, Total] = collections.defaultdict(Total)
        self.meetings: dict[str, Meeting] = collections.defaultdict(Meeting)
        self.running_s: dict[str, float] = {}
        self.missed: dict[str, int] = collections.defaultdict(int)
        # By pid: the youngest number seen, and those below it that had not ended then.
        self._seen: dict[int, tuple[int, set[int]]] = {}
        # The launch in each process, by name, of what was first seen at this look, and of what was at the one before:
        # processes are read one after another, so the end of some is seen one look later than that of others.
        self._new: dict[tuple[int, int], dict[str, int]] = {}
        self._old: dict[tuple[int, int], dict[str, int]] = {}

    def look(self, flights: Iterable[Flight], now_ns: int) -> None:
        """Add what has ended since the look before. ``now_ns``: since 1970. The first look only says where to begin."""
        self.running_s = {}
        for flight in flights:
            name = flight.name()
            running = [r.launched for r in flight.records if not r.ended]
            self.running_s[name] = max(0.0, (now_ns - min(running)) / 1e9) if running else 0.0
            self.meetings.setdefault(name, Meeting())
            last, still = self._seen.get(flight.pid, (None, set()))
            self._seen[flight.pid] = self._mark(flight, last)
            if last is None:
                continue
            found = [r for r in flight.records if r.ended and (r.number > last or r.number in still)]
            youngest, oldest = self._seen[flight.pid][0], min((r.number for r in flight.records), default=0)
            self.missed[name] += max(0, min(oldest, youngest) - last - 1)
            for record in found:
                self._add(name, record)
        self._meet()

    @staticmethod
    def _mark(flight: Flight, last: int | None) -> tuple[int, set[int]]:
        youngest = max((r.number for r in flight.records), default=last or 0)
        return youngest, {r.number for r in flight.records if not r.ended}

    def _add(self, name: str, record: Record) -> None:
        facts = labels.parse(record.label)
        way = f"{facts.get('algorithm', '?')}/{facts.get('protocol', '?')}"
        total = self.operations[Operations(name, str(facts.get("collective", "?")), record.what, way)]
        total.count += 1
        total.failed += record.state == "failed"
        total.seconds += max(0, record.ended - record.launched) / 1e9
        nbytes = facts.get("nbytes")
        total.nbytes += nbytes if type(nbytes) is int else 0
        execution = (record.key, record.sequence)
        launches = self._old if execution in self._old else self._new
        launches.setdefault(execution, {})[name] = record.launched

    def _meet(self) -> None:
        for launches in self._old.values():
            if len(launches) < 2:
                continue
            first, last = min(launches.values()), max(launches.values())
            latest = max(launches, key=lambda name: launches[name])
            for name, launched in launches.items():
                meeting = self.meetings[name]
                meeting.operations += 1
                meeting.waited_s += (last - launched) / 1e9
                meeting.late_s += (launched - first) / 1e9
                meeting.last += name == latest
        self._old, self._new = self._new, {}
