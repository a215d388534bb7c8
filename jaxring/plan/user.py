"""Algorithms that users write: a table of steps from a Python function, verified before it runs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from jaxring.plan.algorithms import ALGORITHMS, custom
from jaxring.plan.collectives import COLLECTIVES
from jaxring.plan.gpu import copy_engine, nvls
from jaxring.plan.schedule import Peer, Schedule, ScheduleError, Spec, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


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

    The schedule is verified when a call with it is traced, and priced from its steps; it is not chosen unasked. The
    functions may depend on ``spec.nranks`` and ``spec.placement`` (the memory domain of each rank); what they raise
    comes out of that call, with a note of the algorithm's name. docs/howto/own-algorithm.md explains steps, and how to
    look at a schedule.

    Args:
        name: A name that is none of the built-in algorithms'.
        collective: Which collective it computes, such as "all_reduce".
        lanes: ``lanes(spec, rank)`` gives a rank's lanes, each a sequence of `jaxring.plan.schedule.Step`.
        pieces: ``pieces(spec)`` says into how many pieces a block is cut.
        nlanes: ``nlanes(spec)`` says how many lanes a rank has at most.
        scratch_chunks: How many chunks of scratch memory a lane has.

    Raises:
        ValueError: For the name of a built-in algorithm or of another one that is registered, and for a collective that
            does not exist. A call that is traced with it raises `jaxring.plan.schedule.ScheduleError`, a ValueError
            that names rank, lane and step, where the schedule would not compute its collective.

    Examples:
        With a function `lanes` of your own:

            jaxring.register_algorithm("chain", "all_reduce", lanes)
            total = jaxring.all_reduce(x, "data", algorithm="chain")
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


def names(collective: str = "") -> tuple[str, ...]:
    """The names of the algorithms that are registered, for a collective or for any."""
    with _lock:
        return tuple(name for name, each in _registered.items() if collective in ("", each.collective))


@functools.lru_cache(maxsize=64)
def build_user(spec: Spec) -> Schedule:
    """The verified schedule of a user's algorithm. ScheduleError if it would not compute its collective."""
    algorithm = find(spec.algorithm)
    if algorithm is None or algorithm.collective != spec.collective:
        raise ValueError(f"no algorithm {spec.algorithm!r} is registered for {spec.collective} in this process")
    with _naming(f"pieces() and nlanes() of algorithm {algorithm.name!r}", spec):
        pieces, nlanes = operator.index(algorithm.pieces(spec)), operator.index(algorithm.nlanes(spec))
    return custom(spec, functools.partial(_lanes, algorithm, spec), pieces, nlanes, algorithm.scratch_chunks)


def _lanes(algorithm: UserAlgorithm, spec: Spec, rank: int) -> tuple[tuple[Step, ...], ...]:
    """A rank's lanes. ScheduleError for what is not lanes of steps; the function's own errors get a note."""
    call = f"lanes(spec, {rank}) of algorithm {algorithm.name!r}"
    with _naming(call, spec):
        made = algorithm.lanes(spec, rank)
        # A lane that is none stays as it is.
        lanes: tuple[Any, ...] | None = None
        if _listed(made):
            lanes = tuple(tuple(lane) if _listed(lane) else lane for lane in made)
    if lanes is None:
        raise ScheduleError(f"{call} must return a sequence of lanes, each a sequence of steps, not {made!r:.100}")
    for number, lane in enumerate(lanes):
        if not _listed(lane):
            raise ScheduleError(f"{call}: lane {number} must be a sequence of steps, such as [step], not {lane!r:.100}")
        for place, step in enumerate(lane):
            if not isinstance(step, Step):
                raise ScheduleError(
                    f"{call}: step {place} of lane {number} must be a jaxring.plan.schedule.Step, not {step!r:.100}"
                )
            for peers in (step.recv, step.send):
                if not _listed(peers) or not all(isinstance(peer, Peer) for peer in peers):
                    raise ScheduleError(
                        f"{call}: step {place} of lane {number} must have tuples of jaxring.plan.schedule.Peer as recv "
                        f"and send, such as (peer,), not {peers!r:.100}"
                    )
    return lanes


def _listed(value: object) -> bool:
    # A step and a peer are tuples, too.
    return isinstance(value, Iterable) and not isinstance(value, str | Step | Peer)


@contextlib.contextmanager
def _naming(call: str, spec: Spec) -> Iterator[None]:
    """Adds to an error of the user's function which call of it, and for what, raised it."""
    try:
        yield
    except Exception as error:
        error.add_note(f"jaxring: raised by {call}, for {spec.collective} of {spec.nranks} ranks")
        raise
