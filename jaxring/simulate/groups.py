"""A collective among groups of the ranks, all groups at once: their schedules as one schedule of all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxring.plan.schedule import Peer, Schedule, Spec, Step

if TYPE_CHECKING:
    from collections.abc import Sequence

Groups = tuple[tuple[int, ...], ...]


def check(groups: Groups, nranks: int) -> None:
    """Raises ValueError for groups that differ in size, or name a rank twice or one that is not there."""
    named: set[int] = set()
    for group in groups:
        if len(group) != len(groups[0]) or not group:
            raise ValueError(f"groups have the same number of ranks, and {group} and {groups[0]} have not")
        for rank in group:
            if not 0 <= rank < nranks:
                raise ValueError(f"group {group} names rank {rank}, and there are the ranks 0..{nranks - 1}")
            if rank in named:
                raise ValueError(f"groups name rank {rank} twice")
            named.add(rank)


def within(placement: Sequence[int], group: Sequence[int]) -> tuple[int, ...]:
    """The memory domain of each rank of the group, numbered from 0."""
    number: dict[int, int] = {}
    return tuple(number.setdefault(placement[rank], len(number)) for rank in group)


def joined(schedules: Sequence[Schedule], groups: Groups, nranks: int) -> Schedule:
    """The schedule of all ranks, where each group plays its own of ``schedules``, and other ranks do nothing.

    Raises ValueError for schedules that cut their blocks into different numbers of pieces.
    """
    first = schedules[0]
    place = {rank: (which, at) for which, group in enumerate(groups) for at, rank in enumerate(group)}
    if any(each.pieces != first.pieces for each in schedules):
        raise ValueError(f"{first.spec.algorithm} cuts the blocks of these groups differently; simulate one of them")

    def lanes(rank: int) -> list[list[Step]]:
        if rank not in place:
            return []
        which, at = place[rank]

        def moved(peers: tuple[Peer, ...]) -> tuple[Peer, ...]:
            return tuple(Peer(groups[which][peer.rank], peer.memory) for peer in peers)

        return [
            [step._replace(recv=moved(step.recv), send=moved(step.send)) for step in lane]
            for lane in schedules[which].lanes(at)
        ]

    # Ranks of a domain that are in different groups do not wait for each other, so each group has its own domains.
    number: dict[tuple[int, int], int] = {}
    domains = [
        number.setdefault(
            (place[rank][0], schedules[place[rank][0]].spec.placement[place[rank][1]]) if rank in place else (-1, rank),
            len(number),
        )
        for rank in range(nranks)
    ]
    spec = Spec(first.spec.collective, nranks, first.spec.algorithm, 0, first.spec.channels, tuple(domains))
    nlanes = max(each.nlanes for each in schedules)
    scratch = max(each.scratch_chunks for each in schedules)
    return Schedule(spec, first.pieces, nlanes, scratch, lanes, max(each.group for each in schedules))
