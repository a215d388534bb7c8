"""The events of a simulation that are due, by their moment: many ranks do the same at the same one."""

from __future__ import annotations

import heapq

# A kind, and two numbers that mean what the kind says.
Event = tuple[int, int, int]


class Events(dict[float, list[Event]]):
    """The events of each moment in the order in which they arose; a moment that has none yet begins a list.

    ``moments``: all that have a list, as a heap.
    """

    def __init__(self) -> None:
        super().__init__()
        self.moments: list[float] = []

    def __missing__(self, moment: float) -> list[Event]:
        heapq.heappush(self.moments, moment)
        events = self[moment] = []
        return events

    def next_moment(self) -> float:
        """Takes the earliest moment off the heap; its list stays."""
        return heapq.heappop(self.moments)
