"""Limits how many unauthenticated connections a process accepts, so that a flood of them costs it next to nothing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# Accepted at once: as many as the processes of a large job may send before they are expected, plus a port scanner.
BURST = 1024
# Accepted per second after that. Each costs some 0.2 ms of the interpreter's time, so this is two percent of it.
RATE = 100
# After it is used up, the allowance is refilled to this before the next is accepted: waking the thread costs more than
# serving one connection.
BURST_REFILL = 10


class Allowance:
    """A token bucket: each connection takes a token, one that authenticates gives it back, and time refills it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left = float(BURST)
        self._at = clock()

    def spend(self) -> None:
        """Take a token for a connection that was accepted, whether one was left or not."""
        self._refill()
        self._left = max(0.0, self._left - 1)

    def give_back(self) -> None:
        """Return the token of a connection that has authenticated."""
        self._left = min(float(BURST), self._left + 1)

    def left(self) -> int:
        """How many may be accepted now."""
        self._refill()
        return int(self._left)

    def wait(self) -> float:
        """Seconds until BURST_REFILL tokens are there, for when none is left."""
        self._refill()
        return max(0.0, (BURST_REFILL - self._left) / RATE)

    def _refill(self) -> None:
        now = self._clock()
        self._left = min(float(BURST), self._left + (now - self._at) * RATE)
        self._at = now
