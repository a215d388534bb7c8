"""What a schedule is: for each rank a few lanes, each a list of steps over chunks.

The record is declared here as a NumPy dtype and in ``ffi/plan/schedule.h`` as a struct, held equal by
``tests/plan/test_schedule_record.py``. A schedule knows nothing of bytes or dtypes: the same table serves every
message size.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from jaxring.plan.collectives import COLLECTIVES, Arguments, Collective, Source

STEP_DTYPE = np.dtype(
    [
        ("kind", "u1"),
        ("flags", "u1"),
        ("src_buffer", "u1"),
        ("dst_buffer", "u1"),
        ("src_chunk", "<i4"),
        ("dst_chunk", "<i4"),
        ("recv_begin", "<u4"),
        ("send_begin", "<u4"),
        ("recv_count", "<u2"),
        ("send_count", "<u2"),
    ]
)

MEMORY_PEER = 1 << 24


class Buffer(enum.IntEnum):
    """Where a step finds or leaves a chunk. Scratch is a lane's own and holds accumulator elements."""

    NONE = 0
    INPUT = 1
    OUTPUT = 2
    SCRATCH = 3


class Kind(enum.IntEnum):
    """MOVE has one source; REDUCE folds its sources from left to right.

    GATHER puts chunks of several ranks of its domain into one message: of each of ``parts`` blocks, one after another,
    those of all these ranks in their order. SPREAD takes such a message apart, into ``parts`` blocks, one after
    another, of its own output and of each memory peer to which it sends, in the order of all these ranks. Reductions
    have neither.
    """

    MOVE = 0
    REDUCE = 1
    GATHER = 2
    SPREAD = 3


class Flag(enum.IntFlag):
    """FINAL: every contribution is in. *_PARTIAL: messages hold accumulator elements. ZERO: fill with zeros.

    EPILOGUE, beside FINAL: the call's epilogue is applied to the value, which becomes a result (`plan/epilogue.py`).
    """

    NONE = 0
    FINAL = 1
    RECV_PARTIAL = 2
    SEND_PARTIAL = 4
    ZERO = 8
    EPILOGUE = 16


class Results(enum.Enum):
    """What the results of a schedule's reduction are.

    VALUES: the complete values. APPLIED: what an epilogue makes of them, anywhere. OWN: what an epilogue makes of them
    whose operands are a rank's own, so that the rank that has the result applies it.
    """

    VALUES = enum.auto()
    APPLIED = enum.auto()
    OWN = enum.auto()


class Peer(NamedTuple):
    """A rank as a step lists it. ``memory`` peers are addressed directly, others are reached by messages.

    As a source, a memory peer's own ``src`` chunk is read; as a destination, its own ``dst`` chunk is written.
    A rank listed among its own step's sources stands for its local ``src`` chunk.
    """

    rank: int
    memory: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """Chunk ``index`` of a buffer. ``index = block * pieces + piece``."""

    buffer: Buffer
    index: int


class Step(NamedTuple):
    """One tile of a chunk: from ``recv`` (or the local ``src`` alone) to the local ``dst`` and the peers ``send``."""

    kind: Kind
    src: Chunk | None = None
    dst: Chunk | None = None
    recv: tuple[Peer, ...] = ()
    send: tuple[Peer, ...] = ()
    flags: Flag = Flag.NONE
    parts: int = 0

    @property
    def message_chunks(self) -> int:
        """Chunks of a message that it sends."""
        return len(self.recv) * self.parts if self.kind is Kind.GATHER else 1


Lane = tuple[Step, ...]
LanesFn = Callable[[int], Sequence[Sequence[Step]]]


class ScheduleError(ValueError):
    """A schedule that would not compute its collective; the message names rank, lane and step where there is one."""


@dataclasses.dataclass(frozen=True)
class Spec:
    """What to plan: hashable, and all that a schedule depends on.

    ``placement`` is the id of each rank's memory domain (empty: every rank is a domain of its own). Ranks of one domain
    can address each other's memory. ``perm`` are permute's (source, target) pairs. ``channels`` multiplies the lanes.
    ``order`` are all domains in the order in which rings visit them (empty: in that of their lowest ranks).
    """

    collective: str
    nranks: int
    algorithm: str
    root: int = 0
    channels: int = 1
    placement: tuple[int, ...] = ()
    perm: tuple[tuple[int, int], ...] = ()
    order: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.collective not in COLLECTIVES:
            raise ValueError(f"unknown collective {self.collective!r}; there are {', '.join(COLLECTIVES)}")
        if not 1 <= self.nranks < MEMORY_PEER:
            raise ValueError(f"nranks must be between 1 and {MEMORY_PEER - 1}, not {self.nranks}")
        if not 0 <= self.root < self.nranks:
            raise ValueError(f"root {self.root} is not one of the ranks 0..{self.nranks - 1}")
        if self.channels < 1:
            raise ValueError(f"channels must be at least 1, not {self.channels}")
        if not self.placement:
            object.__setattr__(self, "placement", tuple(range(self.nranks)))
        if len(self.placement) != self.nranks:
            raise ValueError(f"placement names {len(self.placement)} ranks, but there are {self.nranks}")
        if self.order and sorted(self.order) != sorted(set(self.placement)):
            raise ValueError(f"order {self.order} does not name each memory domain of {self.placement} once")
        if self.perm and not self.facts.pairs:
            raise ValueError(f"perm is for permute, not for {self.collective}")
        for what, ranks in (("source", [s for s, _ in self.perm]), ("target", [t for _, t in self.perm])):
            if len(set(ranks)) != len(ranks):
                raise ValueError(f"perm names a {what} twice: {self.perm}")
            if any(not 0 <= rank < self.nranks for rank in ranks):
                raise ValueError(f"perm names a {what} that is not one of the ranks 0..{self.nranks - 1}: {self.perm}")

    @property
    def facts(self) -> Collective:
        """The collective's record."""
        return COLLECTIVES[self.collective]

    @property
    def in_blocks(self) -> int:
        return self.facts.in_blocks(self.nranks)

    @property
    def out_blocks(self) -> int:
        return self.facts.out_blocks(self.nranks)

    def results(self, rank: int) -> list[Source]:
        """Where each block of the result of ``rank`` comes from."""
        return self.facts.results(Arguments(self.nranks, self.root, self.perm), rank)


@dataclasses.dataclass(frozen=True)
class Table:
    """One rank's lanes as arrays: steps of all lanes, each lane's first step (and the end), and the peers they list.

    ``steps``: STEP_DTYPE[steps]; ``lane_begin``: uint32[nlanes + 1]; ``peers``: int32, MEMORY_PEER set where memory.
    """

    steps: npt.NDArray[np.void]
    lane_begin: npt.NDArray[np.uint32]
    peers: npt.NDArray[np.int32]


@dataclasses.dataclass(frozen=True, eq=False)
class Schedule:
    """The plan of one collective: per rank ``nlanes`` lanes, generated when a rank is asked for.

    Every block of a buffer is split into ``pieces`` pieces (chunk id = block * pieces + piece; a chunk's length
    depends on its piece alone). ``scratch_chunks`` is per lane. Messages of (src, lane i) go to (dst, lane i).
    ``group``: chunks of the longest message. ``lanes_fn`` may return fewer than ``nlanes`` lanes: the rest are empty.
    ``results``: what makes a result of a complete value.
    """

    spec: Spec
    pieces: int
    nlanes: int
    scratch_chunks: int
    lanes_fn: LanesFn = dataclasses.field(repr=False)
    group: int = 1
    results: Results = Results.VALUES

    @property
    def in_blocks(self) -> int:
        return self.spec.in_blocks

    @property
    def out_blocks(self) -> int:
        return self.spec.out_blocks

    def lanes(self, rank: int) -> tuple[Lane, ...]:
        """The lanes of one rank; other ranks' are not built."""
        if not 0 <= rank < self.spec.nranks:
            raise IndexError(f"rank {rank} is not one of the ranks 0..{self.spec.nranks - 1}")
        lanes = tuple(tuple(lane) for lane in self.lanes_fn(rank))
        if len(lanes) > self.nlanes:
            raise self.fault(f"rank {rank} has {len(lanes)} lanes, but the schedule declares {self.nlanes}")
        return lanes + ((),) * (self.nlanes - len(lanes))

    def fault(self, what: str) -> ScheduleError:
        """An error that names the algorithm, its collective and the number of ranks."""
        return ScheduleError(f"{self.spec.algorithm} {self.spec.collective} of {self.spec.nranks} ranks: {what}")

    def table(self, rank: int) -> Table:
        """The lanes of one rank as the arrays that the engines read. An absent buffer's chunk is written as 0."""
        rows: list[tuple[int, ...]] = []
        begin = [0]
        peers: list[int] = []
        for lane in self.lanes(rank):
            for step in lane:
                src, dst, recv, send = step.src, step.dst, step.recv, step.send
                recv_begin = len(peers)
                if recv:
                    peers += [p.rank | MEMORY_PEER if p.memory else p.rank for p in recv]
                send_begin = len(peers)
                if send:
                    peers += [p.rank | MEMORY_PEER if p.memory else p.rank for p in send]
                rows.append(
                    (
                        int(step.kind),
                        int(step.flags),
                        int(src.buffer) if src else 0,
                        int(dst.buffer) if dst else 0,
                        src.index if src else step.parts,
                        dst.index if dst else step.parts,  # only of a GATHER, as above of a SPREAD, not 0
                        recv_begin,
                        send_begin,
                        len(recv),
                        len(send),
                    )
                )
            begin.append(len(rows))
        return Table(np.array(rows, STEP_DTYPE), np.array(begin, np.uint32), np.array(peers, np.int32))

    def message_peers(self, rank: int) -> tuple[frozenset[int], frozenset[int]]:
        """The ranks to which ``rank`` sends messages, and those from which it receives them."""
        steps = [step for lane in self.lanes(rank) for step in lane]
        send = frozenset(p.rank for step in steps for p in step.send if not p.memory)
        recv = frozenset(p.rank for step in steps for p in step.recv if not p.memory and p.rank != rank)
        return send, recv

    def uses_memory(self, rank: int) -> bool:
        """Whether ``rank``'s domain addresses memory: then its ranks begin together and end together.

        True also for a rank that only lends its buffers to the others of its domain.
        """
        domain = self.spec.placement[rank]
        members = [rank, *(r for r, where in enumerate(self.spec.placement) if where == domain and r != rank)]
        if len(members) == 1:
            return False
        return any(
            peer.memory
            for member in members
            for lane in self.lanes(member)
            for step in lane
            for peer in (*step.recv, *step.send)
        )
