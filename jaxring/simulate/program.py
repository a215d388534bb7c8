"""Turns the steps of the simulated ranks into lanes whose steps name connections instead of ranks.

The engines' tables are made of the same steps (`Schedule.table`). A connection carries the messages of one lane from
one rank to another, in order. Where a `Symmetry` is given, only one rank of each class has lanes, and a connection
stands for all that the symmetry maps onto each other.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, NamedTuple

from jaxring.plan.schedule import Buffer, Flag, Kind, ScheduleError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jaxring.plan.schedule import Chunk, Peer, Schedule, Step
    from jaxring.simulate.symmetry import Symmetry
    from jaxring.simulate.tile_sizes import Sizes


class Op(NamedTuple):
    """A step. ``recv``, ``send``: connections. ``memory``: (from rank, to rank) of data that crosses by memory.

    ``length``: the index of its chunk's length in `Sizes`. ``send_width``: bytes per element of the chunk in a message.
    ``memory_width``: bytes per element that each entry of ``memory`` stands for. A pair whose values are wider, as an
    epilogue may write them, has several entries. ``read_width``: bytes that it reads per element, from all sources
    together.

    Most steps of a lane are equal in all this, and are one object: a lane may have millions of them.
    """

    recv: tuple[int, ...]
    send: tuple[int, ...]
    memory: tuple[tuple[int, int], ...]
    length: int
    send_width: int
    memory_width: int
    read_width: int


@dataclasses.dataclass
class Lane:
    """The steps that one lane of a rank makes for each tile. ``numbers``: which of the table's each is."""

    rank: int
    number: int
    ops: list[Op]
    numbers: Sequence[int]


@dataclasses.dataclass
class Program:
    """``connections``: (from rank, to rank, lane) of each; the sender is a simulated rank.

    ``memory``: the ranks of those whose domain addresses memory, and so begins and ends together, by domain.
    """

    schedule: Schedule
    sizes: Sizes
    lanes: list[Lane]
    connections: list[tuple[int, int, int]]
    memory: dict[int, list[int]]


def compile_lanes(schedule: Schedule, sizes: Sizes, symmetry: Symmetry | None = None) -> Program:
    """The program of all ranks, or of one rank of each class. Raises ScheduleError for a chunk of unknown length."""
    number: dict[tuple[int, int, int], int] = {}
    lanes: list[Lane] = []
    by_memory: set[int] = set()
    ranks: Iterable[int] = range(schedule.spec.nranks) if symmetry is None else symmetry.ranks
    for rank in ranks:
        for lane, steps in enumerate(schedule.lanes(rank)):
            reader = _Reader(schedule, sizes, rank, lane, number, symmetry)
            read = [(op, i) for i, step in enumerate(steps) if (op := reader.read(step, i))]
            by_memory |= reader.by_memory
            if read:
                numbers = range(len(read)) if len(read) == len(steps) else [number for _, number in read]
                lanes.append(Lane(rank, lane, [op for op, _ in read], numbers))
    domains: dict[int, list[int]] = {}
    placement = schedule.spec.placement
    touched = {placement[rank] for rank in by_memory}
    for rank in ranks:
        if placement[rank] in touched:
            domains.setdefault(placement[rank], []).append(rank)
    return Program(schedule, sizes, lanes, list(number), domains)


class _Reader:
    """Reads the steps of one lane in their order."""

    def __init__(
        self,
        schedule: Schedule,
        sizes: Sizes,
        rank: int,
        lane: int,
        number: dict[tuple[int, int, int], int],
        symmetry: Symmetry | None,
    ) -> None:
        self.schedule, self.sizes, self.rank, self.lane = schedule, sizes, rank, lane
        self.number, self.symmetry = number, symmetry
        self.scratch: dict[int, int] = {}
        self.by_memory: set[int] = set()
        self.known: dict[Op, Op] = {}
        self.alike: dict[tuple[object, ...], Op] = {}

    def connection(self, source: int, target: int) -> int:
        if self.symmetry is not None:
            source, target = self.symmetry.canonical(source, target)
        return self.number.setdefault((source, target, self.lane), len(self.number))

    def length(self, chunk: Chunk, number: int) -> int:
        if chunk.buffer is Buffer.SCRATCH:
            if chunk.index not in self.scratch:
                raise ScheduleError(
                    f"rank {self.rank}, lane {self.lane}, step {number}: it reads scratch chunk {chunk.index} before "
                    "anything is written there"
                )
            return self.scratch[chunk.index]
        return self.sizes.of_piece[chunk.index % self.schedule.pieces]

    def read(self, step: Step, number: int) -> Op | None:
        """None for a step that only fills with zeros, which takes no time."""
        kind, src, dst, recv, send, flags, parts = step
        if flags & Flag.ZERO:
            return None
        named = dst if dst is not None and (dst.buffer is not Buffer.SCRATCH or src is None) else src
        if named is None:
            raise ScheduleError(f"rank {self.rank}, lane {self.lane}, step {number}: it names no chunk")
        length = self.length(named, number)
        if dst is not None and dst.buffer is Buffer.SCRATCH:
            self.scratch[dst.index] = length
        # All that an Op says of a step.
        buffers = src.buffer if src is not None else None, dst.buffer if dst is not None else None
        key = (kind, flags, *buffers, length, parts, recv, send)
        alike = self.alike.get(key)
        if alike is None:
            op = self._op(*key)
            alike = self.alike[key] = self.known.setdefault(op, op)
        return alike

    def _op(
        self,
        kind: Kind,
        flags: Flag,
        src: Buffer | None,
        dst: Buffer | None,
        length: int,
        parts: int,
        sources: tuple[Peer, ...],
        targets: tuple[Peer, ...],
    ) -> Op:
        rank = self.rank
        recv: list[int] = []
        send: list[int] = []
        reads: list[tuple[int, int]] = []
        writes: list[tuple[int, int]] = []
        for peer in sources:
            if peer.memory:
                reads.append((peer.rank, rank))
            elif peer.rank != rank:
                recv.append(self.connection(peer.rank, rank))
        for peer in targets:
            if peer.memory:
                writes.append((rank, peer.rank))
            else:
                send.append(self.connection(rank, peer.rank))
        if reads or writes:
            self.by_memory.add(rank)
        # Whole values are results where a step reads or writes the output, and behind an epilogue.
        results = src is Buffer.OUTPUT or (dst is Buffer.OUTPUT and not flags & Flag.EPILOGUE)
        element, partial = self.sizes.result if results else self.sizes.element, self.sizes.partial
        target = self.sizes.result if flags & Flag.EPILOGUE else element
        # A message of several chunks: of each rank that it is gathered from, or spread to, so many blocks.
        blocks = max(1, parts)
        many = blocks * len(sources) if kind is Kind.GATHER else 1
        reads, writes = reads * blocks, writes * blocks
        read = (blocks * (1 + len(targets)) if kind is Kind.SPREAD else blocks * max(1, len(sources))) * element
        if flags & Flag.RECV_PARTIAL:
            read += len(recv) * (partial - element)
        send_width = (partial if flags & Flag.SEND_PARTIAL else target) * many
        width = math.gcd(*(of for of, pairs in ((element, reads), (target, writes)) if pairs)) or element
        memory = reads * (element // width) + writes * (target // width)
        return Op(tuple(recv), tuple(send), tuple(memory), length, send_width, width, read)
