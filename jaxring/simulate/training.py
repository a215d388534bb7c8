"""A training step: computations, collectives and messages, to the time of the step and what communication adds.

A process computes one thing at a time, takes part in one collective at a time, sends one message and receives one at a
time, and its host does one thing at a time beside. In a step that is ordered, a collective begins when the computation
before it in the list is over and the collectives before it are, a message likewise with the messages before it, and a
computation when the one before it is; a computation that needs one of them waits for its end. In one that is not, as a
trace's is, an entry waits for what it needs only, and what has waited longest begins first.
"""

from __future__ import annotations

import dataclasses
import heapq
import json
from typing import TYPE_CHECKING, Any

from jaxring.plan.collectives import COLLECTIVES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxring.simulate.run import Run


@dataclasses.dataclass(frozen=True)
class Compute:
    """Us of computation, after what is waited for: ``needs``, by positions in the list. ``host``: the host does it."""

    us: float
    needs: tuple[int, ...] = ()
    host: bool = False
    name: str = dataclasses.field(default="", compare=False)


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective of so many bytes of input per rank. ``algorithm``: "" where the planner chooses. ``groups``: the
    ranks of each group among which it is, all groups at once; without them all ranks are one."""

    collective: str
    nbytes: int
    algorithm: str = ""
    needs: tuple[int, ...] = ()
    groups: tuple[tuple[int, ...], ...] = ()
    name: str = dataclasses.field(default="", compare=False)


@dataclasses.dataclass(frozen=True)
class Message:
    """So many bytes from a rank to another. ``received``: the process whose step it is receives it, and does not send
    it. The other process is taken to be ready at the same moment."""

    nbytes: int
    source: int
    target: int
    needs: tuple[int, ...] = ()
    received: bool = False
    name: str = dataclasses.field(default="", compare=False)


Entry = Compute | Collective | Message


@dataclasses.dataclass(frozen=True)
class Timeline:
    """In us. ``compute``: computation, without the host's. ``exposed``: what is left of the step beside computation,
    the host's included.

    ``spans``: begin and end of each entry of the list.
    """

    step: float
    compute: float
    communication: float
    exposed: float
    spans: tuple[tuple[float, float], ...]


def read(text: str) -> list[Entry]:
    """A list in JSON: {"compute_us": 100, "needs": [0]}, {"collective": "all_reduce", "bytes": 1048576, "algorithm":
    "ring", "groups": [[0, 1], [2, 3]]} and {"message": [0, 1], "bytes": 4096}. Raises ValueError with the position of
    what is no such entry."""
    data = json.loads(text)
    if not isinstance(data, list):
        raise ValueError("a step is a list of computations, collectives and messages")
    return [_entry(position, entry) for position, entry in enumerate(data)]


def _entry(position: int, entry: Any) -> Entry:
    def wrong(why: str) -> ValueError:
        return ValueError(f"entry {position} of the step: {why}")

    if not isinstance(entry, dict):
        raise wrong("it is no object")
    if entry.keys() <= {"compute_us", "needs"} and "compute_us" in entry:
        us, needs = entry["compute_us"], entry.get("needs", [])
        if isinstance(us, bool) or not isinstance(us, int | float) or not 0 <= us < float("inf"):
            raise wrong(f"compute_us is {us!r}")
        if not isinstance(needs, list) or any(type(n) is not int or not 0 <= n < position for n in needs):
            raise wrong(f"needs names entries before it, not {needs!r}")
        return Compute(float(us), tuple(needs))
    nbytes: Any = entry.get("bytes")
    if "bytes" in entry and (type(nbytes) is not int or nbytes < 1):
        raise wrong(f"bytes is a number from 1, not {nbytes!r}")
    if entry.keys() <= {"collective", "bytes", "algorithm", "groups"} and entry.keys() >= {"collective", "bytes"}:
        name, algorithm, groups = entry["collective"], entry.get("algorithm", ""), entry.get("groups", [])
        if name not in COLLECTIVES:
            raise wrong(f"there is no collective {name!r}; there are {', '.join(COLLECTIVES)}")
        if not isinstance(algorithm, str):
            raise wrong(f"algorithm is a name, not {algorithm!r}")
        if not isinstance(groups, list) or not all(map(_are_ranks, groups)):
            raise wrong(f"groups is a list of lists of ranks, not {groups!r}")
        return Collective(name, nbytes, algorithm, groups=tuple(map(tuple, groups)))
    if entry.keys() == {"message", "bytes"}:
        ends = entry["message"]
        if not _are_ranks(ends) or len(set(ends)) != 2 or len(ends) != 2:
            raise wrong(f"message names the rank that sends and the one that receives, not {ends!r}")
        return Message(nbytes, *ends)
    what = "not compute_us, or collective and bytes, or message and bytes"
    raise wrong(f"it has {', '.join(sorted(entry)) or 'nothing'}, {what}")


def _are_ranks(found: Any) -> bool:
    return isinstance(found, list) and bool(found) and all(type(rank) is int and rank >= 0 for rank in found)


def waits(entries: Sequence[Entry]) -> list[tuple[int, ...]]:
    """The positions that each entry of an ordered step waits for: those that it needs, and those that its place in the
    list implies."""
    found: list[tuple[int, ...]] = []
    last: dict[type, int] = {}
    for position, entry in enumerate(entries):
        implied = [last[each] for each in dict.fromkeys((Compute, type(entry))) if each in last]
        found.append(tuple(dict.fromkeys((*entry.needs, *implied))))
        last[type(entry)] = position
    return found


def play(entries: Sequence[Entry], simulated: Callable[[Collective | Message], Run], ordered: bool = True) -> Timeline:
    """The step. ``simulated`` gives the run of a collective or message; it is asked once for each that differs.

    Raises ValueError where entries wait for each other.
    """
    times: dict[Collective | Message, float] = {}
    took: list[float] = []
    for entry in entries:
        if isinstance(entry, Compute):
            took.append(entry.us)
            continue
        alone = dataclasses.replace(entry, needs=())
        if isinstance(alone, Message):
            alone = dataclasses.replace(alone, received=False)
        if alone not in times:
            times[alone] = simulated(alone).time_us
        took.append(times[alone])
    needs = waits(entries) if ordered else [tuple(set(entry.needs)) for entry in entries]
    spans = _spans([_unit(entry) for entry in entries], took, needs)
    step = max((end for _, end in spans), default=0.0)
    computing = [span for span, entry in zip(spans, entries, strict=True) if isinstance(entry, Compute)]
    return Timeline(
        step,
        sum(us for us, entry in zip(took, entries, strict=True) if _unit(entry) == "compute"),
        sum(us for us, entry in zip(took, entries, strict=True) if not isinstance(entry, Compute)),
        step - _covered(computing),
        tuple(spans),
    )


def _unit(entry: Entry) -> str:
    """What does one such entry at a time."""
    if isinstance(entry, Collective):
        return "collective"
    if isinstance(entry, Message):
        return "receive" if entry.received else "send"
    return "host" if entry.host else "compute"


def _spans(units: list[str], took: list[float], needs: list[tuple[int, ...]]) -> list[tuple[float, float]]:
    """When each entry begins and ends, where each unit does one at a time: of those that are ready the one that has
    been longest, and of those the first in the list."""
    spans = [(-1.0, -1.0)] * len(units)
    after: list[list[int]] = [[] for _ in units]
    missing = [len(each) for each in needs]
    for position, each in enumerate(needs):
        for other in each:
            after[other].append(position)
    ready: dict[str, list[tuple[float, int]]] = {unit: [] for unit in units}
    busy: set[str] = set()
    ends: list[tuple[float, int]] = []
    now, over = 0.0, [position for position, count in enumerate(missing) if not count]
    while True:
        for position in over:
            heapq.heappush(ready[units[position]], (now, position))
        for unit, queue in ready.items():
            if queue and unit not in busy:
                _, position = heapq.heappop(queue)
                spans[position] = (now, now + took[position])
                heapq.heappush(ends, (now + took[position], position))
                busy.add(unit)
        if not ends:
            break
        now, over = ends[0][0], []
        while ends and ends[0][0] == now:
            _, position = heapq.heappop(ends)
            busy.discard(units[position])
            for other in after[position]:
                missing[other] -= 1
                if not missing[other]:
                    over.append(other)
    if any(missing):
        waiting = [str(position) for position, count in enumerate(missing) if count]
        raise ValueError(f"the entries {', '.join(waiting[:10])} of the step wait for each other")
    return spans


def _covered(spans: list[tuple[float, float]]) -> float:
    """How long at least one of them lasts."""
    total, until = 0.0, 0.0
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def from_records(records: Sequence[tuple[float, float, str, int]]) -> list[Entry]:
    """The list of a process's collectives as they were recorded: (launched, ended, collective, bytes), in us.

    What lies between the end of all before and the next launch is computation that waited for them; what lies between
    two launches that overlap is computation that did not.
    """
    found: list[Entry] = []
    open_: list[tuple[float, int]] = []  # end and position of collectives that nothing has waited for
    last = None
    for launched, ended, collective, nbytes in sorted(records):
        if last is not None:
            over = [position for end, position in open_ if end <= launched]
            since = max([last, *(end for end, position in open_ if position in over)])
            found.append(Compute(max(0.0, launched - since), tuple(over)))
            open_ = [(end, position) for end, position in open_ if position not in over]
        open_.append((ended, len(found)))
        found.append(Collective(collective, nbytes))
        last = launched
    return found
