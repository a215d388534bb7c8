"""The cost of a schedule from its table, for algorithms that bring no formula: the same `Shape` as a formula gives.

The table is played once in unit time, a message taking one unit, with a lane's steps in their order. That gives the
messages that wait for each other and the bytes that they carry one after the other. A chunk that is longer than a tile
has a lane start over for each tile: three tiles are played, and the third's share is that of each further one. What
enters or leaves a host is counted where there are several, else what enters or leaves a rank or a memory domain.

As in the formulas, each message costs the same, within a host or not, and processes that share processors or caches are
left to `jaxring.plan.cost`. `tests/plan/test_table_cost.py` holds it against the formulas of the built-in algorithms.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from typing import TYPE_CHECKING

from jaxring.plan.collectives import COLLECTIVES
from jaxring.plan.cost import Call, Shape
from jaxring.plan.schedule import Flag
from jaxring.plan.user import build_user

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from jaxring.plan.cost import Topology
    from jaxring.plan.profile import Constants
    from jaxring.plan.schedule import Peer, Schedule, Spec, Step

# (rank, number) of a lane.
_Lane = tuple[int, int]

_TILES = 3
# From so many senders at once on, a receiver has a crowd (incast): the two children in a tree are none.
_CROWD = 3


@dataclasses.dataclass(frozen=True)
class Traffic:
    """What a table moves, whatever the size. Data is in chunks; a chunk of partial results counts by its width.

    ``hops``, ``path``: messages that wait for each other, and what they carry one after the other, of one tile.
    ``hops_again``, ``path_again``: the same of each further tile. ``messages``: sent by the rank that sends most.
    ``wire``: over the busiest link. ``crowded``: whether many messages reach a rank at once. ``memory``: read and
    written by the rank that does most by the memory of others. ``longest``: the widest message.
    """

    pieces: int
    hops: int
    path: int
    hops_again: int
    path_again: int
    messages: int
    wire: int
    crowded: bool
    memory: int
    longest: int

    @property
    def silent(self) -> bool:
        """Whether it sends no messages."""
        return not self.longest

    def longest_bytes(self, collective: str, nranks: int, nbytes: int, element_bytes: int) -> int:
        """Bytes of the longest message, of ``nbytes`` of input per rank."""
        return self.longest * self._chunk_bytes(collective, nranks, nbytes, element_bytes)

    def _chunk_bytes(self, collective: str, nranks: int, nbytes: int, element_bytes: int) -> int:
        elements = -(-nbytes // element_bytes)
        return -(-elements // (COLLECTIVES[collective].in_blocks(nranks) * self.pieces)) * element_bytes

    def shape(
        self, collective: str, topology: Topology, nbytes: int, element_bytes: int, constants: Constants
    ) -> Shape:
        """The shape of the schedule for ``nbytes`` of input per rank."""
        chunk = self._chunk_bytes(collective, topology.nranks, nbytes, element_bytes)
        tiles = max(1, -(-chunk * self.longest // constants.tile_bytes))
        # While a lane waits for a message, those of the other lanes go over the link.
        waits = max(0, self.hops_again - max(0, self.messages - self.hops_again))
        path = (self.path + (tiles - 1) * self.path_again) * chunk // tiles
        wire = self.wire * chunk
        call = Call(collective, topology, nbytes, 1, 1, False, constants)
        if self.crowded and not (topology.hosts == 1 and (call.cached or topology.domains <= constants.close_ranks)):
            wire = wire * constants.crowd_percent // 100
        return Shape(self.hops + (tiles - 1) * waits, self.messages, max(wire, path), self.memory * chunk)


@functools.lru_cache(maxsize=64)
def of_user(spec: Spec, hosts: tuple[int, ...], widening: int) -> Traffic:
    """What a user's algorithm moves. ScheduleError where it does not serve."""
    return traffic(build_user(spec), hosts, widening)


def traffic(schedule: Schedule, hosts: Sequence[int], widening: int = 1) -> Traffic:
    """What a verified schedule moves among ranks on these hosts. ``widening``: width of partial results over data's."""
    placement, ranks = schedule.spec.placement, range(schedule.spec.nranks)
    lanes = {(rank, number): steps for rank in ranks for number, steps in enumerate(schedule.lanes(rank)) if steps}
    several = len(set(hosts)) > 1
    places, ways = hosts if several else placement, hosts if several else ranks
    sent, memory = collections.Counter[int](), collections.Counter[int]()
    # Bytes of a place or a rank, out of it or into it.
    links = collections.Counter[tuple[str, int]]()
    longest = 0
    for (rank, _), steps in lanes.items():
        for step in steps:
            width = _width(step, widening)
            for peer in _apart(step.send):
                sent[rank] += 1
                longest = max(longest, width)
                if places[peer] != places[rank]:
                    links.update({("from place", places[rank]): width, ("to place", places[peer]): width})
                if not several:
                    links.update({("from rank", rank): width, ("to rank", peer): width})
            memory[rank] += _by_memory(step, rank)
    if not longest:  # every rank copies what it needs
        memory.update({rank: 2 * schedule.pieces for rank in ranks if not memory[rank]})
    played = _Played(lanes, ways, widening)
    return Traffic(
        pieces=schedule.pieces,
        hops=played.hops[0],
        path=played.path[0],
        hops_again=played.hops[-1] - played.hops[-2],
        path_again=played.path[-1] - played.path[-2],
        messages=max(sent.values(), default=0),
        wire=max(links.values(), default=0),
        crowded=played.at_once >= _CROWD,
        memory=max(memory.values(), default=0),
        longest=longest,
    )


def _width(step: Step, widening: int) -> int:
    """Chunks of data that a message of this step is as long as."""
    return widening if step.flags & Flag.SEND_PARTIAL else 1


def _apart(peers: Sequence[Peer], but: int = -1) -> list[int]:
    """The peers that are reached by messages."""
    return [peer.rank for peer in peers if not peer.memory and peer.rank != but]


def _by_memory(step: Step, rank: int) -> int:
    """Chunks that a step reads and writes where some of them are another rank's."""
    if not any(peer.memory for peer in (*step.recv, *step.send)):
        return 0
    reads = sum(peer.memory or peer.rank == rank for peer in step.recv) or (step.src is not None and not step.recv)
    return reads + (step.dst is not None) + sum(peer.memory for peer in step.send)


class _Played:
    """Lanes that were played for a few tiles, in unit time and in chunks: the two clocks do not know of each other.

    ``hops``, ``path``: when the last message of each tile arrives. ``at_once``: the most senders whose messages reach
    one rank at one time.
    """

    def __init__(self, lanes: Mapping[_Lane, Sequence[Step]], places: Sequence[int], widening: int) -> None:
        self.hops, self.path = [0] * _TILES, [0] * _TILES
        self._lanes, self._places, self._widening = lanes, places, widening
        self._clock = dict.fromkeys(lanes, (0, 0))
        # What is on its way from a rank to another in a lane: when it arrives, by either clock.
        self._arrived: dict[tuple[int, int, int], collections.deque[tuple[int, int]]]
        self._arrived = collections.defaultdict(collections.deque)
        self._reader: dict[tuple[int, int, int], _Lane] = {}
        self._ready = collections.deque(lanes)
        senders: dict[tuple[int, int], set[int]] = collections.defaultdict(set)
        at = dict.fromkeys(lanes, 0)
        while self._ready:
            lane = self._ready.popleft()
            steps = lanes[lane]
            while at[lane] < _TILES * len(steps):
                tile, number = divmod(at[lane], len(steps))
                if not self._receive(lane, steps[number]):
                    break
                for target, hop in self._send(lane, steps[number], tile):
                    senders[target, hop].add(lane[0])
                at[lane] += 1
        self.hops, self.path = (list(itertools.accumulate(each, max)) for each in (self.hops, self.path))
        self.at_once = max(map(len, senders.values()), default=0)

    def _receive(self, lane: _Lane, step: Step) -> bool:
        """Whether all messages of a step are there; then the lane's clocks are at the last of them."""
        rank, number = lane
        ways = [(source, rank, number) for source in _apart(step.recv, rank)]
        for way in ways:
            if not self._arrived[way]:
                self._reader[way] = lane
                return False
        now = [self._clock[lane], *(self._arrived[way].popleft() for way in ways)]
        self._clock[lane] = max(hop for hop, _ in now), max(chunks for _, chunks in now)
        return True

    def _send(self, lane: _Lane, step: Step, tile: int) -> Iterator[tuple[int, int]]:
        """Sends what a step has made; gives for each message its target and when it arrives."""
        rank, number = lane
        hop, chunks = self._clock[lane]
        for target in _apart(step.send):
            if self._places[target] != self._places[rank]:
                chunks += _width(step, self._widening)  # what goes to several ranks leaves one after the other
            self.hops[tile], self.path[tile] = max(self.hops[tile], hop + 1), max(self.path[tile], chunks)
            way = rank, target, number
            self._arrived[way].append((hop + 1, chunks))
            if way in self._reader:
                self._ready.append(self._reader.pop(way))
            yield target, hop + 1
