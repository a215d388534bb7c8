"""The algorithms by name, and ``build``, which turns a Spec into a Schedule."""

from __future__ import annotations

import importlib
import pkgutil

from jaxring.plan.algorithms.record import Algorithm
from jaxring.plan.schedule import LanesFn, Schedule, ScheduleError, Spec

__all__ = ["ALGORITHMS", "Algorithm", "build", "custom", "serving"]


def _discover() -> dict[str, Algorithm]:
    """The records of all modules of this package, in the order of their preference.

    A module offers its algorithms as ``ALGORITHMS``; those that only help others have none.
    """
    found: dict[str, Algorithm] = {}
    for module in pkgutil.iter_modules(__path__):
        for algorithm in getattr(importlib.import_module(f"{__name__}.{module.name}"), "ALGORITHMS", ()):
            if algorithm.name in found:
                raise ValueError(f"there are two algorithms {algorithm.name!r}")
            found[algorithm.name] = algorithm
    return dict(sorted(found.items(), key=lambda entry: entry[1].preference))


ALGORITHMS: dict[str, Algorithm] = _discover()


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
        raise ScheduleError(
            f"{spec.algorithm!r} needs at least one piece and one lane, and no negative number of scratch chunks; it "
            f"has {pieces} piece(s), {nlanes} lane(s) and {scratch_chunks} scratch chunk(s)"
        )
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
                    raise schedule.fault(
                        f"rank {rank}, lane {number}: a step receives twice from one rank; use two steps"
                    )
