"""Names that a setting allows: some of them, or all but some."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Selection:
    """``only`` these names, or all ``but`` those; both empty: everything. At most one of the two is given."""

    only: tuple[str, ...] = ()
    but: tuple[str, ...] = ()

    def __str__(self) -> str:
        """As it is written in a setting."""
        return "^" + ",".join(self.but) if self.but else ",".join(self.only)

    def __bool__(self) -> bool:
        """Whether it restricts anything."""
        return bool(self.only or self.but)


EVERYTHING = Selection()
