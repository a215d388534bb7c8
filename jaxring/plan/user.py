"""Algorithms that users write: a table of steps from a Python function, verified before it runs."""

from __future__ import annotations

import dataclasses
import functools
import threading
from typing import TYPE_CHECKING

from jaxring.plan.algorithms import ALGORITHMS, custom
from jaxring.plan.collectives import COLLECTIVES
from jaxring.plan.gpu import copy_engine, nvls
from jaxring.plan.schedule import Schedule, Spec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jaxring.plan.schedule import Step


@dataclasses.dataclass(frozen=True)
class UserAlgorithm:
    """What `register_algorithm` was given."""

    name: str
    collective: str
    lanes: Callable[[Spec, int], Sequence[Sequence[Step]]]
    pieces: Callable[[Spec], int]
    nlanes: Callable[[Spec], int]
    scratch_chunks: int


_lock = threading.Lock()
_registered: dict[str, UserAlgorithm] = {}


def register_algorithm(
    name: str,
    collective: str,
    lanes: Callable[[Spec, int], Sequence[Sequence[Step]]],
    *,
    pieces: Callable[[Spec], int] = lambda _: 1,
    nlanes: Callable[[Spec], int] = lambda _: 1,
    scratch_chunks: int = 0,
) -> None:
    """Makes ``algorithm=name`` run your own schedule of ``collective``, on every process alike.

    ``lanes(spec, rank)`` gives a rank's lanes, each a sequence of `jaxring.plan.schedule.Step`; ``pieces(spec)`` says
    into how many pieces a block is cut, ``nlanes(spec)`` how many lanes every rank has. ``spec.nranks`` and
    ``spec.placement`` (the memory domain of each rank) are what they may depend on. The schedule is verified when a
    call with it is traced: ScheduleError (a ValueError) names rank, lane and step. Raises ValueError for a name that is
    taken.
    """
    if name in {*ALGORITHMS, copy_engine.NAME, nvls.NAME}:
        raise ValueError(f"{name!r} is a built-in algorithm; choose another name")
    if collective not in COLLECTIVES:
        raise ValueError(f"there is no collective {collective!r}; there are {', '.join(COLLECTIVES)}")
    algorithm = UserAlgorithm(name, collective, lanes, pieces, nlanes, scratch_chunks)
    with _lock:
        known = _registered.get(name)
        if known is not None and known != algorithm:
            raise ValueError(f"algorithm {name!r} is registered already, with another function")
        _registered[name] = algorithm


def find(name: str | None) -> UserAlgorithm | None:
    """The user's algorithm of that name, if there is one."""
    with _lock:
        return _registered.get(name) if name is not None else None


def names() -> tuple[str, ...]:
    """The names of the algorithms that are registered."""
    with _lock:
        return tuple(_registered)


@functools.lru_cache(maxsize=64)
def build_user(spec: Spec) -> Schedule:
    """The verified schedule of a user's algorithm. ScheduleError if it would not compute its collective."""
    algorithm = find(spec.algorithm)
    if algorithm is None or algorithm.collective != spec.collective:
        raise ValueError(f"no algorithm {spec.algorithm!r} is registered for {spec.collective} in this process")
    return custom(
        spec,
        functools.partial(algorithm.lanes, spec),
        algorithm.pieces(spec),
        algorithm.nlanes(spec),
        algorithm.scratch_chunks,
    )
