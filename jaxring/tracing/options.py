"""The options of a collective's call."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from jaxring.plan.epilogue import EpilogueSpec


class Options(NamedTuple):
    """The options of a call; a parameter of every primitive.

    ``timeout`` in seconds. ``extra`` is collective-specific: root, perm or tag.
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
    # Of how many chunks of one pipeline it is one.
    parts: int = 1
    # Of ragged_all_to_all: no row goes to two ranks, so that its transpose is one, too.
    disjoint: bool = False
    # Of a reduction: what its schedule applies to complete values.
    epilogue: EpilogueSpec | None = None
