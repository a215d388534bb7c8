"""The options of a collective's call."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from jaxring.plan.epilogue import EpilogueSpec


class Options(NamedTuple):
    """The options of a call; a parameter of every primitive.

    ``timeout`` is in seconds. ``root``, ``perm`` and ``tag`` are each used by some collectives only.
    """

    op: str | None
    algorithm: str | None
    protocol: str | None
    timeout: float
    site: str
    root: int = 0
    perm: tuple[tuple[int, int], ...] = ()
    tag: int = 0
    # Its result is used by a done only: see overlap.py.
    started: bool = False
    # How many chunks the pipeline has of which this call moves one; 1 outside of pipelines.
    parts: int = 1
    # Whether no row goes to two ranks, so that its transpose is one, too; for ragged_all_to_all only.
    disjoint: bool = False
    # What a reduction's schedule applies to complete values.
    epilogue: EpilogueSpec | None = None
