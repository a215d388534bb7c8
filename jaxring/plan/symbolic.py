"""The static half of the verifier: checks every step by itself, and which lane accesses which chunk.

Steps become ``Op``s, in which peers are FIFOs or places in memory, so that the symbolic run is quick.
"""

from __future__ import annotations

import itertools
from collections import deque

from jaxring.plan.schedule import Buffer, Flag, Kind, Peer, Results, Schedule, ScheduleError, Step

# (mask of contributors, fold order id, input chunk id, state)
Value = tuple[int, int, int, int]
# APPLIED: complete, and the epilogue has been applied to it.
RAW, PARTIAL, COMPLETE, APPLIED = 0, 1, 2, 3
# Kinds of an Op's sources; the buffers have Buffer's numbers.
MESSAGE = 0
# Plain numbers: operations on IntFlag are slow, and this code runs for every step of every rank.
_FINAL, _RECV_PARTIAL, _SEND_PARTIAL, _ZERO, _EPILOGUE = map(
    int, (Flag.FINAL, Flag.RECV_PARTIAL, Flag.SEND_PARTIAL, Flag.ZERO, Flag.EPILOGUE)
)


class Fifo:
    """Messages of (src, lane) to (dst, lane): (value, sent as partial)."""

    __slots__ = ("consumer", "dst", "items", "most", "producer", "src")

    def __init__(self, src: int, dst: int) -> None:
        self.src, self.dst = src, dst
        self.items: deque[tuple[Value, bool]] = deque()
        self.most = 0
        self.producer: LaneState | None = None
        self.consumer: LaneState | None = None


class Op:
    """A step with its peers resolved. ``sources`` are (kind, rank, chunk, FIFO)."""

    __slots__ = (
        "epilogue",
        "final",
        "gather",
        "of_output",
        "outputs",
        "piece",
        "recv_fifos",
        "recv_partial",
        "reduce",
        "scratch",
        "send_fifos",
        "send_partial",
        "sources",
        "spread",
        "zero",
    )

    def __init__(self, step: Step) -> None:
        flags = int(step.flags)
        self.reduce = step.kind == Kind.REDUCE
        self.gather = step.kind == Kind.GATHER
        self.spread = step.kind == Kind.SPREAD
        self.zero = bool(flags & _ZERO)
        # Whether the chunk that gives its messages their length is of the output, which holds results.
        length = step.src or (None if self.reduce else step.dst)
        self.of_output = length is not None and length.buffer == Buffer.OUTPUT
        self.final = bool(flags & _FINAL)
        self.epilogue = bool(flags & _EPILOGUE)
        self.recv_partial = bool(flags & _RECV_PARTIAL)
        self.send_partial = bool(flags & _SEND_PARTIAL)
        self.sources: list[tuple[int, int, int, Fifo | None]] = []
        self.recv_fifos: list[Fifo] = []
        self.send_fifos: list[Fifo] = []
        self.outputs: list[tuple[int, int]] = []
        self.scratch = -1
        self.piece = -1


class LaneState:
    """A lane's program and its position in it."""

    __slots__ = ("lane", "ops", "position", "queued", "rank", "scratch", "tile")

    def __init__(self, rank: int, lane: int) -> None:
        self.rank, self.lane = rank, lane
        self.ops: list[Op] = []
        self.position = 0
        self.tile = 0
        self.scratch: dict[int, Value] = {}
        self.queued = True


class Compiler:
    """Checks each step by itself and resolves it; records which lane accesses which output chunk."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.spec = schedule, schedule.spec
        self.pieces = schedule.pieces
        n = self.spec.nranks
        self.reduction = self.spec.facts.reduces
        self.aliased = self.spec.facts.in_place
        self.in_chunks = schedule.in_blocks * self.pieces
        self.out_chunks = schedule.out_blocks * self.pieces
        self.limits = {
            Buffer.INPUT: self.in_chunks,
            Buffer.OUTPUT: self.out_chunks,
            Buffer.SCRATCH: schedule.scratch_chunks,
        }
        self.fifos: dict[tuple[int, int, int], Fifo] = {}
        self.touched: dict[tuple[int, int], tuple[int, int]] = {}
        self.shared: dict[tuple[int, int], tuple[int, int]] = {}
        self.written: set[tuple[int, int]] = set()
        self.messages = [0] * n
        self.memory = [0] * n
        self.where = ""
        self.lanes: list[LaneState] = []

    def fail(self, what: str) -> ScheduleError:
        return self.schedule.fault(f"{self.where}{what}")

    def at(self, lane: LaneState, step: int) -> None:
        self.where = f"rank {lane.rank}, lane {lane.lane}, step {step}: "

    def compile(self) -> None:
        for rank in range(self.spec.nranks):
            for index, steps in enumerate(self.schedule.lanes(rank)):
                lane = LaneState(rank, index)
                for number, step in enumerate(steps):
                    try:
                        lane.ops.append(self.resolve(lane, step))
                    except ScheduleError as error:
                        self.at(lane, number)
                        raise self.fail(str(error)) from None
                self.lanes.append(lane)
        self.where = ""
        for key, second in self.shared.items():
            if key in self.written:
                first = self.touched[key]
                raise self.fail(
                    f"rank {second[0]}, lane {second[1]} touches output chunk {key[1]} of rank {key[0]}, which "
                    f"rank {first[0]}, lane {first[1]} touches too; nothing orders the two"
                )

    def touch(self, lane: LaneState, rank: int, chunk: int, write: bool) -> None:
        key, who = (rank, chunk), (lane.rank, lane.lane)
        if self.touched.setdefault(key, who) != who:
            self.shared[key] = who
        if write:
            self.written.add(key)

    def fifo(self, src: int, dst: int, lane: int) -> Fifo:
        fifo = self.fifos.get((src, dst, lane))
        if fifo is None:
            fifo = self.fifos[src, dst, lane] = Fifo(src, dst)
        return fifo

    def check_peers(self, rank: int, peers: tuple[Peer, ...], what: str) -> None:
        seen = [p.rank for p in peers]
        if len(set(seen)) != len(seen):
            raise ScheduleError(f"it lists a rank twice among those it {what}: {seen} (a duplicate contribution)")
        placement = self.spec.placement
        for p in peers:
            if not 0 <= p.rank < self.spec.nranks:
                raise ScheduleError(f"it {what} rank {p.rank}, which does not exist")
            if p.memory and (p.rank == rank or placement[p.rank] != placement[rank]):
                raise ScheduleError(f"it {what} rank {p.rank} by memory, which is not another rank of its domain")

    def resolve(self, lane: LaneState, step: Step) -> Op:
        rank, src, dst = lane.rank, step.src, step.dst
        op = Op(step)
        if step.recv:
            self.check_peers(rank, step.recv, "receives from")
        if step.send:
            self.check_peers(rank, step.send, "sends to")
        for chunk in (src, dst):
            if chunk and not 0 <= chunk.index < self.limits.get(chunk.buffer, 0):
                raise ScheduleError(f"there is no chunk {chunk.index} in {chunk.buffer.name}")
        if (op.final or op.reduce or op.recv_partial or op.send_partial) and not self.reduction:
            raise ScheduleError(f"{self.spec.collective} folds nothing, so no step may reduce or carry partial values")
        if op.final and not op.reduce:
            raise ScheduleError("FINAL belongs on the REDUCE that completes a value")
        if op.epilogue and self.schedule.results is Results.VALUES:
            raise ScheduleError("EPILOGUE on a step of a schedule without an epilogue")
        # Sources.
        if op.zero:
            if op.reduce or src or step.recv or step.send or not dst or dst.buffer != Buffer.OUTPUT:
                raise ScheduleError("a ZERO step has no source and one destination, a chunk of its own output")
        elif (op.gather or op.spread) and self.reduction:
            raise ScheduleError("GATHER and SPREAD move inputs as they are, which is no part of a reduction")
        elif op.gather:
            if not src or src.buffer != Buffer.INPUT or dst or len(step.send) != 1 or step.send[0].memory:
                raise ScheduleError("a GATHER reads chunks of the input of ranks of its domain and sends one message")
            if not 0 < step.message_chunks <= self.schedule.group:
                raise ScheduleError(
                    f"it gathers {step.message_chunks} chunks; the schedule declares {self.schedule.group}"
                )
            if src.index + (step.parts - 1) * self.pieces >= self.in_chunks:
                raise ScheduleError(f"there are no {step.parts} blocks from chunk {src.index} on")
        elif op.spread:
            if src or not dst or dst.buffer != Buffer.OUTPUT or len(step.recv) != 1 or step.parts < 1:
                raise ScheduleError("a SPREAD takes one message apart, into blocks of outputs")
            if [p.rank for p in step.send if p.memory] != sorted(p.rank for p in step.send):
                raise ScheduleError("a SPREAD writes the outputs of memory peers in the order of their ranks")
            if dst.index + (step.parts - 1) * self.pieces >= self.out_chunks:
                raise ScheduleError(f"there are no {step.parts} blocks from chunk {dst.index} on")
        elif not op.reduce and len(step.recv) > 1:
            raise ScheduleError("a MOVE has one source")
        sources = step.recv or (() if op.zero else (Peer(rank),))
        # The chunks of a gathered message lie block by block.
        for block, peer in itertools.product(range(step.parts if op.gather else 1), sources):
            if peer.rank != rank and not peer.memory:
                if op.gather:
                    raise ScheduleError("a GATHER reads memory, not messages")
                fifo = self.fifo(peer.rank, rank, lane.lane)
                fifo.consumer = lane
                op.recv_fifos.append(fifo)
                op.sources.append((MESSAGE, peer.rank, -1, fifo))
                continue
            if src is None:
                raise ScheduleError("it reads a chunk in memory but names no src")
            if src.buffer == Buffer.SCRATCH and peer.memory:
                raise ScheduleError("another rank's scratch cannot be read")
            if src.buffer == Buffer.OUTPUT or (src.buffer == Buffer.INPUT and self.aliased):
                self.touch(lane, peer.rank, src.index, write=False)
            self.memory[rank] += peer.memory
            op.sources.append((int(src.buffer), peer.rank, src.index + block * self.pieces, None))
        if op.recv_partial and not op.recv_fifos:
            raise ScheduleError("RECV_PARTIAL on a step that receives no message")
        # Destinations.
        if dst and dst.buffer == Buffer.INPUT:
            raise ScheduleError("the input must not be written")
        if not dst and not step.send:
            raise ScheduleError("it has no destination")
        if not dst and not src:
            raise ScheduleError("it names no chunk, so nothing says how long its message is: give it a dst in scratch")
        if dst and dst.buffer == Buffer.SCRATCH:
            op.scratch = dst.index
        elif dst:
            op.piece = dst.index % self.pieces
            blocks = [dst.index + part * self.pieces for part in range(max(1, step.parts))]
            op.outputs += [(rank, index) for index in blocks]
        for peer in step.send:
            if peer.memory:
                if not dst or dst.buffer != Buffer.OUTPUT:
                    raise ScheduleError("to write a peer's memory a step must have a dst in the output")
                op.outputs += [(peer.rank, index) for index in blocks]
                self.memory[rank] += len(blocks)
            elif peer.rank == rank:
                raise ScheduleError("it sends a message to itself")
            else:
                fifo = self.fifo(rank, peer.rank, lane.lane)
                fifo.producer = lane
                op.send_fifos.append(fifo)
                self.messages[rank] += 1
        op.outputs.sort()
        for target, index in op.outputs:
            self.touch(lane, target, index, write=True)
        if op.send_partial and not op.send_fifos:
            raise ScheduleError("SEND_PARTIAL on a step that sends no message")
        return op
