"""Reads algorithms in MSCCL's XML (https://github.com/microsoft/msccl) as schedules of ours, run by their name.

MSCCL describes thread blocks, each with one peer to send to and one to receive from, on channels. The steps of all
blocks of a channel become one lane here, in an order in which a run makes them. What is kept locally while a reduction
is incomplete lies in scratch. The result is verified as any algorithm of a user's is.
"""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET
from collections import deque
from typing import TYPE_CHECKING

from jaxring.plan.collectives import COLLECTIVES
from jaxring.plan.schedule import Buffer, Chunk, Flag, Kind, Peer, ScheduleError, Spec, Step
from jaxring.plan.user import register_algorithm

if TYPE_CHECKING:
    from collections.abc import Sequence

_COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
}
_TYPES = {"s", "r", "rcs", "rrs", "rrc", "rrcs", "cpy", "nop"}
_MOST_STEPS = 1 << 20
# A place of a rank's memory: MSCCL's buffer and the chunk in it.
Place = tuple[str, int]


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


@dataclasses.dataclass(frozen=True)
class Lanes:
    """The lanes of each rank. Called as `register_algorithm` calls its ``lanes``."""

    lanes: tuple[tuple[tuple[Step, ...], ...], ...]

    def __call__(self, spec: Spec, rank: int) -> Sequence[Sequence[Step]]:
        if spec.nranks != len(self.lanes):
            raise ValueError(f"{spec.algorithm} is for {len(self.lanes)} ranks, not {spec.nranks}")
        return self.lanes[rank]


def register(text: str) -> tuple[str, str]:
    """Makes ``algorithm=NAME`` run the algorithm in ``text``; returns the name and the collective.

    Raises ValueError where the file is no such algorithm, with what is wrong, or uses what our schedules have not
    (reductions of two local chunks; operands of others that are kept while a reduction is incomplete).
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
    run = _Run(collective, ranks, pieces, root.get("inplace") == "1", blocks)
    run.play()
    lanes = Lanes(tuple(tuple(map(tuple, each)) for each in run.lanes))
    nlanes = len(run.lanes[0])
    scratch = max((len(each) for each in run.scratch.values()), default=0)
    register_algorithm(
        name,
        collective,
        lanes,
        pieces=_Constant(pieces),
        nlanes=_Constant(nlanes),
        scratch_chunks=scratch,
    )
    return name, collective


@dataclasses.dataclass(frozen=True)
class _Constant:
    """The same for every Spec. A dataclass, so that an algorithm that is registered again equals itself."""

    value: int

    def __call__(self, _: Spec) -> int:
        return self.value


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


@dataclasses.dataclass(frozen=True)
class _Value:
    """What lies at a place: the ranks whose operands are in it (reductions), and where the engine keeps it."""

    ranks: int
    chunk: Chunk


class _Run:
    """Makes all steps once, in an order in which they can be made, and writes ours."""

    def __init__(self, collective: str, ranks: int, pieces: int, in_place: bool, blocks: list[_Block]) -> None:
        self.facts = COLLECTIVES[collective]
        self.collective, self.ranks, self.pieces, self.in_place, self.blocks = (
            collective,
            ranks,
            pieces,
            in_place,
            blocks,
        )
        self.full = (1 << ranks) - 1
        self.nlanes = 1 + max((block.channel for block in blocks), default=0)
        self.lanes: list[list[list[Step]]] = [[[] for _ in range(self.nlanes)] for _ in range(ranks)]
        # Scratch is a lane's own: the number of each place that one has kept something at.
        self.scratch: dict[tuple[int, int], dict[Place, int]] = {}
        self.held: dict[tuple[int, Place], _Value] = {}
        self.sent: dict[tuple[int, int, int], deque[int]] = {}

    def play(self) -> None:
        at = {(block.rank, block.number): 0 for block in self.blocks}
        left = deque(self.blocks)
        idle = 0
        while left:
            block = left.popleft()
            moved = False
            key = (block.rank, block.number)
            while at[key] < len(block.steps) and self.ready(block, block.steps[at[key]], at):
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

    def ready(self, block: _Block, step: _Step, at: dict[tuple[int, int], int]) -> bool:
        other, needed = step.needs
        if other >= 0 and at.get((block.rank, other), 0) <= needed:
            return False
        if step.kind not in ("r", "rcs", "rrs", "rrc", "rrcs"):
            return True
        return len(self.sent.get((block.recv, block.rank, block.channel), ())) >= step.count

    def make(self, block: _Block, step: _Step) -> None:
        for i in range(step.count):
            source, target = ((buffer, offset + i) for buffer, offset in (step.source, step.target))
            self.one(block, step.kind, source, target)

    def one(self, block: _Block, kind: str, source: Place, target: Place) -> None:
        rank, lane = block.rank, block.channel
        recv: tuple[Peer, ...] = ()
        flags = Flag.NONE
        src: Chunk | None = None
        ranks = 0
        if kind in ("s", "cpy", "rrs", "rrc", "rrcs"):
            value = self.value(rank, source)
            src, ranks = value.chunk, value.ranks
        if kind[0] == "r":
            got = self.sent[block.recv, rank, lane].popleft()
            recv = (Peer(block.recv),)
            if self.partial(got):
                flags |= Flag.RECV_PARTIAL
            if kind in ("rrs", "rrc", "rrcs"):
                recv = (*recv, Peer(rank))
            ranks |= got
        folds = kind in ("rrs", "rrc", "rrcs")
        if folds and self.complete(ranks):
            flags |= Flag.FINAL
        send: tuple[Peer, ...] = ()
        if kind in ("s", "rcs", "rrs", "rrcs"):
            send = (Peer(block.send),)
            self.sent.setdefault((rank, block.send, lane), deque()).append(ranks)
            if self.partial(ranks):
                flags |= Flag.SEND_PARTIAL
        dst = self.keep(rank, lane, target, ranks) if kind in ("r", "rcs", "rrc", "rrcs", "cpy") else None
        self.lanes[rank][lane].append(Step(Kind.REDUCE if folds else Kind.MOVE, src, dst, recv, send, flags))

    def partial(self, ranks: int) -> bool:
        """Whether a value is a fold that is not complete."""
        return self.facts.reduces and bool(ranks & (ranks - 1)) and ranks != self.full

    def complete(self, ranks: int) -> bool:
        return self.facts.reduces and ranks == self.full

    def place(self, rank: int, place: Place) -> Place:
        """Operand and result are one in calls in place."""
        buffer, offset = place
        if not self.in_place or buffer == "s":
            return place
        if self.collective == "all_reduce":
            return "i", offset
        if self.collective == "all_gather" and buffer == "i":
            return "o", rank * self.pieces + offset
        if self.collective == "reduce_scatter" and buffer == "o":
            return "i", rank * self.pieces + offset
        return place

    def result(self, rank: int, place: Place) -> int | None:
        """The chunk of the result at a place, None where that is no result."""
        buffer, offset = place
        if self.in_place and buffer == "i":
            if self.collective == "all_reduce":
                return offset
            if self.collective == "reduce_scatter" and offset // self.pieces == rank:
                return offset % self.pieces
        return offset if buffer == "o" else None

    def value(self, rank: int, place: Place) -> _Value:
        buffer, offset = self.place(rank, place)
        found = self.held.get((rank, (buffer, offset)))
        if found is not None:
            return found
        if self.in_place and self.collective == "all_gather" and buffer == "o" and offset // self.pieces == rank:
            return _Value(1 << rank, Chunk(Buffer.INPUT, offset % self.pieces))
        if buffer == "i":
            return _Value(1 << rank, Chunk(Buffer.INPUT, offset))
        raise ScheduleError(f"rank {rank} reads {buffer}[{offset}] before anything is written there")

    def keep(self, rank: int, lane: int, place: Place, ranks: int) -> Chunk:
        place = self.place(rank, place)
        result = self.result(rank, place)
        if result is not None and (not self.facts.reduces or self.complete(ranks)):
            chunk = Chunk(Buffer.OUTPUT, result)
        elif self.facts.reduces and not self.partial(ranks):
            raise ScheduleError(
                f"rank {rank} keeps {'a result' if self.complete(ranks) else 'an operand of another rank'} at "
                f"{place[0]}[{place[1]}], where our schedules keep incomplete reductions only"
            )
        else:
            numbers = self.scratch.setdefault((rank, lane), {})
            chunk = Chunk(Buffer.SCRATCH, numbers.setdefault(place, len(numbers)))
        self.held[rank, place] = _Value(ranks, chunk)
        return chunk
