"""One call of a program in the records of its processes: what the live view and the table of slow calls both say."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from jaxring.plan import labels
from jaxring.plan.collectives import COLLECTIVES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxring.trace.flight import Record


@dataclasses.dataclass(frozen=True)
class Call:
    """``nbytes``: of a rank's input. ``way``: algorithm/protocol. ``executions``: in the process with the most of them.
    ``busbw``: GB/s as nccl-tests counts it. ``latest``: the process that the others waited for, "" for none; it is only
    known where the records of several that take part are seen."""

    what: str
    nbytes: int
    ranks: int
    processes: int
    way: str
    executions: int
    busbw: float
    latest: str


def about(records: Sequence[Record], us: float) -> dict[str, Any]:
    """The fields of a `Call` that its records' label says, of which an execution takes ``us``: zeros where none has a
    label, or a number of it is none, as a record may come from anywhere."""
    facts = labels.parse(next((record.label for record in records if record.label), ""))
    nbytes, ranks, processes = (
        value if type(value := facts.get(name)) is int else 0 for name in ("nbytes", "ranks", "processes")
    )
    collective = COLLECTIVES.get(str(facts.get("collective")))
    busbw = 0.0
    if collective is not None and us and ranks >= 2:
        busbw = collective.total(ranks, nbytes) * collective.bus_factor(ranks) / us / 1e3
    return {
        "what": records[0].what or "an operation",
        "nbytes": nbytes,
        "ranks": ranks,
        "processes": processes,
        "way": f"{facts.get('algorithm', '?')}/{facts.get('protocol', '?')}",
        "busbw": busbw,
    }
