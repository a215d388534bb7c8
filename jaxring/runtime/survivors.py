"""The meaning of a collective for the surviving ranks when some of its ranks are lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxring.errors import PlanError
from jaxring.plan.collectives import Root

if TYPE_CHECKING:
    from jaxring.runtime.call import CallSpec
    from jaxring.runtime.placement import RankPlace
    from jaxring.world.membership import Membership


def present(spec: CallSpec, placement: list[RankPlace], membership: Membership) -> list[int]:
    """The ranks of a call that take part, as the call counts them.

    Raises PlanError where its result would need a rank that is lost.
    """
    lost = [rank for rank, place in enumerate(placement) if place.process not in membership.processes]
    if not lost:
        return list(range(len(placement)))
    collective = spec.facts
    names = ", ".join(f"rank {rank} (process {placement[rank].process})" for rank in lost)
    if not collective.without_blocks:
        why = "its operand, result or pairs have a place for each rank"
    elif collective.root is not Root.NONE and spec.root in lost:
        why = f"its root {spec.root} is one of them"
    else:
        return [rank for rank in range(len(placement)) if rank not in lost]
    raise PlanError(
        f"{spec.describe()} cannot do without {names}: {why}. Run a program over a mesh of the surviving "
        "processes' devices, or bring the lost ones back with jaxring.rebuild()."
    )
