"""Which of some instructions of a computation need which others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from jaxring.dropin.whole_program.hlo import Computation, Instruction

# What takes a GPU long.
WORK = frozenset({"dot", "convolution", "fft", "sort", "while", "conditional", "call", "custom-call"})
_CONTROL = 37


class Dependencies:
    """Which of the instructions with these ids need which. A set of them is a number, with a bit for each."""

    def __init__(self, computation: Computation, chosen: Iterable[int]) -> None:
        wanted = set(chosen)
        self._bits: dict[int, int] = {}
        needed: dict[int, int] = {}
        for each in computation.instructions:
            found = 0
            for need in needs(each):
                found |= needed[need] | self._bits.get(need, 0)
            needed[each.id] = found
            if each.id in wanted:
                self._bits[each.id] = 1 << len(self._bits)
        self._needs = [needed[identifier] for identifier in self._bits]
        self._merged = list(self._bits.values())

    def count(self, identifier: int) -> int:
        """How many of them it needs. What needs another one needs more."""
        return self._needs[self._place(identifier)].bit_count()

    def independent(self, identifier: int, other: int) -> bool:
        """Whether they are two, and neither needs the other."""
        one, two = self._place(identifier), self._place(other)
        return one != two and not (self._needs[one] >> two & 1 or self._needs[two] >> one & 1)

    def merge(self, identifier: int, other: int) -> bool:
        """Makes one of two of them, and of all that are one with the first. False, and no change, if that is a circle.

        ``other`` has not been merged, and nothing that has been merged needs it.
        """
        team = self._merged[self._place(identifier)]
        if self._all(self._needs[self._place(other)]) & team:
            return False
        team |= self._bits[other]
        for place in _places(team):
            self._merged[place] = team
        return True

    def _place(self, identifier: int) -> int:
        return self._bits[identifier].bit_length() - 1

    def _all(self, needed: int) -> int:
        """A set with what is one with its members, and all that they need."""
        seen = 0
        while unseen := needed & ~seen:
            seen |= unseen
            for place in _places(unseen):
                needed |= self._merged[place] | self._needs[place]
        return seen


def needs(instruction: Instruction) -> list[int]:
    """The ids of what must be there before it."""
    return [*instruction.operands, *instruction.message.numbers(_CONTROL)]


def in_order(instructions: list[Instruction], needed: Callable[[Instruction], Iterable[int]]) -> Iterator[Instruction]:
    """The instructions in their order, but what one needs always before it. ValueError if they need each other."""
    by_id = {each.id: each for each in instructions}
    done: set[int] = set()
    begun: set[int] = set()
    for instruction in instructions:
        waiting = [instruction]
        while waiting:
            each = waiting[-1]
            missing = [] if each.id in done else [by_id[need] for need in needed(each) if need not in done]
            if missing:
                if each.id in begun:
                    raise ValueError(f"{each.name} needs itself")
                begun.add(each.id)
                waiting += missing
                continue
            waiting.pop()
            if each.id not in done:
                done.add(each.id)
                yield each


def as_ready(computation: Computation, wanted: Iterable[int]) -> list[int]:
    """These instructions in the order in which a program would come to them: what needs less work comes first."""
    chosen = list(wanted)
    work = [each.id for each in computation.instructions if each.opcode in WORK]
    dependencies = Dependencies(computation, {*work, *chosen})
    place = {each.id: i for i, each in enumerate(computation.instructions)}
    return sorted(chosen, key=lambda each: (dependencies.count(each), place[each]))


def _places(members: int) -> Iterator[int]:
    while members:
        lowest = members & -members
        yield lowest.bit_length() - 1
        members ^= lowest
