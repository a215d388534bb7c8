"""What happened in a run: each step and each message with its times and its cause, and the critical path."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from jaxring.simulate.program import Op, Program


class Step(NamedTuple):
    """A step from its beginning to its end in us. ``message``: which message it waited for last, or -1.

    ``before``: the step that it waited for, in its lane or at the other end of a connection without a free slot.
    """

    lane: int
    tile: int
    number: int
    begin: float
    end: float
    message: int
    before: int


class Message(NamedTuple):
    """A message: ready to leave, leaving, all sent, arrived, in us. ``step`` sent it; ``before``: the message that kept
    the port busy, or -1."""

    connection: int
    nbytes: int
    queued: float
    leaves: float
    sent: float
    arrives: float
    step: int
    before: int


class Piece(NamedTuple):
    """A part of the critical path: "step", "wire" (bytes leave), "latency" or "start"."""

    kind: str
    begin: float
    end: float
    what: str


class Record:
    """Fills as `jaxring.simulate.play` runs."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.steps: list[Step] = []
        self.messages: list[Message] = []
        lanes, connections = len(program.lanes), len(program.connections)
        self._last = [-1] * lanes  # the lane's last step
        self._now = [-1] * lanes  # the lane's current step
        self._op: list[tuple[int, ...]] = [()] * lanes  # the connections that it receives from
        self._waiting: list[deque[int]] = [deque() for _ in range(connections)]  # arrived, not taken
        self._flying: list[deque[int]] = [deque() for _ in range(connections)]
        self._port: dict[int, int] = {}  # sender -> its last message
        self._freed: list[int] = [-1] * connections  # the step that last gave a slot back
        self._sends = {c: lane for lane, each in enumerate(program.lanes) for op in each.ops for c in op.send}

    def begin(self, lane: int, tile: int, at: int, op: Op, now: float, start: float) -> None:
        """Step ``at`` of a lane begins; it has been able to since ``now``."""
        message, before = -1, self._last[lane]
        idle = before < 0 or self.steps[before].end < now
        latest = -1.0
        for connection in op.recv:
            number = self._waiting[connection].popleft()
            if idle and self.messages[number].arrives > latest:
                latest, message = self.messages[number].arrives, number
        if idle and latest < now:
            message = -1
            freed = [self._freed[connection] for connection in op.send if self._freed[connection] >= 0]
            if freed:
                before = max(freed, key=lambda step: self.steps[step].end)
        self._now[lane], self._op[lane] = len(self.steps), op.recv
        self.steps.append(Step(lane, tile, self.program.lanes[lane].numbers[at], start, start, message, before))

    def end(self, lane: int, now: float) -> None:
        number = self._now[lane]
        step = self.steps[number]
        self.steps[number] = step._replace(end=now)
        self._last[lane] = number
        for connection in self._op[lane]:
            self._freed[connection] = number

    def queued(self, connection: int, now: float, amount: int) -> int:
        """The number of a message that is ready to leave."""
        step = self._now[self._sends[connection]]
        self.messages.append(Message(connection, amount, now, now, now, now, step, -1))
        return len(self.messages) - 1

    def leaves(self, number: int, now: float) -> None:
        message = self.messages[number]
        source = self.program.connections[message.connection][0]
        before = self._port.get(source, -1) if message.queued < now else -1
        self._port[source] = number
        self.messages[number] = message._replace(leaves=now, before=before)

    def moved(self, number: int, now: float) -> None:
        message = self.messages[number]
        self.messages[number] = message._replace(sent=now)
        self._flying[message.connection].append(number)

    def arrived(self, connection: int, now: float) -> None:
        number = self._flying[connection].popleft()
        self.messages[number] = self.messages[number]._replace(arrives=now)
        self._waiting[connection].append(number)

    def critical_path(self) -> list[Piece]:
        """What the end waited for, from the beginning on: no part of it can be shortened without all becoming faster,
        unless another path is as long."""
        if not self.steps:
            return []
        pieces: list[Piece] = []
        number = max(range(len(self.steps)), key=lambda i: self.steps[i].end)
        limit = self.steps[number].end
        while number >= 0:
            step = self.steps[number]
            lane = self.program.lanes[step.lane]
            end = min(limit, step.end)
            pieces.append(
                Piece(
                    "step",
                    step.begin,
                    end,
                    f"rank {lane.rank}, lane {lane.number}, step {step.number}, tile {step.tile}",
                )
            )
            limit, number = step.begin, step.before
            if step.message < 0:
                continue
            message = self.messages[step.message]
            source, target, _ = self.program.connections[message.connection]
            pieces.append(Piece("latency", message.sent, message.arrives, f"rank {source} to rank {target}"))
            while True:
                source, target, _ = self.program.connections[message.connection]
                what = f"{message.nbytes} bytes, rank {source} to rank {target}"
                pieces.append(Piece("wire", message.leaves, message.sent, what))
                if message.before < 0:
                    break
                message = self.messages[message.before]
            limit, number = message.queued, message.step
        return pieces[::-1]
