"""Reads algorithms in MSCCL's XML (https://github.com/microsoft/msccl) as schedules of ours, run by their name.

MSCCL describes thread blocks, each with one peer to send to and one to receive from, on channels. Their steps become
actions (`jaxring.plan.foreign.dataflow`) in an order in which a run makes them, where a message lies at a place of its
own until it is received. A channel becomes a lane. The result is verified as any algorithm of a user's is.
"""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET
from collections import deque
from typing import TYPE_CHECKING

from jaxring.plan.collectives import COLLECTIVES
from jaxring.plan.foreign import imported
from jaxring.plan.foreign.names import FROM_THEIRS
from jaxring.plan.foreign.places import Action
from jaxring.plan.schedule import ScheduleError

if TYPE_CHECKING:
    from jaxring.plan.foreign.places import Place

# MSCCL's tools write this one with and without the underscore.
_COLLECTIVES = FROM_THEIRS | {"reduce_scatter": "reduce_scatter"}
_TYPES = {"s", "r", "rcs", "rrs", "rrc", "rrcs", "re", "cpy", "nop"}
_RECEIVES = ("r", "rcs", "rrs", "rrc", "rrcs")
_MOST_STEPS = 1 << 20


@dataclasses.dataclass(frozen=True)
class _Step:
    kind: str
    source: Place
    target: Place
    count: int
    needs: tuple[int, int]  # block and step, or -1


@dataclasses.dataclass(frozen=True)
class _Block:
    rank: int
    number: int
    send: int
    recv: int
    channel: int
    steps: tuple[_Step, ...]


def register(text: str) -> tuple[str, str]:
    """Makes ``algorithm=NAME`` run the algorithm in ``text``; returns the name and the collective.

    Raises ValueError where the file is no such algorithm, with what is wrong, or does what our schedules cannot: reduce
    two chunks that both lie in a rank's memory already.
    """
    try:
        root = ET.fromstring(text)
    except ET.ParseError as error:
        raise ValueError(f"it is no XML: {error}") from None
    if root.tag != "algo":
        raise ValueError(f"it begins with <{root.tag}>, not with <algo>")
    name = root.get("name") or "msccl"
    wanted = root.get("coll", "").lower()
    collective = _COLLECTIVES.get(wanted)
    if collective is None:
        raise ValueError(f"its collective is {wanted!r}; there are {', '.join(_COLLECTIVES)}")
    ranks = _number(root, "ngpus", 1, 1 << 12)
    blocks = [_block(gpu, each) for gpu in root.iter("gpu") for each in gpu.iter("tb")]
    if sorted(_number(gpu, "id", 0, ranks - 1) for gpu in root.iter("gpu")) != list(range(ranks)):
        raise ValueError(f"it does not describe each of the {ranks} ranks once")
    if sum(len(block.steps) for block in blocks) > _MOST_STEPS:
        raise ValueError(f"it has more than {_MOST_STEPS} steps")
    first = next(root.iter("gpu"))
    pieces = max(1, _number(first, "i_chunks", 0, 1 << 20) // COLLECTIVES[collective].in_blocks(ranks))
    actions = _Run(blocks).play()
    return imported.register(name, collective, ranks, pieces, root.get("inplace") == "1", actions)


def _number(element: ET.Element, name: str, least: int, most: int) -> int:
    text = element.get(name, "")
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"<{element.tag}> has {name}={text!r}, which is no number") from None
    if not least <= value <= most:
        raise ValueError(f"<{element.tag}> has {name}={value}, not from {least} to {most}")
    return value


def _block(gpu: ET.Element, block: ET.Element) -> _Block:
    most = 1 << 20
    steps = []
    for each in block.iter("step"):
        kind = each.get("type", "")
        if kind not in _TYPES:
            raise ValueError(
                f"a step is of type {kind!r}, which our schedules have not; there are {', '.join(sorted(_TYPES))}"
            )
        places = []
        for buffer, offset in (("srcbuf", "srcoff"), ("dstbuf", "dstoff")):
            if kind != "nop" and each.get(buffer) not in ("i", "o", "s"):
                raise ValueError(f"a step's {buffer} is {each.get(buffer)!r}, not i, o or s")
            places.append((each.get(buffer, "i"), _number(each, offset, -1, most) if kind != "nop" else 0))
        needs = _number(each, "depid", -1, most), _number(each, "deps", -1, most)
        count = _number(each, "cnt", 0, most) if kind != "nop" else 0
        steps.append(_Step(kind, places[0], places[1], count, needs))
    send, recv = _number(block, "send", -1, most), _number(block, "recv", -1, most)
    channel = _number(block, "chan", 0, 1 << 10)
    return _Block(_number(gpu, "id", 0, most), _number(block, "id", 0, most), send, recv, channel, tuple(steps))


class _Run:
    """Makes all steps once, in an order in which they can be made."""

    def __init__(self, blocks: list[_Block]) -> None:
        self.blocks = blocks
        self.actions: list[Action] = []
        # Messages that were sent, and that were received, by sender, receiver and channel.
        self.sent: dict[tuple[int, int, int], int] = {}
        self.taken: dict[tuple[int, int, int], int] = {}

    def play(self) -> list[Action]:
        at = {(block.rank, block.number): 0 for block in self.blocks}
        left = deque(self.blocks)
        idle = 0
        while left:
            block = left.popleft()
            moved = False
            key = (block.rank, block.number)
            # One step at a time, so that blocks advance together as they do on a GPU.
            if block.steps and self.ready(block, block.steps[at[key]], at):
                self.make(block, block.steps[at[key]])
                at[key] += 1
                moved = True
            if at[key] < len(block.steps):
                left.append(block)
            idle = 0 if moved else idle + 1
            if left and idle > len(left):
                stuck = left[0]
                raise ScheduleError(
                    f"rank {stuck.rank}, thread block {stuck.number}, step {at[stuck.rank, stuck.number]} never gets "
                    "what it waits for: a message, or a step that it depends on"
                )
        for (source, target, channel), count in self.sent.items():
            if count > self.taken.get((source, target, channel), 0):
                raise ScheduleError(f"rank {target} never receives a message of rank {source} on channel {channel}")
        return self.actions

    def ready(self, block: _Block, step: _Step, at: dict[tuple[int, int], int]) -> bool:
        other, needed = step.needs
        if other >= 0 and at.get((block.rank, other), 0) <= needed:
            return False
        if step.kind not in _RECEIVES:
            return True
        key = (block.recv, block.rank, block.channel)
        return self.sent.get(key, 0) - self.taken.get(key, 0) >= step.count

    def make(self, block: _Block, step: _Step) -> None:
        for i in range(step.count):
            source, target = ((buffer, offset + i) for buffer, offset in (step.source, step.target))
            self.one(block, step.kind, source, target)

    def one(self, block: _Block, kind: str, source: Place, target: Place) -> None:
        sources: list[Place] = []
        targets: list[tuple[int, Place]] = []
        if kind in _RECEIVES:
            sources.append(self.message(self.taken, block.recv, block.rank, block.channel))
        if kind in ("s", "cpy", "re", "rrs", "rrc", "rrcs"):
            sources.append(source)
        if kind == "re":
            sources.append(target)
        if kind in ("r", "rcs", "re", "rrc", "rrcs", "cpy"):
            targets.append((block.rank, target))
        if kind in ("s", "rcs", "rrs", "rrcs"):
            targets.append((block.send, self.message(self.sent, block.rank, block.send, block.channel)))
        self.actions.append(Action(block.rank, block.channel, tuple(sources), tuple(targets)))

    @staticmethod
    def message(counts: dict[tuple[int, int, int], int], source: int, target: int, channel: int) -> Place:
        """The place of the next message, at its receiver."""
        key = (source, target, channel)
        counts[key] = counts.get(key, 0) + 1
        return f"message of rank {source} on channel {channel}", counts[key] - 1
