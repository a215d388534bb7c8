"""How many strangers a process serves, so that who floods its door takes next to nothing of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# At once: as many as a large job's processes may send before they are expected, a scanner or two among them.
BURST = 1024
# A second, after that. Each costs some 0.2 ms of the interpreter, so this is two percent of it.
RATE = 100
# They are let in by so many at a time: waking a thread costs more than serving one of them.
LUMP = 10


class Allowance:
    """Spent by those who come, given back for those who turn out to be of the job, refilled by time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left = float(BURST)
        self._at = clock()

    def spend(self) -> None:
        """One more has come, whether there was anything left or not."""
        self._refill()
        self._left = max(0.0, self._left - 1)

    def give_back(self) -> None:
        """One was no stranger."""
        self._left = min(float(BURST), self._left + 1)

    def left(self) -> int:
        """How many may come now."""
        self._refill()
        return int(self._left)

    def wait(self) -> float:
        """Seconds until there is enough to go on, where nothing is left."""
        self._refill()
        return max(0.0, (LUMP - self._left) / RATE)

    def _refill(self) -> None:
        now = self._clock()
        self._left = min(float(BURST), self._left + (now - self._at) * RATE)
        self._at = now
