"""Places of a rank's memory as plans of others name them, and which actions of theirs depend on each other."""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from jaxring.plan.schedule import Spec

# A buffer and the chunk in it: "i" the operand, "o" the result, "s" scratch; others are of a format's own.
Place = tuple[str, int]


@dataclasses.dataclass(frozen=True)
class Action:
    """``rank`` reads its places ``sources``, reduces them where there are several, and writes ``targets``: places of
    its own and of other ranks. ``lane``: which it would have if all lanes were free, such as a channel."""

    rank: int
    lane: int
    sources: tuple[Place, ...]
    targets: tuple[tuple[int, Place], ...]


class Places:
    """Gives each place one name, whether a call is in place or not, and a lane.

    In calls in place operand and result are one; ``actions`` are renamed so.
    """

    def __init__(self, spec: Spec, pieces: int, in_place: bool, actions: Sequence[Action]) -> None:
        self.spec, self.pieces, self.in_place = spec, pieces, in_place
        self._above: dict[tuple[int, Place], tuple[int, Place]] = {}
        self._written = {target for action in actions for target in action.targets}
        wanted: dict[tuple[int, Place], int] = {}
        for action in actions:
            joined = [self._node(*place) for place in self._bound(action)]
            for place in joined[1:]:
                self._above[self._root(place)] = self._root(joined[0])
        for action in actions:
            for place in self._bound(action)[:1]:
                wanted.setdefault(self._root(self._node(*place)), action.lane)
        number = {lane: position for position, lane in enumerate(sorted(set(wanted.values())))}
        self._lanes = {root: number[lane] for root, lane in wanted.items()}
        self.nlanes = max(1, len(number))

    def _bound(self, action: Action) -> list[tuple[int, Place]]:
        """The places of an action that bind it to a lane: an operand that stays as it is can be read by all."""
        read = [(action.rank, place) for place in action.sources]
        free = not self.spec.facts.in_place
        return [*action.targets, *(each for each in read if not (free and self._stays(each)))]

    def _stays(self, place: tuple[int, Place]) -> bool:
        return place not in self._written and self.operand(*place) is not None

    def _node(self, rank: int, place: Place) -> tuple[int, Place]:
        """The result in place of an operand that may share its memory; other places stay."""
        if self.spec.facts.in_place and place[0] == "i":
            return rank, ("o", place[1])
        return rank, place

    def _root(self, place: tuple[int, Place]) -> tuple[int, Place]:
        above = self._above
        while place in above and above[place] != place:
            above[place] = above.get(above[place], above[place])
            place = above[place]
        return place

    def lane(self, action: Action) -> int:
        """The lane of an action."""
        return self.lane_of(*self._bound(action)[0])

    def lane_of(self, rank: int, place: Place) -> int:
        """The lane of what writes a place, 0 where nothing does."""
        return self._lanes.get(self._root(self._node(rank, place)), 0)

    def operand(self, rank: int, place: Place) -> int | None:
        """The chunk of the operand that lies at a place in the beginning."""
        buffer, offset = place
        if buffer == "i":
            return offset
        if self.in_place and buffer == "o" and self.spec.collective == "all_gather":
            block, piece = divmod(offset, self.pieces)
            return piece if block == rank else None
        return None

    def result(self, rank: int, place: Place) -> int | None:
        """The chunk of the result that lies at a place in the end."""
        buffer, offset = place
        if self.in_place and buffer == "i":
            if self.spec.collective == "reduce_scatter":
                return offset % self.pieces if offset // self.pieces == rank else None
            return offset if self.spec.facts.blocks_in == self.spec.facts.blocks_out else None
        return offset if buffer == "o" else None

    def results(self, rank: int) -> Iterator[Place]:
        """The place of each chunk of the rank's result."""
        for index in range(self.spec.out_blocks * self.pieces):
            yield named(self.spec, self.pieces, self.in_place, rank, ("o", index))

    def uses(
        self, actions: Sequence[Action], use: Callable[[int, int], Any]
    ) -> tuple[dict[tuple[int, int, Place], deque[Any]], dict[tuple[int, Place], int]]:
        """For each place that an action (-1: none, it is the operand) has written, the actions that read it before it
        is written again, by the number of the writer, the rank and the place; and the last writer of each place."""
        writer: dict[tuple[int, Place], int] = {}
        found: dict[tuple[int, int, Place], deque[Any]] = {}
        for number, action in enumerate(actions):
            for index, place in enumerate(action.sources):
                by = writer.get((action.rank, place), -1)
                found.setdefault((by, action.rank, place), deque()).append(use(number, index))
            for target in action.targets:
                writer[target] = number
        return found, writer


def named(spec: Spec, pieces: int, in_place: bool, rank: int, place: Place) -> Place:
    """The one name of a place: in calls in place operand and result are one."""
    buffer, offset = place
    if not in_place or buffer not in ("i", "o"):
        return place
    if spec.facts.blocks_in == spec.facts.blocks_out:
        return "i", offset
    if spec.collective == "all_gather" and buffer == "i":
        return "o", rank * pieces + offset
    if spec.collective == "reduce_scatter" and buffer == "o":
        return "i", rank * pieces + offset
    return place


def renamed(spec: Spec, pieces: int, in_place: bool, actions: Sequence[Action]) -> list[Action]:
    """The same actions by these names."""

    def name(rank: int, place: Place) -> Place:
        return named(spec, pieces, in_place, rank, place)

    return [
        dataclasses.replace(
            action,
            sources=tuple(name(action.rank, place) for place in action.sources),
            targets=tuple((rank, name(rank, place)) for rank, place in action.targets),
        )
        for action in actions
    ]
