"""Which processes of a job are started again when they fail."""

from __future__ import annotations

import os
import time


class Restart:
    """How often processes that fail are started again, all but process 0, and how long after.

    Process 0 can wait for the end of all others: `read_end`, which it inherits, is at its end then.
    """

    def __init__(self, times: int, delay_s: float) -> None:
        self.times, self.delay_s = times, delay_s
        self.read_end, self._write_end = os.pipe()
        self.due: dict[int, float] = {}

    def would_take(self, rank: int) -> bool:
        """Whether the process would be started again if it failed now."""
        return rank != 0 and self.times > 0

    def takes(self, rank: int) -> bool:
        """Whether the failed process is started again; it is then in `due`."""
        if not self.would_take(rank):
            return False
        self.times -= 1
        self.due[rank] = time.monotonic() + self.delay_s
        return True

    def close(self) -> None:
        """Process 0 is the only one left: it waits no longer."""
        if self._write_end >= 0:
            os.close(self._write_end)
            self._write_end = -1
