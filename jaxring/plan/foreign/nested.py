"""Makes one reduction of several of a rank's, where a plan reduces in parts and then the parts.

A step of ours reduces one chunk of memory with messages, and a part that is reduced by itself lies in memory. What the
parts are made of are the rank's own chunk, which is in one of them, and messages, which one reduction can take.
"""

from __future__ import annotations

import bisect
import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.plan.foreign.places import Action, Place


def joined(actions: Sequence[Action]) -> list[Action]:
    """The same actions, without the reductions whose result only another reduction of the rank reads: that one reads
    what they read. Such a result lies in scratch, or where something else is written later, and what it is made of is
    still in its place when the other reduction is made."""
    writes: dict[tuple[int, Place], list[int]] = {}
    for number, action in enumerate(actions):
        for target in action.targets:
            writes.setdefault(target, []).append(number)
    readers: dict[tuple[int, int, Place], list[int]] = {}
    for number, action in enumerate(actions):
        for place in action.sources:
            readers.setdefault((_before(writes, action.rank, place, number), action.rank, place), []).append(number)
    made: list[Action | None] = list(actions)
    for number in range(len(made)):
        part = made[number]
        if part is None or len(part.sources) < 2 or len(part.targets) != 1 or part.targets[0][0] != part.rank:
            continue
        place = part.targets[0][1]
        read = readers.get((number, part.rank, place), [])
        whole = made[read[0]] if len(read) == 1 else None
        if whole is None or len(whole.sources) < 2 or set(part.sources) & set(whole.sources) - {place}:
            continue
        ends = place[0] != "s" and writes[part.rank, place][-1] == number
        changed = any(_written(writes, part.rank, source, number + 1, read[0]) for source in part.sources)
        if ends or changed:
            continue
        sources = [part.sources if source == place else (source,) for source in whole.sources]
        made[read[0]] = dataclasses.replace(whole, sources=tuple(each for several in sources for each in several))
        made[number] = None
        # What wrote them is read by the other one now.
        for source in part.sources:
            key = _before(writes, part.rank, source, number), part.rank, source
            readers[key] = [read[0] if each == number else each for each in readers[key]]
    return [action for action in made if action is not None]


def _before(writes: dict[tuple[int, Place], list[int]], rank: int, place: Place, number: int) -> int:
    """The last action before ``number`` that writes a place, -1 where there is none."""
    found = writes.get((rank, place), [])
    at = bisect.bisect_left(found, number)
    return found[at - 1] if at else -1


def _written(writes: dict[tuple[int, Place], list[int]], rank: int, place: Place, begin: int, end: int) -> bool:
    """Whether an action from ``begin`` on and before ``end`` writes a place."""
    found = writes.get((rank, place), [])
    at = bisect.bisect_left(found, begin)
    return at < len(found) and found[at] < end
