"""Token buckets: what a shaped link that was idle passes at once, before its rate applies."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Buckets:
    """The tokens of the links that have a bucket. Bytes and microseconds.

    A bucket fills at the link's rate while nothing crosses the link. What crosses it then takes tokens first, without
    time, and the rest goes at the rate, at which new tokens are used up as they come.
    """

    def __init__(self, bursts: Mapping[int, float], speeds: Sequence[float]) -> None:
        self._burst, self._speed = bursts, speeds
        self._level = dict(bursts)
        self._since = dict.fromkeys(bursts, 0.0)
        self._crossing = dict.fromkeys(bursts, 0)

    def begin(self, link: int, amount: float, now: float) -> float:
        """What is left of ``amount`` after the tokens that there are."""
        if not self._crossing[link]:
            filled = self._level[link] + (now - self._since[link]) * self._speed[link]
            self._level[link] = min(self._burst[link], filled)
        self._crossing[link] += 1
        taken = min(self._level[link], amount)
        self._level[link] -= taken
        return amount - taken

    def end(self, link: int, now: float) -> None:
        """What `begin` was called for has crossed the link."""
        self._crossing[link] -= 1
        self._since[link] = now
