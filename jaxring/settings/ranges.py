"""A range of numbers, either end of which may be left open."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Range:
    """From ``low`` to ``high``, both included; None: open."""

    low: int | None = None
    high: int | None = None

    def __str__(self) -> str:
        """As it is written in a setting."""
        return "-".join("" if end is None else str(end) for end in (self.low, self.high))

    def filled(self, other: Range) -> Range:
        """With ``other``'s ends where this one is open."""
        return Range(other.low if self.low is None else self.low, other.high if self.high is None else self.high)
