"""A training step: computations and collectives in their order, to the time of the step and what communication adds.

A process has a thread of computation and one of communication. A collective begins when the computation before it in
the list is over and the collectives before it are; a computation that needs one waits for its end.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from jaxring.plan.collectives import COLLECTIVES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxring.simulate.run import Run


@dataclasses.dataclass(frozen=True)
class Compute:
    """Us of computation, after the collectives that are waited for: ``needs``, by their positions in the list."""

    us: float
    needs: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective of so many bytes of input per rank. ``algorithm``: "" where the planner chooses."""

    collective: str
    nbytes: int
    algorithm: str = ""


@dataclasses.dataclass(frozen=True)
class Timeline:
    """In us. ``exposed``: for which the computation waits, or has ended before the last collective.

    ``spans``: begin and end of each entry of the list.
    """

    step: float
    compute: float
    communication: float
    exposed: float
    spans: tuple[tuple[float, float], ...]


def read(text: str) -> list[Compute | Collective]:
    """A list in JSON: {"compute_us": 100, "needs": [0]} and {"collective": "all_reduce", "bytes": 1048576,
    "algorithm": "ring"}. Raises ValueError with the position of what is no such entry."""
    data = json.loads(text)
    if not isinstance(data, list):
        raise ValueError("a step is a list of computations and collectives")
    return [_entry(position, entry) for position, entry in enumerate(data)]


def _entry(position: int, entry: Any) -> Compute | Collective:
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
    if entry.keys() <= {"collective", "bytes", "algorithm"} and entry.keys() >= {"collective", "bytes"}:
        name, nbytes, algorithm = entry["collective"], entry["bytes"], entry.get("algorithm", "")
        if name not in COLLECTIVES:
            raise wrong(f"there is no collective {name!r}; there are {', '.join(COLLECTIVES)}")
        if type(nbytes) is not int or nbytes < 1 or not isinstance(algorithm, str):
            raise wrong("bytes is a number from 1, and algorithm a name")
        return Collective(name, nbytes, algorithm)
    raise wrong(f"it has {', '.join(sorted(entry)) or 'nothing'}, not compute_us, or collective and bytes")


def play(entries: Sequence[Compute | Collective], simulated: Callable[[Collective], Run]) -> Timeline:
    """The step. ``simulated`` gives a collective's run; it is asked once for each that differs."""
    times: dict[Collective, float] = {}
    spans: list[tuple[float, float]] = []
    computed = communicated = busy = talked = 0.0
    for entry in entries:
        if isinstance(entry, Compute):
            begin = max([computed, *(spans[need][1] for need in entry.needs)])
            computed = begin + entry.us
            busy += entry.us
            spans.append((begin, computed))
            continue
        if entry not in times:
            times[entry] = simulated(entry).time_us
        begin = max(computed, communicated)
        communicated = begin + times[entry]
        talked += times[entry]
        spans.append((begin, communicated))
    step = max(computed, communicated)
    return Timeline(step, busy, talked, step - busy, tuple(spans))


def from_records(records: Sequence[tuple[float, float, str, int]]) -> list[Compute | Collective]:
    """The list of a process's collectives as they were recorded: (launched, ended, collective, bytes), in us.

    What lies between the end of all before and the next launch is computation that waited for them; what lies between
    two launches that overlap is computation that did not.
    """
    found: list[Compute | Collective] = []
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
