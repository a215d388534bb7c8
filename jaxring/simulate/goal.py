"""A schedule in GOAL, the text that LogGOPSim and ATLAHS read (Hoefler, Siebert, Lumsdaine: Group Operation Assembly
Language, ICPP 2009): for each rank its sends, receives and calculations, and which requires which.

Times are whole nanoseconds, sizes bytes, and tags lanes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxring.simulate import operations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jaxring.plan.schedule import Schedule
    from jaxring.simulate.tile_sizes import Sizes

_PREPOSITIONS = {"send": "to", "recv": "from"}


def text(schedule: Schedule, sizes: Sizes, copy: float = 0.0) -> str:
    """The whole file. ``copy``: us for each byte that a step reads, which becomes its calculation.

    Raises ValueError for a schedule that goes by memory.
    """
    lines = [f"num_ranks {schedule.spec.nranks}"]
    for rank, made in enumerate(operations.by_rank(schedule, sizes, copy, "GOAL")):
        lines += ["", f"rank {rank} {{", *_rank(made), "}"]
    return "\n".join(lines) + "\n"


def _rank(made: list[operations.Operation]) -> Iterator[str]:
    for label, each in enumerate(made, 1):
        if each.kind == "calc":
            yield f"l{label}: calc {round(each.us * 1000)}"
        else:
            yield f"l{label}: {each.kind} {each.nbytes}b {_PREPOSITIONS[each.kind]} {each.peer} tag {each.lane}"
        yield from (f"l{label} requires l{other + 1}" for other in each.after)
