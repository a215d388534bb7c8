"""Makes lanes of what a plan of another's does: actions that read places of a rank's memory, and write such places
there and on other ranks, in an order in which they can be done.

What an action writes on another rank is a message. It is received where its place is first read, or when two messages
of its connection wait already, so that neither side waits for the other without need. A reduction takes its messages as
they come, and so needs no room for operands. What no step can do is an error; reductions of parts, and then of the
parts, are made one before (`jaxring.plan.foreign.nested`).

Actions that depend on each other lie in one lane, since nothing orders lanes.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from jaxring.plan.foreign import nested
from jaxring.plan.foreign.memory import Memory, Use, Value, said
from jaxring.plan.foreign.places import Places, renamed
from jaxring.plan.schedule import Buffer, Chunk, Flag, Kind, Peer, ScheduleError, Spec, Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.plan.foreign.places import Action, Place

# Messages that wait on a connection, at most: what the verifier allows.
_DEPTH = 2


def lanes_of(spec: Spec, pieces: int, in_place: bool, actions: Sequence[Action]) -> list[list[list[Step]]]:
    """The lanes of each rank. Raises ScheduleError for what our schedules have not, naming rank and place."""
    actions = renamed(spec, pieces, in_place, actions)
    try:
        return _Run(Places(spec, pieces, in_place, actions), actions).play()
    except _SeveralInMemoryError:
        fewer = nested.joined(actions)
        if len(fewer) == len(actions):
            raise
    return _Run(Places(spec, pieces, in_place, fewer), fewer).play()


class _SeveralInMemoryError(ScheduleError):
    """A reduction of more than one chunk that lies in memory."""


class _Run(Memory):
    def __init__(self, places: Places, actions: Sequence[Action]) -> None:
        super().__init__(places, actions)
        self.waiting: dict[tuple[int, int, int], deque[Value]] = {}  # by source, target, lane
        self.early: dict[int, tuple[Value, set[int]]] = {}  # what an action has reduced before its turn

    def play(self) -> list[list[list[Step]]]:
        for number, action in enumerate(self.actions):
            self.act(number, action)
        self.finish()
        return self.lanes

    def act(self, number: int, action: Action) -> None:
        rank, lane = action.rank, self.places.lane(action)
        early, done = self.early.pop(number, (None, set()))
        values = [] if early is None else [early]
        for index, place in enumerate(action.sources):
            value = self.value(rank, place)
            if index not in done:
                values.append(value)
            remaining = self.uses.get((rank, place))
            if remaining and remaining[0].action == number:
                remaining.popleft()
        if len(values) > 1:
            result = self.fold(number, rank, lane, values, action)
        else:
            result = values[0]
            self.move(number, rank, lane, result, action)
        for target, place in action.targets:
            if target == rank:
                self.put(number, rank, place, result)
                self.settle(rank, lane, place, result)

    def move(self, number: int, rank: int, lane: int, value: Value, action: Action) -> None:
        """Sends a value to the action's targets on other ranks."""
        remote = [each for each in action.targets if each[0] != rank]
        while remote:
            once = {target: (target, place) for target, place in reversed(remote)}
            batch = list(once.values())
            remote = [each for each in remote if each not in batch]
            if value.source >= 0:
                self.receive(rank, lane, value, batch, number)
            else:
                self.emit(number, rank, lane, Kind.MOVE, value, [], None, batch)

    def fold(self, number: int, rank: int, lane: int, values: list[Value], action: Action) -> Value:
        """Reduces what is in memory, one value at most, with what is on its way, and sends the result."""
        local = [value for value in values if value.source < 0]
        if not self.reduces:
            raise ScheduleError(f"rank {rank} reduces for {self.spec.collective}, which reduces nothing")
        if len(local) > 1:
            where = " and ".join(said(place) for place in action.sources)
            raise _SeveralInMemoryError(
                f"rank {rank} reduces {where}, of which more than one lie in its memory; our schedules reduce one "
                "with messages"
            )
        so_far = local[0] if local else None
        batches = self.batches(rank, lane, [value for value in values if value.source >= 0])
        place = {id(value): position for position, value in enumerate(values)}

        def ordered(so_far: Value | None, batch: list[Value]) -> list[Value]:
            """In the order of the plan, behind what has been reduced before."""
            return sorted([*batch, so_far] if so_far else batch, key=lambda value: place.get(id(value), -1))

        for batch in batches[:-1]:
            so_far = self.combine(number, rank, lane, so_far, ordered(so_far, batch), None, [])
        remote = [each for each in action.targets if each[0] != rank]
        kept = self.kept(number, rank, action)
        if len({target for target, _ in remote}) < len(remote) or not batches:
            assert so_far is not None or batches, "a fold has sources"
            last = ordered(so_far, batches[-1]) if batches else []
            result = self.combine(number, rank, lane, so_far, last, kept, []) if batches else so_far
            assert result is not None
            self.move(number, rank, lane, result, action)
            return result
        return self.combine(number, rank, lane, so_far, ordered(so_far, batches[-1]), kept, remote)

    def kept(self, number: int, rank: int, action: Action) -> Place | None:
        """The place where the rank itself needs what an action makes: a result, or one that is read later."""
        own = [place for target, place in action.targets if target == rank]
        results = [place for place in own if self.index(number, rank, place) is not None]
        read = [place for place in own if self.next_uses.get((number, rank, place))]
        return next(iter([*results, *read]), None)

    def batches(self, rank: int, lane: int, values: list[Value]) -> list[list[Value]]:
        """Messages that one step can take together: of different ranks, all partial or none, each the next of its
        connection."""
        left = list(values)
        found: list[list[Value]] = []
        while left:
            batch: list[Value] = []
            for value in left:
                queue = self.waiting[value.source, rank, lane]
                fits = all(value.source != other.source for other in batch)
                if fits and (not batch or self.partial(batch[0]) == self.partial(value)):
                    ahead = [each for each in queue if each in left]
                    if ahead[0] is value:
                        batch.append(value)
            found.append(batch)
            left = [value for value in left if value not in batch]
        for value in (value for batch in found for value in batch):
            queue = self.waiting[value.source, rank, lane]
            while queue[0] is not value and queue[0] not in values:
                self.receive(rank, lane, queue[0], [], -1)
        return found

    def combine(
        self,
        number: int,
        rank: int,
        lane: int,
        so_far: Value | None,
        sources: list[Value],
        place: Place | None,
        remote: list[tuple[int, Place]],
    ) -> Value:
        """One REDUCE step of ``sources`` in this order; ``so_far`` is the one of them that lies in memory. ``place``:
        where the result is kept; None and no target: in scratch."""
        ranks = 0
        for value in sources:
            ranks |= value.ranks
        if ranks == self.full and all(value.ranks & (value.ranks - 1) == 0 for value in sources):
            sources = sorted(sources, key=lambda value: value.ranks)  # by rank, which is the same everywhere
        result = Value(ranks, sources[0].chunk, None)
        keep = place is not None or not remote or so_far is None
        self.emit(number, rank, lane, Kind.REDUCE, so_far, sources, result, remote, place, keep)
        return result

    def emit(
        self,
        number: int,
        rank: int,
        lane: int,
        kind: Kind,
        local: Value | None,
        sources: list[Value],
        result: Value | None,
        remote: list[tuple[int, Place]],
        place: Place | None = None,
        keep: bool = False,
    ) -> None:
        """A step. ``sources`` of a reduction, in their order; those on their way are received by it. A ``result`` that
        is kept lies in the output where ``place`` or its chunk says so, and in scratch otherwise."""
        value = result or local
        assert value is not None
        self.make_way(rank, lane, remote)
        flags = Flag.FINAL if kind is Kind.REDUCE and value.ranks == self.full and sources else Flag.NONE
        recv = []
        for source in sources:
            if source.source < 0:
                recv.append(Peer(rank))
                continue
            recv.append(Peer(source.source))
            if self.partial(source):
                flags |= Flag.RECV_PARTIAL
            self.waiting[source.source, rank, lane].popleft()
        if remote and self.partial(value):
            flags |= Flag.SEND_PARTIAL
        index = None if place is None else self.index(number, rank, place)
        dst = self.room(rank, lane, value, index) if keep else None
        if len(recv) == 1 and recv[0].rank == rank:
            recv = []
        src = local.at if local is not None else None
        if src is None and (dst is None or dst.buffer is Buffer.SCRATCH):
            src = Chunk(Buffer.INPUT, value.chunk)  # it says how long the messages are
        send = tuple(Peer(target) for target, _ in remote)
        self.lanes[rank][lane].append(Step(kind, src, dst, tuple(recv), send, flags))
        if dst is not None:
            value.at = dst
        self.deliver(number, rank, lane, value, remote)

    def make_way(self, rank: int, lane: int, remote: list[tuple[int, Place]]) -> None:
        """Has the targets take messages until each has room for one more."""
        for target, _ in remote:
            queue = self.waiting.setdefault((rank, target, lane), deque())
            while len(queue) >= _DEPTH:
                self.receive(target, lane, queue[0], [], -1)

    def deliver(self, number: int, rank: int, lane: int, value: Value, remote: list[tuple[int, Place]]) -> None:
        """Puts messages with a value on their way to their places."""
        for target, place in remote:
            sent = Value(value.ranks, value.chunk, None, rank)
            self.waiting[rank, target, lane].append(sent)
            self.put(number, target, place, sent)

    def receive(self, rank: int, lane: int, value: Value, remote: list[tuple[int, Place]], number: int) -> None:
        """Takes a message into memory, and those ahead of it; and sends it on."""
        queue = self.waiting[value.source, rank, lane]
        while queue[0] is not value:
            self.receive(rank, lane, queue[0], [], -1)
        if not remote and self.fold_early(rank, lane, value):
            return
        source, partial = value.source, self.partial(value)
        raw = self.reduces and not partial and value.ranks != self.full
        self.make_way(rank, lane, remote)
        queue.popleft()
        dst = self.room(rank, lane, value, self.result_of(rank, value))
        flags = Flag.RECV_PARTIAL if partial else Flag.NONE
        if partial and remote:
            flags |= Flag.SEND_PARTIAL
        # Scratch holds what a reduction has made; one of a single operand makes such a value of it.
        kind = Kind.REDUCE if raw else Kind.MOVE
        send = tuple(Peer(target) for target, _ in remote)
        # A chunk in memory says how long the message is, where none is written.
        src = Chunk(Buffer.INPUT, value.chunk) if dst.buffer is Buffer.SCRATCH else None
        self.lanes[rank][lane].append(Step(kind, src, dst, (Peer(source),), send, flags))
        value.at, value.source = dst, -1
        self.deliver(number, rank, lane, value, remote)

    def fold_early(self, rank: int, lane: int, value: Value) -> bool:
        """Folds a message that has to be taken now into what its reduction will read, where only that reads it."""
        uses = [use for place in value.places for use in self.uses.get((rank, place), ())]
        if len(uses) != 1 or len(self.actions[uses[0].action].sources) < 2:
            return False
        number, index = uses[0]
        action = self.actions[number]
        so_far, done = self.early.get(number, (None, set()))
        if so_far is None:
            for other, at in enumerate(action.sources):
                ready = self.held.get((rank, at)) or (
                    self.value(rank, at) if self.places.operand(rank, at) is not None else None
                )
                use = Use(number, other)
                reads = self.uses.get((rank, at), deque())
                if other != index and ready is not None and ready.source < 0 and use in reads:
                    so_far, done = ready, {other}
                    reads.remove(use)
                    break
        if so_far is None:
            return False
        folded = self.combine(number, rank, lane, so_far, [so_far, value], self.kept(number, rank, action), [])
        self.early[number] = (folded, done | {index})
        return True

    def finish(self) -> None:
        """Takes what is still on its way, and writes results that lie elsewhere."""
        for (_, rank, lane), queue in list(self.waiting.items()):
            while queue:
                self.receive(rank, lane, queue[0], [], -1)
        for rank in range(self.spec.nranks):
            for place in self.places.results(rank):
                value = self.held.get((rank, place))
                if value is None:
                    chunk = self.places.operand(rank, place)
                    value = self.value(rank, place) if chunk is not None else None
                if value is None:
                    continue  # the verifier says which chunk is missing
                if self.reduces and value.ranks != self.full:
                    missing = [each for each in range(self.spec.nranks) if not value.ranks >> each & 1]
                    raise ScheduleError(
                        f"rank {rank} ends with a reduction in {said(place)} that lacks rank {missing[0]}"
                    )
                self.settle(rank, self.places.lane_of(rank, place), place, value)
