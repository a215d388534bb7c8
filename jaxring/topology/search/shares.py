"""Shares of a whole in equal parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def apportion(shares: Sequence[float], count: int) -> list[int]:
    """How many of `count` equal parts each share gets, by largest remainder."""
    total = sum(shares)
    exact = [share * count / total for share in shares]
    parts = [int(each + 1e-6) for each in exact]
    behind = sorted(range(len(exact)), key=lambda i: parts[i] - exact[i])
    for index in behind[: count - sum(parts)]:
        parts[index] += 1
    return parts
