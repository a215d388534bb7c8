"""What a schedule costs: alpha-beta formulas over its shape, not over its steps.

An all-reduce is two phases, folding and spreading; other collectives are one of them. A phase of an algorithm has so
many dependent messages (hops), so many messages that one rank handles one after the other, and so many bytes through
the busiest link: a rank's own, or its host's network where several hosts take part. The constants are those of a
commodity cluster; they order the candidates and do not promise times. Units: microseconds and bytes.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING

from jaxring.plan.schedule import REDUCTIONS

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Link:
    """A class of connections: ``alpha`` us from send to receive, ``overhead`` us of work per message, us per byte."""

    alpha: float
    overhead: float
    beta: float


LINKS: dict[str, Link] = {
    "memory": Link(1.0, 0.2, 0.0001),  # 10 GB/s for each rank
    "shm": Link(2.0, 0.5, 0.0002),
    "tcp": Link(30.0, 4.0, 0.001),
}
# ll's first cache line holds flag, header and payload: one line less to wait for. The bytes are the same.
LL_ALPHA, LL_BETA = 0.5, 1.0
# Where processes outnumber processors, whoever a message is for has to be switched to before he sees it, and all take
# turns at moving bytes. Measured on 2 cores: with 4 processes direct took 52 and 35 us longer than oneshot at 4 and 16
# KiB, which has a hop less; with 16 ring, which has 28 more, 20 to 50 us a hop longer than direct at 64 and 256 KiB.
SWITCH_US = 30.0
# The part of a chunk that moves in one step, by default and within a host (between hosts it is twice that, which does
# not change the order of the candidates); a lane's steps start over for each tile.
TILE_BYTES = 128 * 1024

# Bytes of direct and oneshot, in percent: many flows that meet at one receiver (incast) get less out of it than one.
CROWD_PERCENT = 125
# Bytes of halving_doubling, in percent, where a vector leaves the caches: it reads back from memory what it sends once
# more, where ring passes on what it has in hand. Measured against ring (JAXRING_ALGO, in `jaxring bench --peers`) with
# 4 processes on 2 cores: 7 to 13 more over TCP, 10 to 30 in memory.
READ_BACK_PERCENT = 110
# Between hosts flows always crowd, and a vector of so many bytes leaves the caches of its host.
READ_BACK_BYTES = 8 << 20
# On one host neither is so of direct and halving_doubling while what all ranks write in a phase stays in the caches.
# With more than CACHE_RANKS that is less by the square of their number, since each pair of them has rings of its own,
# whose slots take turns. Up to CLOSE_RANKS direct is never crowded: its ranks write what they spread once, for all of
# them. Measured with 3, 4, 8 and 16 processes on 2 cores: from 64 KiB up to there direct is level with the better of
# ring and halving_doubling or up to 1.7 times as fast, above ring is 1.2 to 1.7 times as fast as direct; with 3 and 4
# direct is level or up to 1.15 times as fast everywhere.
CACHE_BYTES, CACHE_RANKS = 32 << 20, 8
CLOSE_RANKS = 4

_FOLD, _SPREAD = "fold", "spread"
PHASES: dict[str, tuple[str, ...]] = {
    "all_reduce": (_FOLD, _SPREAD),
    "reduce_scatter": (_FOLD,),
    "reduce": (_FOLD,),
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """What the formulas know of the ranks: counts only, so that all ranks compute the same."""

    nranks: int
    nodes: int
    width: int  # ranks of the largest node
    hosts: int
    ranks_per_host: int  # of the largest host
    nodes_per_host: int
    processors: int = 0  # of a host; 0: as many as its processes want

    @property
    def crowded(self) -> bool:
        """Whether processes of one host that wait for each other have to take turns on its processors."""
        return self.hosts == 1 < self.nodes and 0 < self.processors < self.nodes_per_host

    @classmethod
    def of(cls, placement: Sequence[int], hosts: Sequence[int], processors: int = 0) -> Topology:
        host_of_node = dict(zip(placement, hosts, strict=True))
        if any(host_of_node[node] != host for node, host in zip(placement, hosts, strict=True)):
            raise ValueError("ranks that share memory must be on one host, but a node of the placement is on several")
        return cls(
            nranks=len(placement),
            nodes=len(host_of_node),
            width=max(Counter(placement).values()),
            hosts=len(set(hosts)),
            ranks_per_host=max(Counter(hosts).values()),
            nodes_per_host=max(Counter(host_of_node.values()).values()),
            processors=processors,
        )


@dataclasses.dataclass(frozen=True)
class Shape:
    """Of a whole schedule: dependent messages, messages per rank, bytes over the busiest link, bytes by memory."""

    hops: int
    messages: int
    wire_bytes: int
    memory_bytes: int


def _log2(n: int) -> int:
    """Rounded up."""
    return (n - 1).bit_length()


def _cached(topology: Topology, count: int, total: int) -> bool:
    """Whether a phase of ``count`` participants over ``total`` bytes stays in the caches."""
    if topology.hosts > 1:
        return total < READ_BACK_BYTES
    return total * (count - 1) * max(count, CACHE_RANKS) ** 2 < CACHE_BYTES * CACHE_RANKS**2


def _phase(
    collective: str, pattern: str, count: int, per_host: int, total: int, channels: int, cached: bool
) -> tuple[int, int, int]:
    """(hops, messages, bytes) of one phase among ``count`` ranks or nodes, ``per_host`` of them behind one network.

    ``total`` bytes is the whole vector, of which every participant ends with, or starts from, one count-th, unless the
    collective is rooted and moves the whole of it.
    """
    rooted = collective in ("broadcast", "reduce")
    outside = count - per_host if per_host < count else count - 1
    crossing = per_host if per_host < count else 1  # participants whose traffic shares the busiest link
    if pattern == "ring":
        return count - 1, count - 1, total if rooted else total * (count - 1) // count
    if pattern == "tree":
        return _log2(count + 1), 3, total
    if pattern == "halving_doubling":
        p = 1 << (count.bit_length() - 1)
        # Chunks of a lane go one after the other; a lane per chunk leaves the tree's depth.
        hops = max(_log2(p), p // channels) + (count > p)
        percent = 100 if cached else READ_BACK_PERCENT
        across = total * outside // count * crossing * percent // 100
        return hops, p - 1 + (count > p) * p, across + (count > p) * total
    if collective == "permute":
        return 1, 1, total * crossing
    if rooted:
        return 1, count - 1, total * outside
    if collective in ("gather", "scatter"):
        return 1, count - 1, total * outside // count
    return 1, count - 1, total * outside // count * crossing


def shape(
    collective: str, algorithm: str, topology: Topology, nbytes: int, channels: int = 1, widening: int = 1
) -> Shape:
    """The shape of a schedule for ``nbytes`` of input per rank.

    ``widening``: bytes of an accumulator element over bytes of an element, which partial results take on the wire.
    """
    n = topology.nranks
    total = nbytes * n if collective in ("all_gather", "gather") else nbytes
    hier = algorithm.startswith("hier_")
    pattern = algorithm.removeprefix("hier_")
    if pattern in ("deterministic", "pxn"):
        pattern = "direct"
    memory = pattern == "direct" or hier
    if memory and topology.nodes == 1:
        # Each rank reads its share of all inputs and writes it to all outputs; a rooted fold is the root's alone.
        alone = collective in ("reduce", "gather")
        return Shape(0, 0, 0, total * (n if alone else 2))
    count = topology.nodes if hier else n
    per_host = topology.nodes_per_host if hier else topology.ranks_per_host
    if pattern == "oneshot":
        outside = count - per_host if per_host < count else count - 1
        wire = total * outside * (per_host if per_host < count else 1)
        # Everybody folds the whole vector, where direct's ranks fold a share: half a byte more for each that comes.
        folded = total * (n - 1) // 2
        return Shape(1, n - 1, (wire * CROWD_PERCENT // 100 if n > 2 else wire) + folded, 0)
    cached = _cached(topology, count, total)
    few = topology.hosts == 1 and (cached or count <= CLOSE_RANKS)
    crowded = count > 2 and collective != "permute" and not few
    hops = messages = wire = 0
    for phase in PHASES.get(collective, (_SPREAD,)):
        h, m, b = _phase(collective, pattern, count, per_host, total, channels, cached)
        wide = widening if phase == _FOLD and pattern != "direct" else 1
        if pattern == "direct" and crowded:
            b = b * CROWD_PERCENT // 100
        hops, messages, wire = hops + h, messages + m, wire + b * wide
    rails = channels * (topology.width if hier else 1)
    if pattern == "tree" and collective == "all_reduce":
        # A lane's next tile goes up only when this one has come down.
        hops *= max(1, -(-total // (2 * rails * TILE_BYTES)))
    shared = 2 * total if memory and topology.width > 1 else 0
    if algorithm == "pxn":
        # Fewer messages, of which each rank reads all but its own share in other ranks' memory.
        messages, shared = topology.nodes - 1, 2 * shared
    return Shape(hops, messages, wire, shared)


def cost_us(shape: Shape, topology: Topology, protocol: str) -> float:
    """Microseconds, rounded to whole nanoseconds, so that comparisons agree everywhere."""
    link = LINKS["tcp" if topology.hosts > 1 else "shm"]
    memory = LINKS["memory"]
    ll = protocol == "ll"
    switch, turns = (SWITCH_US, topology.nodes_per_host / topology.processors) if topology.crowded else (0.0, 1.0)
    wire = shape.hops * (link.alpha * (LL_ALPHA if ll else 1.0) + switch) + shape.messages * link.overhead
    wire += shape.wire_bytes * link.beta * (LL_BETA if ll else 1.0) * turns
    local = 2 * memory.alpha + shape.memory_bytes * memory.beta if shape.memory_bytes or not shape.hops else 0.0
    return round(wire + local, 3)


def widening(collective: str, element_bytes: int, accumulator_bytes: int) -> int:
    """The factor by which partial results are wider than the data: 1 where nothing is folded."""
    return accumulator_bytes // element_bytes if collective in REDUCTIONS else 1
