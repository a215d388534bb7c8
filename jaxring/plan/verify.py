"""The verifier: runs a schedule symbolically for all ranks and reports the first fault.

A value is (mask of contributors, fold order id, input chunk id, state). Order ids are interned: rank r's own input is
id r, and folding b onto a is one id per pair (a, b), so equal ids mean the same arithmetic in the same order.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import cast

from jaxring.plan.collectives import Folded, Source
from jaxring.plan.schedule import Buffer, Results, Schedule, Spec
from jaxring.plan.symbolic import APPLIED, COMPLETE, MESSAGE, PARTIAL, RAW, Compiler, LaneState, Op, Value

ZERO: Value = (0, -1, -1, RAW)
# What has to be stored to an output of a reduction, by the state that it has to have.
_WANTED = {
    COMPLETE: "outputs take complete values: the fold that adds the last rank's contribution, with Flag.FINAL",
    APPLIED: "outputs take results of the epilogue: of a step with Flag.FINAL and Flag.EPILOGUE",
}
_STATES = ("a raw input", "a partial fold", "a complete value", "a result of the epilogue")


@dataclasses.dataclass(frozen=True)
class Report:
    """The results of a run. Counts are per tile.

    ``order_of``: fold order id by input chunk id (reductions only). ``messages``: messages sent by each rank.
    ``memory_chunks``: chunks of other ranks that each rank read or wrote directly. ``steps``: steps of each rank in all
    lanes. ``max_steps``: steps of the longest lane. ``max_fifo``: the most messages that any FIFO held at once.
    """

    spec: Spec
    order_of: dict[int, int]
    pairs: dict[int, tuple[int, int]] = dataclasses.field(repr=False)
    messages: tuple[int, ...]
    memory_chunks: tuple[int, ...]
    steps: tuple[int, ...]
    max_steps: int
    max_fifo: int

    def fold_order(self, chunk: int) -> str:
        """The declared order of a chunk's fold, as in ``0+1+(2+3)``: left to right unless bracketed."""

        def text(order: int) -> str:
            tail: list[str] = []
            while order in self.pairs:
                order, right = self.pairs[order]
                tail.append(f"({text(right)})" if right in self.pairs else str(right))
            return "+".join([str(order), *reversed(tail)])

        return text(self.order_of[chunk])


class _Run(Compiler):
    """Advances every lane as far as it can, until all are done or none can advance."""

    def __init__(self, schedule: Schedule, depth: int, tiles: int) -> None:
        super().__init__(schedule)
        n = self.spec.nranks
        self.depth, self.tiles = depth, tiles
        self.full = (1 << n) - 1
        # The state of what outputs hold, and whether a rank's results are made where they stay.
        self.result = COMPLETE if schedule.results is Results.VALUES else APPLIED
        self.own = schedule.results is Results.OWN
        self.outputs: list[list[dict[int, Value]]] = [[{} for _ in range(n)] for _ in range(tiles)]
        self.pair_ids: dict[tuple[int, int], int] = {}
        self.order_of: dict[int, int] = {}

    def run(self) -> None:
        queue = deque(self.lanes)
        while queue:
            lane = queue.popleft()
            lane.queued = False
            self.advance(lane, queue)
        for lane in self.lanes:
            if lane.position < len(lane.ops):
                self.deadlock(lane)
        self.where = ""
        for (src, dst, index), fifo in self.fifos.items():
            if fifo.items:
                raise self.fail(f"rank {dst}, lane {index} never receives {len(fifo.items)} message(s) of rank {src}")

    def deadlock(self, lane: LaneState) -> None:
        op = lane.ops[lane.position]
        self.at(lane, lane.position)
        for fifo in op.recv_fifos:
            if not fifo.items:
                raise self.fail(f"deadlock: it waits for a message from rank {fifo.src} that is never sent")
        full = next(fifo for fifo in op.send_fifos if len(fifo.items) >= self.depth)
        raise self.fail(f"deadlock: the FIFO to rank {full.dst} stays full at depth {self.depth}")

    def advance(self, lane: LaneState, queue: deque[LaneState]) -> None:
        ops, depth = lane.ops, self.depth
        while lane.position < len(ops):
            op = ops[lane.position]
            for fifo in op.recv_fifos:
                if not fifo.items:
                    return
            for fifo in op.send_fifos:
                if len(fifo.items) >= depth:
                    return
            self.step(lane, op)
            for fifo in op.recv_fifos:
                other = fifo.producer
                if other is not None and not other.queued:
                    other.queued = True
                    queue.append(other)
            for fifo in op.send_fifos:
                other = fifo.consumer
                if other is not None and not other.queued:
                    other.queued = True
                    queue.append(other)
            lane.position += 1
            if lane.position == len(ops) and lane.tile + 1 < self.tiles:
                lane.position = 0
                lane.tile += 1
                lane.scratch.clear()

    def source(self, lane: LaneState, kind: int, rank: int, chunk: int) -> Value:
        if kind == Buffer.INPUT:
            if self.aliased and chunk in self.outputs[lane.tile][rank]:
                raise self.fail(f"it reads input chunk {chunk} of rank {rank}, which an in-place call has overwritten")
            return (1 << rank, rank, chunk, RAW)
        value = lane.scratch.get(chunk) if kind == Buffer.SCRATCH else self.outputs[lane.tile][rank].get(chunk)
        if value is None:
            where = f"scratch chunk {chunk}" if kind == Buffer.SCRATCH else f"output chunk {chunk} of rank {rank}"
            raise self.fail(f"it reads {where} before anything is written there")
        return value

    def step(self, lane: LaneState, op: Op) -> None:
        self.at(lane, lane.position)
        values: list[Value] = []
        for kind, rank, chunk, fifo in op.sources:
            if kind != MESSAGE:
                values.append(self.source(lane, kind, rank, chunk))
                continue
            assert fifo is not None
            value, sent_partial = fifo.items.popleft()
            # The value of a gathered message is a tuple of values.
            if isinstance(value[0], tuple) != op.spread:
                raise self.fail(f"rank {rank} sends {'one chunk' if op.spread else 'several chunks'} in one message")
            if sent_partial != op.recv_partial:
                words = ("partial" if sent_partial else "raw", "partial" if op.recv_partial else "raw")
                raise self.fail(f"rank {rank} sends a {words[0]} message, but it expects a {words[1]} one")
            values.append(value)
        if op.gather:
            op.send_fifos[0].items.append((cast("Value", tuple(values)), False))
            op.send_fifos[0].most = max(op.send_fifos[0].most, len(op.send_fifos[0].items))
            return
        if op.spread:
            parts = cast("tuple[Value, ...]", values[0])
            if len(parts) != len(op.outputs):
                raise self.fail(f"a message of {len(parts)} chunks is spread into {len(op.outputs)} blocks")
            for (rank, index), part in zip(op.outputs, parts, strict=True):
                self.store(lane, op, rank, index, part)
            return
        result = ZERO if op.zero else self.fold(op, values) if op.reduce else values[0]
        if op.epilogue:
            result = self.apply(op, result)
        state = result[3]
        if op.send_partial != (state == PARTIAL) and op.send_fifos:
            words = ("with", "without") if op.send_partial else ("without", "with")
            raise self.fail(f"{_STATES[state]} is sent {words[0]} SEND_PARTIAL; it must be sent {words[1]} it")
        if op.scratch >= 0:
            if self.reduction and state != PARTIAL and op.reduce is False:
                raise self.fail(f"{_STATES[state]} is moved to scratch, which holds accumulator elements")
            if state >= COMPLETE:
                raise self.fail(f"{_STATES[state]} is stored to scratch, where it cannot be rounded")
            lane.scratch[op.scratch] = result
        for rank, index in op.outputs:
            if self.reduction and not op.zero and state != self.result:
                without = " without the epilogue" if state == COMPLETE else ""
                what = f"{_STATES[state]} is stored to output chunk {index} of rank {rank}{without}"
                raise self.fail(f"{what}; {_WANTED[self.result]}")
            if self.own and state == APPLIED and (rank != lane.rank or not op.epilogue):
                raise self.fail(
                    f"the epilogue's result for output chunk {index} of rank {rank} is made at another rank, which "
                    "does not have that rank's operands of the epilogue"
                )
            self.store(lane, op, rank, index, result)
        # Behind the checks of destinations, which find what is stored where it must not be.
        if self.result == APPLIED and op.recv_fifos and op.of_output != (state == APPLIED and not op.reduce):
            what = "a message is folded" if op.reduce else f"{_STATES[state]} is received"
            named = "no chunk" if op.of_output else "a chunk"
            raise self.fail(f"{what}; name {named} of the output as its src, since results may have another length")
        for fifo in op.send_fifos:
            fifo.items.append((result, op.send_partial))
            if len(fifo.items) > fifo.most:
                fifo.most = len(fifo.items)

    def store(self, lane: LaneState, op: Op, rank: int, index: int, value: Value) -> None:
        if not op.zero and value[2] % self.pieces != op.piece:
            raise self.fail(
                f"piece {value[2] % self.pieces} does not fit output piece {op.piece}: their lengths differ"
            )
        where = self.outputs[lane.tile][rank]
        if index in where:
            raise self.fail(f"output chunk {index} of rank {rank} is written twice")
        where[index] = value

    def fold(self, op: Op, values: list[Value]) -> Value:
        mask, order, chunk, _ = values[0]
        for value in values:
            if value[3] >= COMPLETE:
                raise self.fail(f"{_STATES[value[3]]} is folded again")
            if value[2] != chunk:
                raise self.fail(f"it folds chunk {value[2]} onto chunk {chunk}")
        for other, right, _, _ in values[1:]:
            if mask & other:
                twice = [r for r in range(self.spec.nranks) if mask & other & 1 << r]
                raise self.fail(f"the contribution of rank {twice[0]} to chunk {chunk} is folded twice (duplicate)")
            mask |= other
            order = self.pair_ids.setdefault((order, right), len(self.pair_ids) + self.spec.nranks)
        if op.final and mask != self.full:
            missing = [r for r in range(self.spec.nranks) if not mask & 1 << r]
            raise self.fail(f"FINAL on chunk {chunk}, but the contribution of rank {missing[0]} is missing")
        if not op.final and mask == self.full:
            raise self.fail(f"chunk {chunk} is complete here, but the step lacks FINAL")
        return (mask, order, chunk, COMPLETE if op.final else PARTIAL if mask & (mask - 1) else RAW)

    def apply(self, op: Op, value: Value) -> Value:
        """What the epilogue makes of a value: once, of every contribution, and where the engine does it."""
        mask, order, chunk, state = value
        if state == APPLIED:
            raise self.fail(f"the epilogue is applied twice to chunk {chunk}")
        if mask != self.full:
            missing = next(r for r in range(self.spec.nranks) if not mask & 1 << r)
            raise self.fail(f"the epilogue is applied to chunk {chunk} before the contribution of rank {missing} is in")
        if not op.final:
            raise self.fail("EPILOGUE belongs on the FINAL step, which has the value before it is rounded")
        return (mask, order, chunk, APPLIED)

    def expected(self, rank: int) -> list[Value | int]:
        """What the rank's output chunks must hold: a value or, for complete reductions, the chunk id."""

        def chunk(source: Source, piece: int) -> Value | int:
            if source is None:
                return ZERO
            index = source.block * self.pieces + piece
            return index if isinstance(source, Folded) else (1 << source.rank, source.rank, index, RAW)

        return [chunk(source, piece) for source in self.spec.results(rank) for piece in range(self.pieces)]

    def check_outputs(self) -> None:
        for rank in range(self.spec.nranks):
            expected = self.expected(rank)
            for outputs in self.outputs:
                found = outputs[rank]
                for index, want in enumerate(expected):
                    value = found.get(index)
                    if value is None:
                        raise self.fail(f"rank {rank} never gets output chunk {index}")
                    if isinstance(want, tuple):
                        if value != want:
                            raise self.fail(f"rank {rank} has {_say(value)} in output chunk {index}, not {_say(want)}")
                        continue
                    if value == ZERO or value[2] != want:
                        raise self.fail(f"rank {rank} has {_say(value)} in output chunk {index}, not chunk {want}")
                    if self.order_of.setdefault(want, value[1]) != value[1]:
                        raise self.fail(f"rank {rank} holds chunk {want} folded in another order than other ranks do")


def _say(value: Value) -> str:
    return "zeros" if value == ZERO else f"chunk {value[2]} of rank(s) {value[0].bit_length() - 1}"


def verify(schedule: Schedule, fifo_depth: int = 2, tiles: int = 2) -> Report:
    """Run ``schedule`` symbolically for all its ranks. Raises ScheduleError with rank, lane and step of a fault.

    FIFOs hold ``fifo_depth`` messages. Two tiles suffice to find faults in what a tile leaves to the next.
    """
    if fifo_depth < 1 or tiles < 1:
        raise ValueError("fifo_depth and tiles must be at least 1")
    run = _Run(schedule, fifo_depth, tiles)
    run.compile()
    run.run()
    run.check_outputs()
    steps = [0] * schedule.spec.nranks
    for lane in run.lanes:
        steps[lane.rank] += len(lane.ops)
    return Report(
        spec=schedule.spec,
        order_of=run.order_of,
        pairs={order: pair for pair, order in run.pair_ids.items()},
        messages=tuple(run.messages),
        memory_chunks=tuple(run.memory),
        steps=tuple(steps),
        max_steps=max((len(lane.ops) for lane in run.lanes), default=0),
        max_fifo=max((fifo.most for fifo in run.fifos.values()), default=0),
    )
