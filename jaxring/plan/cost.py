"""The cost of a schedule: alpha-beta formulas over its shape, not over its steps.

An all-reduce is two phases, folding and spreading; other collectives are one of them. A phase of an algorithm has so
many dependent messages (hops), so many messages that one rank handles one after the other, and so many bytes through
the busiest link: a rank's own, or its host's network where several hosts take part. Each algorithm's module says what
its phases are, in terms of a `Call`. The constants are those of a profile; they order the candidates and do not promise
times. Units: microseconds and bytes.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING

from jaxring.plan.collectives import COLLECTIVES, PhaseKind, Root
from jaxring.plan.profile_file import COMMODITY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxring.plan.profile import Constants, Profile


# Between hosts.
NETWORKS = ("tcp", "rdma")


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
    def link_class(self) -> str:
        """The class of connections by which messages travel, as a profile names it."""
        return self.network if self.hosts > 1 else "shm"

    def in_turn(self, nbytes: int) -> bool:
        """Whether messages of so many bytes leave one after another, in one lane, of an algorithm that hides its depth
        by many lanes while they are short.

        TCP's connections share their host's link, so those of many lanes all end late together, and the next exchange
        waits for all of them (docs/concepts/joining.md). Of RDMA that was not measured.
        """
        return self.link_class == "tcp" and nbytes >= 64 * 1024

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
    """What a schedule costs: dependent messages, messages per rank, bytes over the busiest link and by memory."""

    hops: int
    messages: int
    wire_bytes: int
    memory_bytes: int


@dataclasses.dataclass(frozen=True)
class Phase:
    """What one phase costs: dependent messages, messages per rank, bytes over the busiest link."""

    hops: int
    messages: int
    wire_bytes: int


@dataclasses.dataclass(frozen=True)
class Call:
    """The input of an algorithm's formula.

    ``nbytes``: of input per rank. ``widening``: bytes of an accumulator element over bytes of an element, which partial
    results take on the wire. ``hierarchical``: messages travel between domains only, and domains take part, not ranks.
    ``spread``: bytes of an element of a reduction's result over bytes of an element, where an epilogue casts.
    """

    collective: str
    topology: Topology
    nbytes: int
    channels: int
    widening: int
    hierarchical: bool
    constants: Constants = COMMODITY.constants
    spread: float = 1.0

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
        known = self.constants
        if self.topology.hosts > 1:
            return self.total < known.read_back_bytes
        crowd = max(self.count, known.cache_ranks) ** 2
        return self.total * (self.count - 1) * crowd < known.cache_bytes * known.cache_ranks**2

    def depth(self, messages: int) -> int:
        """Dependent messages of a logarithmic exchange in which a participant sends so many messages in all its lanes.

        Where they leave in turn the latency of one passes while others are sent.
        """
        in_turn = self.topology.in_turn(self.total // self.count)
        return max(log2(messages), 1 if in_turn else messages // self.channels)

    @property
    def rails(self) -> int:
        """Lanes that share a participant's bytes."""
        return self.channels * (self.topology.width if self.hierarchical else 1)

    def widened(self, phase: PhaseKind) -> int:
        """The factor by which messages of ``phase`` are wider than the data, where they carry partial results."""
        return self.widening if phase is PhaseKind.FOLD else 1

    def sum_phases(self, phase_of: Callable[[Call, PhaseKind], Phase]) -> Shape:
        """The phases of the collective one after the other, as ``phase_of(call, FOLD or SPREAD)`` says of each."""
        facts = COLLECTIVES[self.collective]
        phases = [phase_of(self, phase) for phase in facts.phases]
        if self.spread != 1.0 and facts.reduces:
            phases = [
                dataclasses.replace(phase, wire_bytes=round(phase.wire_bytes * self.spread))
                if kind is PhaseKind.SPREAD
                else phase
                for kind, phase in zip(facts.phases, phases, strict=True)
            ]
        return Shape(
            hops=sum(phase.hops for phase in phases),
            messages=sum(phase.messages for phase in phases),
            wire_bytes=sum(phase.wire_bytes for phase in phases),
            memory_bytes=0,
        )


def log2(n: int) -> int:
    """Rounded up."""
    return (n - 1).bit_length()


@dataclasses.dataclass(frozen=True)
class Price:
    """What a candidate is predicted to take, in us, by what takes it."""

    latency: float
    messages: float
    bandwidth: float
    memory: float

    @property
    def us(self) -> float:
        """The sum, rounded to whole nanoseconds, so that comparisons agree everywhere."""
        return round(self.latency + self.messages + self.bandwidth + self.memory, 3)

    @property
    def limit(self) -> str:
        """The name of the part that takes most."""
        return max(dataclasses.asdict(self).items(), key=lambda part: part[1])[0]


def price(shape: Shape, topology: Topology, protocol: str, profile: Profile = COMMODITY) -> Price:
    """What a schedule of this shape takes on these ranks by this protocol."""
    link, memory, known = profile.link(topology.link_class), profile.memory, profile.constants
    alpha, beta = (known.ll_alpha, known.ll_beta) if protocol == "ll" else (1.0, 1.0)
    switch, turns = (known.switch, topology.domains_per_host / topology.processors) if topology.crowded else (0.0, 1.0)
    local = 2 * memory.alpha + shape.memory_bytes * memory.beta if shape.memory_bytes or not shape.hops else 0.0
    return Price(
        latency=shape.hops * (link.alpha * alpha + switch),
        messages=shape.messages * link.overhead,
        bandwidth=shape.wire_bytes * link.beta * beta * turns,
        memory=local,
    )


def light_us(collective: str, topology: Topology, nbytes: int, profile: Profile = COMMODITY) -> float:
    """A bound below the time of any algorithm, in us, of ``nbytes`` of input per rank.

    It is one message's latency, or the bytes that have to enter or leave a host, whichever takes longer; on one host
    those of a memory domain. In one domain it is the bytes of a rank's operand and result.
    """
    facts, n = COLLECTIVES[collective], topology.nranks
    total = facts.total(n, nbytes)
    if topology.domains == 1:
        result = nbytes // facts.in_blocks(n) * facts.out_blocks(n)
        return round(profile.memory.alpha + (nbytes + result) * profile.memory.beta, 3)
    between = topology.hosts > 1
    places = topology.hosts if between else topology.domains
    inside = topology.ranks_per_host if between else topology.width
    crossing: float = nbytes
    if facts.without_blocks and facts.root is Root.NONE:
        crossing = len(facts.phases) * total * (places - 1) / places
    elif not facts.without_blocks and not facts.pairs:
        many = inside if facts.blocks_in and facts.blocks_out else 1
        crossing = total * (n - inside) / n * many
    link = profile.link(topology.link_class)
    return round(max(link.alpha * min(1.0, profile.constants.ll_alpha), crossing * link.beta), 3)


def widening(collective: str, element_bytes: int, accumulator_bytes: int) -> int:
    """The factor by which partial results are wider than the data: 1 where nothing is folded."""
    return accumulator_bytes // element_bytes if COLLECTIVES[collective].reduces else 1
