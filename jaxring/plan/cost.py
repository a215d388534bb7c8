"""The cost of a schedule: alpha-beta formulas over its shape, not over its steps.

An all-reduce is two phases, folding and spreading; other collectives are one of them. A phase of an algorithm has so
many dependent messages (hops), so many messages that one rank handles one after the other, and so many bytes through
the busiest link: a rank's own, or its host's network where several hosts take part. Each algorithm's module says what
its phases are, in terms of a `Call`. The constants are those of a commodity cluster; they order the candidates and do
not promise times. Units: microseconds and bytes.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING

from jaxring.plan.collectives import COLLECTIVES, PhaseKind, Root

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


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
    # A hop of a ring by NCCL's LL, which costs half of alpha here, takes 2.7 us on a network with RDMA (its tuning.cc);
    # 100 Gbit/s, and a work request and a completion for each message.
    "rdma": Link(5.4, 1.0, 0.00008),
}
# Between hosts.
NETWORKS = ("tcp", "rdma")
# ll's first cache line holds flag, header and payload: one line less to wait for. The bytes are the same.
LL_ALPHA, LL_BETA = 0.5, 1.0
# Where processes outnumber processors, a message costs a context switch to its receiver, and the processes take turns
# at moving bytes. Measured on 2 cores: with 4 processes direct took 52 and 35 us longer than oneshot at 4 and 16 KiB,
# which has a hop less; with 16 ring, which has 28 more, 20 to 50 us a hop longer than direct at 64 and 256 KiB.
SWITCH_US = 30.0
# The part of a chunk that moves in one step, by default and within a host (between hosts it is twice that, which does
# not change the order of the candidates); a lane's steps start over for each tile.
TILE_BYTES = 128 * 1024

# Bytes of direct and oneshot, in percent: many flows that meet at one receiver (incast) get less out of it than one.
CROWD_PERCENT = 125
# Between hosts flows always crowd, and a vector of so many bytes leaves the caches of its host.
READ_BACK_BYTES = 8 << 20
# On one host a phase stays in the caches while what all ranks write in it does. With more than CACHE_RANKS that is less
# by the square of their number, since each pair of them has rings of its own, whose slots take turns. Measured with 3,
# 4, 8 and 16 processes on 2 cores: from 64 KiB up to there direct is level with the better of ring and
# halving_doubling or up to 1.7 times as fast, above ring is 1.2 to 1.7 times as fast as direct.
CACHE_BYTES, CACHE_RANKS = 32 << 20, 8


@dataclasses.dataclass(frozen=True)
class Topology:
    """The formulas' view of the ranks: counts only, so that all ranks compute the same."""

    nranks: int
    domains: int
    width: int  # ranks of the largest domain
    hosts: int
    ranks_per_host: int  # of the largest host
    domains_per_host: int
    processors: int = 0  # of a host; 0: as many as its processes want
    network: str = "tcp"  # of NETWORKS: how messages between hosts travel

    @property
    def crowded(self) -> bool:
        """Whether processes of one host that wait for each other have to take turns on its processors."""
        return self.hosts == 1 < self.domains and 0 < self.processors < self.domains_per_host

    @classmethod
    def of(cls, placement: Sequence[int], hosts: Sequence[int], processors: int = 0, network: str = "tcp") -> Topology:
        host_of_domain = dict(zip(placement, hosts, strict=True))
        if any(host_of_domain[domain] != host for domain, host in zip(placement, hosts, strict=True)):
            raise ValueError("ranks that share memory must be on one host, but a domain of the placement is on several")
        return cls(
            nranks=len(placement),
            domains=len(host_of_domain),
            width=max(Counter(placement).values()),
            hosts=len(set(hosts)),
            ranks_per_host=max(Counter(hosts).values()),
            domains_per_host=max(Counter(host_of_domain.values()).values()),
            processors=processors,
            network=network,
        )


@dataclasses.dataclass(frozen=True)
class Shape:
    """Of a whole schedule: dependent messages, messages per rank, bytes over the busiest link, bytes by memory."""

    hops: int
    messages: int
    wire_bytes: int
    memory_bytes: int


@dataclasses.dataclass(frozen=True)
class Phase:
    """Of one phase: dependent messages, messages per rank, bytes over the busiest link."""

    hops: int
    messages: int
    wire_bytes: int


@dataclasses.dataclass(frozen=True)
class Call:
    """The input of an algorithm's formula.

    ``nbytes``: of input per rank. ``widening``: bytes of an accumulator element over bytes of an element, which partial
    results take on the wire. ``hierarchical``: messages travel between domains only, and domains take part, not ranks.
    """

    collective: str
    topology: Topology
    nbytes: int
    channels: int
    widening: int
    hierarchical: bool

    @property
    def total(self) -> int:
        """Bytes of the whole vector. Each participant ends with, or starts from, one count-th of it, unless rooted."""
        return COLLECTIVES[self.collective].total(self.topology.nranks, self.nbytes)

    @property
    def count(self) -> int:
        """Participants that exchange messages."""
        return self.topology.domains if self.hierarchical else self.topology.nranks

    @property
    def _per_host(self) -> int:
        return self.topology.domains_per_host if self.hierarchical else self.topology.ranks_per_host

    @property
    def outside(self) -> int:
        """Participants beyond the busiest link: of other hosts, or on one host all others."""
        return self.count - self._per_host if self._per_host < self.count else self.count - 1

    @property
    def crossing(self) -> int:
        """Participants whose traffic shares the busiest link."""
        return self._per_host if self._per_host < self.count else 1

    @property
    def rooted(self) -> bool:
        """Whether the whole vector leaves or reaches one participant."""
        collective = COLLECTIVES[self.collective]
        return collective.without_blocks and collective.root is not Root.NONE

    @property
    def cached(self) -> bool:
        """Whether a phase stays in the caches."""
        if self.topology.hosts > 1:
            return self.total < READ_BACK_BYTES
        crowd = max(self.count, CACHE_RANKS) ** 2
        return self.total * (self.count - 1) * crowd < CACHE_BYTES * CACHE_RANKS**2

    @property
    def rails(self) -> int:
        """Lanes that share a participant's bytes."""
        return self.channels * (self.topology.width if self.hierarchical else 1)

    def widened(self, phase: PhaseKind) -> int:
        """The factor by which messages of ``phase`` are wider than the data, where they carry partial results."""
        return self.widening if phase is PhaseKind.FOLD else 1

    def sum_phases(self, phase_of: Callable[[Call, PhaseKind], Phase]) -> Shape:
        """The phases of the collective one after the other, as ``phase_of(call, FOLD or SPREAD)`` says of each."""
        phases = [phase_of(self, phase) for phase in COLLECTIVES[self.collective].phases]
        return Shape(
            hops=sum(phase.hops for phase in phases),
            messages=sum(phase.messages for phase in phases),
            wire_bytes=sum(phase.wire_bytes for phase in phases),
            memory_bytes=0,
        )


def log2(n: int) -> int:
    """Rounded up."""
    return (n - 1).bit_length()


def cost_us(shape: Shape, topology: Topology, protocol: str) -> float:
    """Microseconds, rounded to whole nanoseconds, so that comparisons agree everywhere."""
    link = LINKS[topology.network if topology.hosts > 1 else "shm"]
    memory = LINKS["memory"]
    ll = protocol == "ll"
    switch, turns = (SWITCH_US, topology.domains_per_host / topology.processors) if topology.crowded else (0.0, 1.0)
    wire = shape.hops * (link.alpha * (LL_ALPHA if ll else 1.0) + switch) + shape.messages * link.overhead
    wire += shape.wire_bytes * link.beta * (LL_BETA if ll else 1.0) * turns
    local = 2 * memory.alpha + shape.memory_bytes * memory.beta if shape.memory_bytes or not shape.hops else 0.0
    return round(wire + local, 3)


def widening(collective: str, element_bytes: int, accumulator_bytes: int) -> int:
    """The factor by which partial results are wider than the data: 1 where nothing is folded."""
    return accumulator_bytes // element_bytes if COLLECTIVES[collective].reduces else 1
