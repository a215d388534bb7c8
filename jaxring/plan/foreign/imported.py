"""Algorithms from files of others, registered by their name as a user's are."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from jaxring.plan.foreign import dataflow
from jaxring.plan.schedule import Buffer, ScheduleError, Spec
from jaxring.plan.user import register_algorithm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.plan.foreign.places import Action
    from jaxring.plan.schedule import Step


@dataclasses.dataclass(frozen=True)
class Lanes:
    """The lanes of each rank. Called as `register_algorithm` calls its ``lanes``."""

    lanes: tuple[tuple[tuple[Step, ...], ...], ...]

    def __call__(self, spec: Spec, rank: int) -> Sequence[Sequence[Step]]:
        if spec.nranks != len(self.lanes):
            raise ScheduleError(f"{spec.algorithm} is for {len(self.lanes)} ranks, not {spec.nranks}")
        return self.lanes[rank]


@dataclasses.dataclass(frozen=True)
class _Constant:
    """The same for every Spec. A dataclass, so that an algorithm that is registered again equals itself."""

    value: int

    def __call__(self, _: Spec) -> int:
        return self.value


def register(
    name: str, collective: str, ranks: int, pieces: int, in_place: bool, actions: Sequence[Action]
) -> tuple[str, str]:
    """Makes ``algorithm=name`` do these actions; returns the name and the collective. Raises ValueError for what our
    schedules cannot do, and for a name that is taken."""
    made = dataflow.lanes_of(Spec(collective, ranks, name), pieces, in_place, actions)
    lanes = Lanes(tuple(tuple(tuple(lane) for lane in of_rank) for of_rank in made))
    kept = [step.dst for of_rank in made for lane in of_rank for step in lane if step.dst]
    scratch = max((chunk.index + 1 for chunk in kept if chunk.buffer is Buffer.SCRATCH), default=0)
    nlanes = max(1, len(made[0]))
    register_algorithm(
        name, collective, lanes, pieces=_Constant(pieces), nlanes=_Constant(nlanes), scratch_chunks=scratch
    )
    return name, collective
