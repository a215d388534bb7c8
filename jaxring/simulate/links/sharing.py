"""Flows over links, and the max-min fair rate of each.

A rate changes only where flows begin or end on a link, so only the flows that are joined with those by shared links are
computed anew, once for all changes at one moment. A flow alone on its links needs no computation.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

Route = tuple[int, ...]


class Flows:
    """The active flows. Times in microseconds, amounts in bytes, speeds in bytes per microsecond.

    `begin` and `end` only note what changes; `settle` then gives the ends of all flows whose rates have changed.
    """

    def __init__(self, speeds: Sequence[float]) -> None:
        self.speed = list(speeds)
        self.on: list[dict[int, int]] = [{} for _ in speeds]  # flow -> how often its route takes the link
        self.route: list[Route] = []
        self.left: list[float] = []
        self.rate: list[float] = []
        self.since: list[float] = []
        self.version: list[int] = []  # counts the changes of rate, so that an outdated end is recognised
        self._free: list[int] = []
        self._changed: set[int] = set()  # links
        # Flows that have begun since `settle`: those that were alone on their links then, and the others.
        self._alone: list[int] = []
        self._beside: list[int] = []
        self._rate_alone: dict[Route, float] = {}

    @property
    def unsettled(self) -> bool:
        """Whether anything has changed since `settle`."""
        return bool(self._alone or self._beside or self._changed)

    def begin(self, route: Route, amount: float, now: float) -> int:
        """A new flow, without a rate until `settle`. ``route``: the links that can be bottlenecks."""
        if self._free:
            flow = self._free.pop()
            self.route[flow], self.left[flow], self.rate[flow], self.since[flow] = route, amount, 0.0, now
            self.version[flow] += 1
        else:
            flow = len(self.route)
            self.route.append(route)
            self.left.append(amount)
            self.rate.append(0.0)
            self.since.append(now)
            self.version.append(0)
        fresh = self._alone
        for link in route:
            sharing = self.on[link]
            if flow in sharing:
                sharing[flow] += 1
                continue
            if sharing:
                fresh = self._beside
            sharing[flow] = 1
        fresh.append(flow)
        return flow

    def end(self, flow: int) -> None:
        """The flow has moved all its bytes, or is given up."""
        for link in self.route[flow]:
            on = self.on[link]
            on.pop(flow, None)
            if on:
                self._changed.add(link)
        self.version[flow] += 1
        self._free.append(flow)

    def limit(self, link: int, speed: float) -> None:
        """The link has another speed from now on; 0: it is broken."""
        self.speed[link] = speed
        self._rate_alone.clear()
        if self.on[link]:
            self._changed.add(link)

    def settle(self, now: float) -> list[tuple[float, int]]:
        """(end, flow) for each flow whose rate has changed. A flow over a broken link has no end."""
        joined = set(self._beside)
        for link in self._changed:
            joined.update(self.on[link])
        shared: list[tuple[float, int]] = []
        settled: set[int] = set()
        while joined:
            flows = self._component(joined.pop())
            joined -= flows
            settled |= flows
            shared += self._share(flows, now)
        ends: list[tuple[float, int]] = []
        for flow in self._alone:
            if flow in settled:
                continue
            route = self.route[flow]
            rate = self._rate_alone.get(route)
            if rate is None:
                rate = self._rate_alone[route] = self._least(flow)
            self.rate[flow] = rate
            if rate > 0:
                ends.append((now + self.left[flow] / rate, flow))
        self._alone.clear()
        self._beside.clear()
        self._changed.clear()
        return ends + shared

    def _least(self, flow: int) -> float:
        """The rate of a flow that is alone on its links."""
        return min((self.speed[link] / self.on[link][flow] for link in self.route[flow]), default=math.inf)

    def _component(self, start: int) -> set[int]:
        flows, stack, links = {start}, [start], set[int]()
        while stack:
            for link in self.route[stack.pop()]:
                if link not in links:
                    links.add(link)
                    fresh = self.on[link].keys() - flows
                    flows |= fresh
                    stack += fresh
        return flows

    def _share(self, flows: set[int], now: float) -> list[tuple[float, int]]:
        """Progressive filling: the tightest link decides the rates of its flows, then the next one of the others."""
        room: dict[int, float] = {}
        count: dict[int, int] = {}
        for flow in flows:
            for link in self.route[flow]:
                room[link] = self.speed[link]
                count[link] = count.get(link, 0) + 1
        fair = {link: room[link] / count[link] for link in room}
        rates: dict[int, float] = {}
        while len(rates) < len(flows):
            least = min(fair.values())
            # All links as tight as the tightest one are decided at once, so that equal flows get equal rates.
            for link in [link for link, share in fair.items() if share <= least * (1 + 1e-12)]:
                for flow in self.on[link]:
                    if flow in rates:
                        continue
                    rates[flow] = least
                    for other in self.route[flow]:
                        room[other] -= least
                        count[other] -= 1
            fair = {link: max(0.0, room[link]) / count[link] for link in fair if count[link]}
        ends = []
        for flow, rate in rates.items():
            old = self.rate[flow]
            if rate == old:
                continue
            self.left[flow] = max(0.0, self.left[flow] - old * (now - self.since[flow]))
            self.since[flow], self.rate[flow] = now, rate
            self.version[flow] += 1
            if rate > 0:
                ends.append((now + self.left[flow] / rate, flow))
        return ends
