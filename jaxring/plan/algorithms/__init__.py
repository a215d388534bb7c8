"""The algorithms by name, and ``build``, which turns a Spec into a Schedule."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from jaxring.plan.algorithms import direct, halving_doubling, hier_direct, oneshot, pxn, ring, tree
from jaxring.plan.schedule import LanesFn, Schedule, ScheduleError, Spec

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """``collectives`` that it serves; ``memory``: it addresses the memory of ranks on the same node."""

    collectives: frozenset[str]
    memory: bool
    build: Callable[[Spec], Schedule]
    summary: str


def _entry(collectives: tuple[str, ...], memory: bool, build: Callable[[Spec], Schedule], summary: str) -> Algorithm:
    return Algorithm(frozenset(collectives), memory, build, summary)


ALGORITHMS: dict[str, Algorithm] = {
    "direct": _entry(direct.COLLECTIVES, True, direct.build, "every pair of ranks; folds in rank order"),
    "oneshot": _entry(oneshot.COLLECTIVES, False, oneshot.build, "whole vectors to everybody, one hop; rank order"),
    "ring": _entry(ring.COLLECTIVES, False, ring.build, "least bytes per link, n-1 steps per phase"),
    "tree": _entry(tree.COLLECTIVES, False, tree.build, "double binary tree, log2(n) deep"),
    "halving_doubling": _entry(
        halving_doubling.COLLECTIVES, False, halving_doubling.build, "hypercube, log2(n) exchanges"
    ),
    "hier_ring": _entry(ring.COLLECTIVES, True, ring.build_hier, "memory within nodes, ring between them"),
    "hier_tree": _entry(tree.COLLECTIVES, True, tree.build_hier, "memory within nodes, two trees between them"),
    "hier_direct": _entry(
        hier_direct.COLLECTIVES, True, hier_direct.build_hier, "memory within nodes, every pair of nodes"
    ),
    "pxn": _entry(pxn.COLLECTIVES, True, pxn.build, "a message per node and rail, gathered by memory"),
    "deterministic": _entry(direct.COLLECTIVES, True, direct.build, "direct by its promise: folds in rank order"),
}


def serving(collective: str) -> list[str]:
    """The names of the algorithms that serve ``collective``."""
    return [name for name, algorithm in ALGORITHMS.items() if collective in algorithm.collectives]


def build(spec: Spec) -> Schedule:
    """The schedule for ``spec``; ValueError where the algorithm does not serve the collective."""
    algorithm = ALGORITHMS.get(spec.algorithm)
    if algorithm is None:
        raise ValueError(f"there is no algorithm {spec.algorithm!r}; there are {', '.join(ALGORITHMS)}")
    if spec.collective not in algorithm.collectives:
        names = " or ".join(serving(spec.collective))
        raise ValueError(f"algorithm {spec.algorithm!r} does not serve {spec.collective}; use {names}")
    return algorithm.build(spec)


def custom(
    spec: Spec,
    lanes_fn: LanesFn,
    pieces: int,
    nlanes: int = 1,
    scratch_chunks: int = 0,
    fifo_depth: int = 2,
) -> Schedule:
    """A schedule of the caller's own: ``lanes_fn(rank)`` gives that rank's lanes, each a sequence of steps.

    It is verified for all ranks before it is returned (ScheduleError otherwise). ``spec.algorithm`` is a free name that
    must not be one of ours, since results and caches go by it.
    """
    from jaxring.plan.verify import verify

    if spec.algorithm in ALGORITHMS:
        raise ValueError(f"{spec.algorithm!r} is a built-in algorithm; give the custom schedule another name")
    if pieces < 1 or nlanes < 1 or scratch_chunks < 0:
        raise ValueError("a schedule needs at least one piece and one lane, and no negative number of scratch chunks")
    schedule = Schedule(spec, pieces, nlanes, scratch_chunks, lanes_fn)
    _check_messages(schedule)
    verify(schedule, fifo_depth=fifo_depth)
    return schedule


def _check_messages(schedule: Schedule) -> None:
    """ScheduleError for what the engine cannot do: it looks for one message of a peer at a time."""
    for rank in range(schedule.spec.nranks):
        for number, lane in enumerate(schedule.lanes(rank)):
            for step in lane:
                peers = [peer.rank for peer in step.recv if not peer.memory and peer.rank != rank]
                if len(set(peers)) != len(peers):
                    raise ScheduleError(
                        f"rank {rank}, lane {number}: a step receives twice from one rank; use two steps"
                    )
