"""A plan of another's from its file, whichever of the formats it has."""

from __future__ import annotations

from jaxring.plan import msccl
from jaxring.plan.foreign import mscclpp


def register(text: str) -> tuple[str, str]:
    """Makes ``algorithm=NAME`` run the algorithm in ``text``, which is MSCCL's XML or MSCCL++'s JSON; returns the name
    and the collective. Raises ValueError for what is wrong with it, with the place."""
    return mscclpp.register(text) if text.lstrip().startswith("{") else msccl.register(text)
