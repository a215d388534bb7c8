"""Epilogues: elementwise functions that a schedule applies to complete chunks before they are spread.

The function itself is the engine's; a schedule says only where it is applied: on the steps with FINAL, which have every
contribution in accumulator precision. Each of them comes before the chunk is sent on, so what is spread is the result.
`jaxring.plan.verify` proves that every element has had it once.
"""

from __future__ import annotations

import dataclasses
import functools

from jaxring.plan import dtypes
from jaxring.plan.schedule import Flag, Lane, Results, Schedule

# A launch passes that many to a kernel (EpilogueArgs in ffi/cuda/device/tables.h).
MOST_FUNCTIONS_ON_GPUS = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpilogueSpec:
    """What a call's epilogue is, as the engine needs it: all but the values of its parameters.

    ``functions``: names of `jaxring._native.epilogues`, applied one after the other. ``result``: the result's dtype.
    ``further``: the dtypes of the operands and states of all functions, each function's operands first. ``states``: how
    many of those are states, which the call returns, too.
    """

    functions: tuple[str, ...]
    result: str
    further: tuple[str, ...] = ()
    states: int = 0

    def __str__(self) -> str:
        """All of it in words, which two calls share only if the engine does the same for them."""
        further = f" with operands of {', '.join(self.further)}" if self.further else ""
        return f"{', '.join(self.functions)} in {self.result}{further}"

    @property
    def results(self) -> Results:
        """What the results of a schedule with this epilogue are."""
        return Results.OWN if self.further else Results.APPLIED

    @property
    def text(self) -> str:
        """For people: the functions, and the dtype that a cast makes."""
        return ", ".join(f"cast to {self.result}" if name == "cast" else name for name in self.functions)

    def spread_share(self, dtype: object) -> float:
        """Bytes of a result over bytes of an element of ``dtype``, the data's."""
        return dtypes.element_bytes(self.result) / dtypes.element_bytes(dtype)

    @classmethod
    def of(cls, fields: dict[str, object] | None) -> EpilogueSpec | None:
        """The epilogue of the fields that JSON has kept: lists stand for tuples."""
        if fields is None:
            return None
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})  # type: ignore[arg-type]


def with_epilogue(schedule: Schedule, results: Results = Results.APPLIED) -> Schedule:
    """``schedule`` of a reduction, with an epilogue on every step that completes a chunk.

    It is not verified here. ``results`` says whether the epilogue's operands are a rank's own.
    """
    return dataclasses.replace(schedule, results=results, lanes_fn=functools.partial(_applied, schedule))


def _applied(schedule: Schedule, rank: int) -> tuple[Lane, ...]:
    return tuple(
        tuple(step._replace(flags=step.flags | Flag.EPILOGUE) if step.flags & Flag.FINAL else step for step in lane)
        for lane in schedule.lanes(rank)
    )
