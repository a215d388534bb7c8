"""Names that a setting allows: some of them, all but some, or some more than without it."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Selection:
    """``only`` these names, or all ``but`` those; all empty: everything. At most one of the two is given.

    ``also``: names that may be chosen though they are not chosen unasked; not together with ``only``.
    """

    only: tuple[str, ...] = ()
    but: tuple[str, ...] = ()
    also: tuple[str, ...] = ()

    def __str__(self) -> str:
        """As it is written in a setting."""
        more = "+" + ",".join(self.also) if self.also else ""
        return ("^" + ",".join(self.but) if self.but else ",".join(self.only)) + more

    def __bool__(self) -> bool:
        """Whether it changes anything."""
        return bool(self.only or self.but or self.also)

    def filled(self, other: Selection) -> Selection:
        """What ``other`` says added to it, where it says nothing itself."""
        if self.only:
            return self
        if other.only:
            return Selection(only=(*(n for n in other.only if n not in (*self.but, *self.also)), *self.also))
        return Selection(
            but=(*self.but, *(n for n in other.but if n not in (*self.but, *self.also))),
            also=(*self.also, *(n for n in other.also if n not in (*self.but, *self.also))),
        )


EVERYTHING = Selection()
