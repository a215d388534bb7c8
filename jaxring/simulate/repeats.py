"""A collective made several times, one after another, as a benchmark's loop does: who has ended which round."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class Rounds:
    """``ranks``: of each lane. ``memory``: the ranks that address each other's memory, by domain.

    A rank begins the next round when all its lanes have ended one; ranks of a domain in ``memory`` begin it together.
    ``ended``: when the last rank ended each of the rounds so far, in us.
    """

    def __init__(self, ranks: Sequence[int], memory: Mapping[int, Iterable[int]]) -> None:
        team_of = {rank: -1 - domain for domain, members in memory.items() for rank in members}
        self._team = [team_of.get(rank, rank) for rank in ranks]
        self._lanes: dict[int, list[int]] = {}
        for lane, team in enumerate(self._team):
            self._lanes.setdefault(team, []).append(lane)
        self._busy = {team: len(lanes) for team, lanes in self._lanes.items()}
        self._round = dict.fromkeys(self._lanes, 0)
        self.ended: list[float] = []

    def end(self, lane: int, now: float) -> Sequence[int]:
        """The lane has ended a round. Returns the lanes that begin the next one by that."""
        team = self._team[lane]
        self._busy[team] -= 1
        if self._busy[team]:
            return ()
        lanes = self._lanes[team]
        self._busy[team] = len(lanes)
        if self._round[team] == len(self.ended):
            self.ended.append(now)
        else:
            self.ended[self._round[team]] = now
        self._round[team] += 1
        return lanes
