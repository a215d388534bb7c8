"""Shared by the algorithms: the ranks of each memory domain, and the steps that several algorithms use."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

from jaxring.plan.schedule import Buffer, Chunk, Flag, Kind, Peer, Spec, Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# A source of a fold, and whether it is a message of accumulator elements.
Source = tuple[Peer, bool]


@dataclasses.dataclass(frozen=True)
class Domains:
    """Ranks grouped by memory domain. Domains are numbered in the order of their lowest ranks; members ascend.

    A *rail* is a lane that at most one rank of each domain runs: the path of its pieces between domains.
    """

    spec: Spec
    members: tuple[tuple[int, ...], ...]
    domain_of: tuple[int, ...]

    @classmethod
    def of(cls, spec: Spec) -> Domains:
        groups: dict[int, list[int]] = {}
        for rank, domain in enumerate(spec.placement):
            groups.setdefault(domain, []).append(rank)
        number = {domain: index for index, domain in enumerate(groups)}
        return cls(spec, tuple(tuple(g) for g in groups.values()), tuple(number[domain] for domain in spec.placement))

    @classmethod
    def flat(cls, spec: Spec) -> Domains:
        """Every rank as a domain of its own, whatever the placement. This makes a hierarchical algorithm flat."""
        return cls(spec, tuple((rank,) for rank in range(spec.nranks)), tuple(range(spec.nranks)))

    def in_order(self) -> Domains:
        """These domains numbered in the spec's order, where it has one."""
        if not self.spec.order:
            return self
        place = {domain: index for index, domain in enumerate(self.spec.order)}
        members = sorted(self.members, key=lambda ranks: (place[self.spec.placement[ranks[0]]], ranks[0]))
        number = {rank: index for index, ranks in enumerate(members) for rank in ranks}
        return Domains(self.spec, tuple(members), tuple(number[rank] for rank in range(self.spec.nranks)))

    @property
    def count(self) -> int:
        return len(self.members)

    @functools.cached_property
    def width(self) -> int:
        return max(map(len, self.members))

    def runner(self, rail: int, domain: int) -> int:
        """The rank that runs ``rail`` on ``domain``: rails are dealt to the members in turn."""
        members = self.members[domain % self.count]
        return members[rail % len(members)]

    def partial(self, domain: int) -> bool:
        """Whether a domain's own contribution is already a fold (it has several ranks)."""
        return len(self.members[domain % self.count]) > 1


def inp(index: int) -> Chunk:
    return Chunk(Buffer.INPUT, index)


@functools.cache
def out(index: int) -> Chunk:
    """One object for each chunk, as for each rank below."""
    return Chunk(Buffer.OUTPUT, index)


@functools.cache
def _message(rank: int) -> Peer:
    """One object for each rank, since schedules of many ranks name each in thousands of steps."""
    return Peer(rank)


def messages(ranks: Iterable[int]) -> tuple[Peer, ...]:
    return tuple(map(_message, ranks))


def others(rank: int, members: Iterable[int]) -> tuple[Peer, ...]:
    """The other members as memory peers."""
    return tuple(Peer(m, memory=True) for m in members if m != rank)


def own(rank: int, members: Iterable[int]) -> list[Source]:
    """The members' local chunks as sources of a fold at ``rank``, in rank order."""
    return [(Peer(m, memory=m != rank), False) for m in members]


def read(rank: int, owner: int, src: int, dst: int, send: tuple[Peer, ...] = ()) -> Step:
    """Move ``owner``'s input chunk (by memory where it is another rank's) to the output and to ``send``."""
    recv = () if owner == rank else (Peer(owner, memory=True),)
    return Step(Kind.MOVE, inp(src), out(dst), recv, send)


def receive(source: int, dst: int, send: tuple[Peer, ...] = ()) -> Step:
    """Move a message to the output and to ``send``."""
    return Step(Kind.MOVE, None, out(dst), (_message(source),), send)


def zero(dst: int) -> Step:
    return Step(Kind.MOVE, None, out(dst), flags=Flag.ZERO)


def fold(
    rank: int,
    chunk: int,
    sources: Sequence[Source],
    dst: Chunk | None = None,
    send: tuple[Peer, ...] = (),
    final: bool = False,
) -> list[Step]:
    """The steps that fold ``sources`` (local ones read input ``chunk``) in their order and deliver the value.

    One step, unless some messages are raw and some partial: a step receives one type only, so the raw ones are folded
    to scratch chunk 0 first and the partial ones onto it. A single local source that is not final is plainly moved.
    """
    src = inp(chunk)
    partial = [peer for peer, is_partial in sources if is_partial]
    rest = [peer for peer, is_partial in sources if not is_partial]
    flags = Flag.FINAL if final else Flag.NONE
    if not final and any(not peer.memory for peer in send) and len(sources) > 1:
        flags |= Flag.SEND_PARTIAL
    if partial and any(not peer.memory and peer.rank != rank for peer in rest):
        scratch = Chunk(Buffer.SCRATCH, 0)
        first = Step(Kind.REDUCE, src, scratch, tuple(rest))
        recv = (Peer(rank), *partial)
        return [first, Step(Kind.REDUCE, scratch, dst, recv, send, flags | Flag.RECV_PARTIAL)]
    recv = tuple(peer for peer, _ in sources)
    if len(recv) == 1 and not final:
        return [Step(Kind.MOVE, src, dst, () if recv[0].rank == rank else recv, send)]
    if partial:
        flags |= Flag.RECV_PARTIAL
    return [Step(Kind.REDUCE, src, dst, recv, send, flags)]
