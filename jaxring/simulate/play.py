"""Plays a program in virtual time: an event for each step, each message that leaves and each that arrives.

A lane makes its steps in order, as the engine's interpreter does: a step begins when the next message of each of its
sources has arrived and each connection that it sends on has a free slot. It takes its messages, reads, sends one
message after the other, and gives its sources' slots back. Ranks that share memory begin together and end together.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING

from jaxring.simulate.deadlock import describe
from jaxring.simulate.events import Events
from jaxring.simulate.links.routes import Routes
from jaxring.simulate.links.sharing import Flows
from jaxring.simulate.links.token_buckets import Buckets
from jaxring.simulate.outcome import Played, of_links, together
from jaxring.simulate.repeats import Rounds

if TYPE_CHECKING:
    from jaxring.simulate.faults import Wrong
    from jaxring.simulate.history import Record
    from jaxring.simulate.links.routes import Pairs, Route, Ways
    from jaxring.simulate.model import Model
    from jaxring.simulate.program import Op, Program

# Kinds of events.
_READY, _DONE, _SEND, _MOVED, _ARRIVE, _ACCESS, _FAULT = range(7)
_NEVER = float("inf")


class Player:
    """The state of lanes and connections, in lists by their numbers."""

    def __init__(self, program: Program, ways: Ways, model: Model, record: Record | None, wrong: Wrong | None) -> None:
        self.program, self.ways, self.model, self.record, self.wrong = program, ways, model, record, wrong
        self.elements = program.sizes.elements()
        self.tiles, self.times = program.sizes.tiles, program.sizes.times
        self.rounds = Rounds([lane.rank for lane in program.lanes], program.memory)
        lanes, connections = program.lanes, program.connections
        self.rank = [lane.rank for lane in lanes]
        self.ops = [lane.ops for lane in lanes]
        self.at = [0] * len(lanes)
        self.tile = [0] * len(lanes)
        self.finished = [False] * len(lanes)
        self.routes = Routes(ways, bool(model.multicast))
        self.full: list[Route] = []
        self.limited: list[Route] = []
        self.latency: list[float] = []
        self.port: list[int] = []
        ports: dict[int, int] = {}
        for number, (source, target, _) in enumerate(connections):
            full, limited, latency = self.routes.between(source, target)
            self.full.append(full)
            self.limited.append(limited)
            self.latency.append(latency)
            self.port.append(ports.setdefault(full[0], len(ports)) if model.serial and full else -1 - number)
        first = len(ports)
        self.port = [port if port >= 0 else first - 1 - port for port in self.port]
        self.buckets = Buckets(ways.bursts, ways.speed) if ways.bursts else None
        shaped = self.full if self.buckets else []
        self.bucket = [next((link for link in route if link in ways.bursts), -1) for route in shaped]
        count = first + len(connections)
        self.port_free = [0.0] * count  # when the gap after the last message's beginning is over
        self.port_busy = [False] * count
        self.port_queue: list[deque[tuple[int, int, int]] | None] = [None] * count
        many = len(connections)
        self.arrived = [0] * many  # and not yet taken
        self.sent = [0] * many  # whose slots have not been given back yet
        self.returned: list[deque[float]] = [deque() for _ in range(many)]
        self.reader = [-1] * many  # the lane that waits for a message
        self.writer = [-1] * many  # the lane that waits for a slot
        self.carried = [0.0] * many
        self.by_memory: dict[tuple[int, Pairs], float] = {}
        self.flows = Flows(ways.speed)
        # flow -> (connection or -1, lane, the message's number in the record, how much later it arrives)
        self.flow_for: dict[int, tuple[int, int, int, float]] = {}
        self.processor: dict[int, float] = {}
        self.due = Events()
        self.count = 0  # events
        self.messages = 0
        self.ended: dict[int, float] = {}  # when the last lane of each rank ended
        self.dead: dict[int, float] = wrong.deaths() if wrong else {}

    def begin(self) -> None:
        """Every rank's first event. Ranks that share memory wait for the last of them."""
        starts = {rank: self.wrong.begins(rank) if self.wrong else 0.0 for rank in self.rank}
        for members in self.program.memory.values():
            last = max((starts[rank] for rank in members if rank in starts), default=0.0) + self.model.barrier
            for rank in members:
                if rank in starts:
                    starts[rank] = last
        for lane, rank in enumerate(self.rank):
            self.due[starts[rank] + self.model.launch].append((_READY, lane, 0))
        if self.wrong:
            for index, (when, _, _) in enumerate(self.wrong.limits()):
                self.due[when].append((_FAULT, index, 0))

    def run(self) -> Played:
        self.begin()
        flows = self.flows
        now = 0.0
        due = self.due
        while due.moments:
            now = due.next_moment()
            events = due[now]
            for kind, a, b in events:  # what arises at this very moment is appended
                if kind == _ARRIVE:
                    self.arrived[a] += 1
                    if self.record is not None:
                        self.record.arrived(a, now)
                    lane = self.reader[a]
                    if lane >= 0:
                        self.reader[a] = -1
                        self.ready(lane, now)
                elif kind == _DONE:
                    self.done(a, now)
                elif kind == _MOVED:
                    if flows.version[a] == b:
                        self.moved(a, now)
                elif kind == _READY:
                    self.ready(a, now)
                elif kind == _SEND:
                    if a < 0:  # the gap of a port is over
                        queue = self.port_queue[-1 - a]
                        assert queue
                        self.leave(*queue.popleft(), now)
                    else:
                        self.send(a, b, now)
                elif kind == _ACCESS:
                    self.access(a, now)
                elif self.wrong is not None:
                    _, link, speed = self.wrong.limits()[a]
                    flows.limit(link, speed)
            self.count += len(events)
            del due[now]
            if flows.unsettled:
                for end, flow in flows.settle(now):
                    self.due[end].append((_MOVED, flow, flows.version[flow]))
        stuck = [lane for lane in range(len(self.rank)) if not self.finished[lane]]
        if stuck:
            raise describe(self, stuck, now)
        return self.outcome()

    def outcome(self) -> Played:
        ended = together(self.ended, self.program.memory, self.model.barrier)
        by_messages = zip(self.full, self.carried, strict=True)
        by_memory = ((self.routes.by_memory(*step)[1], amount) for step, amount in self.by_memory.items())
        moved = of_links(itertools.chain(by_messages, by_memory))
        rounds = self.rounds.ended if self.times > 1 else ()
        return Played(max(ended.values(), default=0.0), ended, moved, self.messages, self.count, rounds)

    def ready(self, lane: int, now: float) -> None:
        """Begins the lane's next step, or notes what it waits for."""
        op = self.ops[lane][self.at[lane]]
        while not (elements := self.elements[op.length][self.tile[lane]]):
            if not self.advance(lane, now):
                return
            op = self.ops[lane][self.at[lane]]
        rank, arrived, sent = self.rank[lane], self.arrived, self.sent
        if self.dead and now >= self.dead.get(rank, _NEVER):
            return
        for connection in op.recv:
            if not arrived[connection]:
                self.reader[connection] = lane
                return
        model = self.model
        slots = model.slots
        for connection in op.send:
            if sent[connection] >= slots:
                returned = self.returned[connection]
                while returned and returned[0] <= now:
                    returned.popleft()
                    sent[connection] -= 1
                if sent[connection] >= slots:
                    if returned:
                        self.due[returned[0]].append((_READY, lane, 0))
                    else:
                        self.writer[connection] = lane
                    return
        for connection in op.recv:
            arrived[connection] -= 1
        for connection in op.send:
            sent[connection] += 1
        slowed = self.wrong.slowed(rank) if self.wrong else 1.0
        busy = (len(op.recv) * model.recv_overhead + elements * op.read_width * model.copy) * slowed
        start = now
        if model.one_processor:
            start = max(now, self.processor.get(rank, 0.0))
            self.processor[rank] = start + busy + len(op.send) * model.send_overhead * slowed
        if self.record is not None:
            self.record.begin(lane, self.tile[lane], self.at[lane], op, now, start)
        if op.memory:
            self.due[start + busy + model.memory].append((_ACCESS, lane, 0))
        else:
            self.make(lane, op, elements, start + busy)

    def current(self, lane: int) -> tuple[Op, int]:
        """The lane's step, and the elements of its chunk."""
        op = self.ops[lane][self.at[lane]]
        return op, self.elements[op.length][self.tile[lane]]

    def access(self, lane: int, now: float) -> None:
        """Moves what crosses by memory. A step handles an element of all its sources and destinations at a time, so all
        advance equally fast: they are one flow, which takes a link once for each of them that goes over it."""
        op, elements = self.current(lane)
        amount = elements * op.memory_width / (self.model.multicast or 1.0)
        key = (self.rank[lane], op.memory)
        routes = self.routes.by_memory(*key)
        self.by_memory[key] = self.by_memory.get(key, 0.0) + amount
        self.flow_for[self.flows.begin(routes[0], amount, now)] = (-1, lane, -1, 0.0)

    def make(self, lane: int, op: Op, elements: int, when: float) -> None:
        """Sends what the step has made by ``when``."""
        overhead = self.model.send_overhead * (self.wrong.slowed(self.rank[lane]) if self.wrong else 1.0)
        amount = elements * op.send_width
        if op.send:
            for connection in op.send[:-1]:
                when += overhead
                self.due[when].append((_SEND, connection, amount))
            when += overhead
        self.due[when].append((_DONE, lane, 0))

    def done(self, lane: int, now: float) -> None:
        op, elements = self.current(lane)
        for connection in op.recv:
            back = now + self.latency[connection]
            writer = self.writer[connection]
            self.returned[connection].append(back)
            if writer >= 0:
                self.writer[connection] = -1
                self.due[back].append((_READY, writer, 0))
        if self.record is not None:
            self.record.end(lane, now)
        if op.send:
            self.send(op.send[-1], elements * op.send_width, now)
        if self.advance(lane, now):
            self.ready(lane, now)

    def advance(self, lane: int, now: float) -> bool:
        """To the next step. False at the end of the lane, or of a round."""
        at = self.at[lane] + 1
        if at == len(self.ops[lane]):
            at = 0
            self.tile[lane] += 1
            if self.tile[lane] % self.tiles == 0:
                self.at[lane] = 0
                self.round_over(lane, now)
                return False
        self.at[lane] = at
        return True

    def round_over(self, lane: int, now: float) -> None:
        """Begins the next round where the lane was the last one that it waited for."""
        begin = self.rounds.end(lane, now)
        if self.tile[lane] < self.tiles * self.times:
            pause = self.model.launch + (2 * self.model.barrier if self.program.memory else 0.0)
            for each in begin:
                self.due[now + pause].append((_READY, each, 0))
            return
        self.finished[lane] = True
        self.ended[self.rank[lane]] = now

    def send(self, connection: int, amount: int, now: float) -> None:
        """A message to the port, where it may have to wait."""
        self.messages += 1
        self.carried[connection] += amount
        port = self.port[connection]
        number = self.record.queued(connection, now, amount) if self.record is not None else -1
        if self.port_busy[port]:
            self.waiting(port).append((connection, amount, number))
            return
        self.leave(connection, amount, number, now)

    def waiting(self, port: int) -> deque[tuple[int, int, int]]:
        queue = self.port_queue[port]
        if queue is None:
            queue = self.port_queue[port] = deque()
        return queue

    def leave(self, connection: int, amount: int, number: int, now: float) -> None:
        port = self.port[connection]
        self.port_busy[port] = True
        wait = self.port_free[port] - now
        if wait > 0:  # the gap is not over
            self.waiting(port).appendleft((connection, amount, number))
            self.due[now + wait].append((_SEND, -1 - port, 0))
            return
        if self.model.gap:
            self.port_free[port] = now + self.model.gap
        if self.record is not None:
            self.record.leaves(number, now)
        again, late = self.wrong.resent() if self.wrong else (0, 0.0)
        left = amount * self.model.wire * (1 + again)
        if self.buckets and self.bucket[connection] >= 0:
            left = self.buckets.begin(self.bucket[connection], left, now)
        flow = self.flows.begin(self.limited[connection], left, now)
        self.flow_for[flow] = (connection, -1, number, late)

    def moved(self, flow: int, now: float) -> None:
        """The last byte of a flow has left its sender."""
        connection, lane, number, late = self.flow_for.pop(flow)
        self.flows.end(flow)
        if connection < 0:
            self.make(lane, *self.current(lane), now)
            return
        if self.buckets and self.bucket[connection] >= 0:
            self.buckets.end(self.bucket[connection], now)
        if self.wrong:
            late += self.wrong.delay()
        if self.record is not None:
            self.record.moved(number, now)
        self.due[now + self.latency[connection] + late].append((_ARRIVE, connection, 0))
        port = self.port[connection]
        queue = self.port_queue[port]
        if queue:
            self.leave(*queue.popleft(), now)
        else:
            self.port_busy[port] = False


def play(
    program: Program, ways: Ways, model: Model, record: Record | None = None, wrong: Wrong | None = None
) -> Played:
    """Plays ``program``. Raises Deadlock, which names the cycle, where lanes wait for each other for ever."""
    return Player(program, ways, model, record, wrong).run()
