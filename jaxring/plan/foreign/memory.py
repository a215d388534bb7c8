"""Where the values of a plan lie while its actions are made into steps: at which place of the plan's, and in which
chunk of ours."""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from jaxring.plan.collectives import Folded
from jaxring.plan.schedule import Buffer, Chunk, Kind, ScheduleError, Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.plan.foreign.places import Action, Place, Places


@dataclasses.dataclass(eq=False)
class Value:
    """``ranks``: whose operands are in it, as bits; ``chunk``: of the input. It lies in memory (``at``) or is on its
    way (``source``: from which rank). ``places``: where a plan has it."""

    ranks: int
    chunk: int
    at: Chunk | None
    source: int = -1
    places: set[Place] = dataclasses.field(default_factory=set)


class Use(NamedTuple):
    """An action that reads a place, and as which of its sources."""

    action: int
    source: int


class Memory:
    """What lies where. ``uses``: what remains to read what lies at a place now."""

    def __init__(self, places: Places, actions: Sequence[Action]) -> None:
        self.places, self.actions, self.spec = places, actions, places.spec
        self.reduces = self.spec.facts.reduces
        self.full = (1 << self.spec.nranks) - 1
        self.lanes: list[list[list[Step]]] = [[[] for _ in range(places.nlanes)] for _ in range(self.spec.nranks)]
        self.held: dict[tuple[int, Place], Value] = {}
        self.next_uses, self.last = places.uses(actions, Use)
        self.uses = {(rank, place): uses for (by, rank, place), uses in self.next_uses.items() if by < 0}
        self._operands: dict[tuple[int, int], Value] = {}
        self._writer: dict[tuple[int, Place], int] = {}
        self._outputs: set[tuple[int, int]] = set()
        self._scratch: dict[tuple[int, int], int] = {}

    def put(self, number: int, rank: int, place: Place, value: Value) -> None:
        before = self.held.get((rank, place))
        if before is not None:
            before.places.discard(place)
        value.places.add(place)
        self.held[rank, place], self._writer[rank, place] = value, number
        self.uses[rank, place] = self.next_uses.get((number, rank, place), deque())

    def value(self, rank: int, place: Place) -> Value:
        found = self.held.get((rank, place))
        if found is None:
            chunk = self.places.operand(rank, place)
            if chunk is None:
                raise ScheduleError(f"rank {rank} reads {said(place)} before anything is written there")
            found = self.held[rank, place] = Value(1 << rank, chunk, Chunk(Buffer.INPUT, chunk), places={place})
            self._operands[rank, chunk] = found
        return found

    def index(self, number: int, rank: int, place: Place) -> int | None:
        """The chunk of the result that an action writes there, None for what is written again later."""
        final = self.last.get((rank, place), -1) == number
        return self.places.result(rank, place) if final else None

    def room(self, rank: int, lane: int, value: Value, index: int | None) -> Chunk:
        """Where a value is kept: in the chunk ``index`` of the result if it belongs there, otherwise in scratch."""
        if self.reduces:
            if value.ranks != self.full:
                index = None
            elif index is None:
                index = self.home(rank, value)
        elif index is not None and (rank, index) in self._outputs:
            index = None
        if index is not None:
            self.save(rank, lane, index, value)
            self._outputs.add((rank, index))
            return Chunk(Buffer.OUTPUT, index)
        return self.fresh(rank, lane)

    def fresh(self, rank: int, lane: int) -> Chunk:
        number = self._scratch[rank, lane] = self._scratch.get((rank, lane), -1) + 1
        return Chunk(Buffer.SCRATCH, number)

    def home(self, rank: int, value: Value) -> int:
        """The chunk of the rank's result that a complete reduction is."""
        block, piece = divmod(value.chunk, self.places.pieces)
        for number, source in enumerate(self.spec.results(rank)):
            index = number * self.places.pieces + piece
            if source == Folded(block) and (rank, index) not in self._outputs:
                return index
        raise ScheduleError(f"rank {rank} keeps a result that is not its own, or keeps it twice (chunk {value.chunk})")

    def save(self, rank: int, lane: int, index: int, writer: Value) -> None:
        """Copies an operand that a call in place overwrites, where it is still to be read."""
        if not self.spec.facts.in_place:
            return
        chunk = Chunk(Buffer.INPUT, index)
        operand = self._operands.get((rank, index))
        if operand is None or operand is writer or operand.at != chunk:
            return
        if any(self.uses.get((rank, place)) for place in operand.places):
            operand.at = self.fresh(rank, lane)
            self.lanes[rank][lane].append(Step(Kind.REDUCE, chunk, operand.at))

    def settle(self, rank: int, lane: int, place: Place, value: Value) -> None:
        """Writes a value to the result where its place is one, unless it is still on its way."""
        index = self.index(self._writer.get((rank, place), -1), rank, place)
        if index is None or value.at is None or (rank, index) in self._outputs:
            return
        if not self.reduces or value.ranks == self.full:
            source = value.at
            self.save(rank, lane, index, value)
            self._outputs.add((rank, index))
            self.lanes[rank][lane].append(Step(Kind.MOVE, source, Chunk(Buffer.OUTPUT, index)))

    def partial(self, value: Value) -> bool:
        """Whether it is a reduction that is not complete."""
        return self.reduces and bool(value.ranks & (value.ranks - 1)) and value.ranks != self.full

    def result_of(self, rank: int, value: Value) -> int | None:
        """The chunk of the result that one of a value's places is, if any."""
        found = (self.index(self._writer[rank, place], rank, place) for place in sorted(value.places))
        return next((index for index in found if index is not None), None)


def said(place: Place) -> str:
    """A place as errors name it."""
    return f"{place[0]}[{place[1]}]"
