"""Turns the tables of the simulated ranks into lanes whose steps name connections instead of ranks.

The tables are those that the engines read (`Schedule.table`). A connection carries the messages of one lane from one
rank to another, in order. Where a `Symmetry` is given, only one rank of each class has lanes, and a connection stands
for all that the symmetry maps onto each other.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import TYPE_CHECKING, NamedTuple

from jaxring.plan.schedule import MEMORY_PEER, Buffer, Flag, Kind, Schedule, ScheduleError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jaxring.simulate.symmetry import Symmetry
    from jaxring.simulate.tile_sizes import Sizes

_INPUT, _OUTPUT, _SCRATCH = int(Buffer.INPUT), int(Buffer.OUTPUT), int(Buffer.SCRATCH)
_ZERO, _RECV_PARTIAL, _SEND_PARTIAL = int(Flag.ZERO), int(Flag.RECV_PARTIAL), int(Flag.SEND_PARTIAL)
_EPILOGUE = int(Flag.EPILOGUE)
_GATHER, _SPREAD = int(Kind.GATHER), int(Kind.SPREAD)


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
        steps, begin, peers = schedule.rows(rank)
        for lane, (first, end) in enumerate(itertools.pairwise(begin)):
            if first == end:
                continue
            reader = _Reader(schedule, sizes, rank, lane, peers, number, symmetry)
            read = [(op, i) for i in range(end - first) if (op := reader.read(steps[first + i], i))]
            by_memory |= reader.by_memory
            if read:
                numbers = range(len(read)) if len(read) == end - first else [number for _, number in read]
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
        peers: list[int],
        number: dict[tuple[int, int, int], int],
        symmetry: Symmetry | None,
    ) -> None:
        self.schedule, self.sizes, self.rank, self.lane = schedule, sizes, rank, lane
        self.peers, self.number, self.symmetry = peers, number, symmetry
        self.scratch: dict[int, int] = {}
        self.by_memory: set[int] = set()
        self.known: dict[Op, Op] = {}
        self.alike: dict[tuple[object, ...], Op] = {}

    def connection(self, source: int, target: int) -> int:
        if self.symmetry is not None:
            source, target = self.symmetry.canonical(source, target)
        return self.number.setdefault((source, target, self.lane), len(self.number))

    def length(self, buffer: int, chunk: int, number: int) -> int:
        if buffer == _SCRATCH:
            if chunk not in self.scratch:
                raise ScheduleError(
                    f"rank {self.rank}, lane {self.lane}, step {number}: it reads scratch chunk {chunk} before "
                    "anything is written there"
                )
            return self.scratch[chunk]
        return self.sizes.of_piece[chunk % self.schedule.pieces]

    def read(self, step: tuple[int, ...], number: int) -> Op | None:
        """None for a step that only fills with zeros, which takes no time."""
        kind, flags, src, dst, src_chunk, dst_chunk, recv_begin, send_begin, recv_count, send_count = step
        if flags & _ZERO:
            return None
        in_memory = dst in (_INPUT, _OUTPUT)
        if not in_memory and not src:
            raise ScheduleError(f"rank {self.rank}, lane {self.lane}, step {number}: it names no chunk")
        length = self.length(dst, dst_chunk, number) if in_memory or not src else self.length(src, src_chunk, number)
        if dst == _SCRATCH:
            self.scratch[dst_chunk] = length
        sources = tuple(self.peers[recv_begin : recv_begin + recv_count])
        targets = tuple(self.peers[send_begin : send_begin + send_count]) if send_count else ()
        parts = src_chunk if kind == _SPREAD else 0
        # All that an Op says of a step.
        key = (kind, flags, src, dst, length, parts, sources, targets)
        alike = self.alike.get(key)
        if alike is None:
            op = self._op(*key)
            alike = self.alike[key] = self.known.setdefault(op, op)
        return alike

    def _op(
        self,
        kind: int,
        flags: int,
        src: int,
        dst: int,
        length: int,
        parts: int,
        sources: tuple[int, ...],
        targets: tuple[int, ...],
    ) -> Op:
        rank = self.rank
        recv: list[int] = []
        send: list[int] = []
        reads: list[tuple[int, int]] = []
        writes: list[tuple[int, int]] = []
        for peer in sources:
            other = peer & (MEMORY_PEER - 1)
            if peer & MEMORY_PEER:
                reads.append((other, rank))
            elif other != rank:
                recv.append(self.connection(other, rank))
        for peer in targets:
            other = peer & (MEMORY_PEER - 1)
            if peer & MEMORY_PEER:
                writes.append((rank, other))
            else:
                send.append(self.connection(rank, other))
        if reads or writes:
            self.by_memory.add(rank)
        # Whole values are results where a step reads or writes the output, and behind an epilogue.
        results = src == _OUTPUT or (dst == _OUTPUT and not flags & _EPILOGUE)
        element, partial = self.sizes.result if results else self.sizes.element, self.sizes.partial
        target = self.sizes.result if flags & _EPILOGUE else element
        many = len(sources) if kind == _GATHER else 1
        read = (parts if kind == _SPREAD else max(1, len(sources))) * element
        if flags & _RECV_PARTIAL:
            read += len(recv) * (partial - element)
        send_width = (partial if flags & _SEND_PARTIAL else target) * many
        width = math.gcd(*(of for of, pairs in ((element, reads), (target, writes)) if pairs)) or element
        memory = reads * (element // width) + writes * (target // width)
        return Op(tuple(recv), tuple(send), tuple(memory), length, send_width, width, read)
