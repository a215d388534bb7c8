"""Warns of processes that hold this one up, by what the heartbeats of those that it is connected with say."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

from jaxring._stragglers import KEPT, Arrival, Execution, Sample, find
from jaxring.plan import labels

if TYPE_CHECKING:
    from types import ModuleType

_EVERY_S = 2.0
# The same is said again after so long.
_AGAIN_S = 600.0
_SAMPLES = 256


class StragglerWatch:
    """Used by one thread. ``native``: the engine's module. ``process``: this one's index in its job, for good."""

    def __init__(self, native: ModuleType | Any, process: int) -> None:
        self._native = native
        self._own = f"process {process}"
        self._looked = 0.0
        self._executions: collections.OrderedDict[tuple[int, int], tuple[str, dict[str, Arrival]]] = (
            collections.OrderedDict()
        )
        self._samples: dict[str, collections.deque[Sample]] = collections.defaultdict(
            lambda: collections.deque(maxlen=_SAMPLES)
        )
        self._told: dict[tuple[str, str], float] = {}

    def look(self, now: float) -> list[str]:
        """Warnings about processes that hold others up, at most every two seconds. ``now``: time.monotonic()."""
        if now - self._looked < _EVERY_S:
            return []
        self._looked = now
        if not self._take():
            return []
        known = [Execution(call, arrivals) for call, arrivals in self._executions.values()]
        known.sort(key=lambda each: each.arrivals[self._own].launched)
        found = find(known, {name: list(of_it) for name, of_it in self._samples.items()})
        said = []
        for each in found:
            last = self._told.get((each.process, each.cause))
            # Each process says it of the others: the one that is late learns it from them.
            if each.process == self._own or (last is not None and now - last < _AGAIN_S):
                continue
            self._told[each.process, each.cause] = now
            said.append(f"{each} JAXRING_STALL_WARNING=0 turns this off.")
        return said

    def _take(self) -> bool:
        """Adds what has arrived since the last look; whether that is anything."""
        own, *peers = self._native.take_arrivals() or [None]
        if own is None or not peers:
            return False
        for sample in own.samples:
            self._add(self._own, sample, 0)
        found = False
        for peer in peers:
            if peer.error_ns < 0:
                continue
            name = f"process {peer.process}"
            for sample in peer.samples:
                self._add(name, sample, peer.offset_ns)
            for launch in peer.shared_launches:
                found = True
                self._share(name, launch, peer.offset_ns, peer.error_ns)
        while len(self._executions) > KEPT:
            self._executions.popitem(last=False)
        return found

    def _add(self, name: str, sample: Any, offset: int) -> None:
        self._samples[name].append(
            Sample(
                sample.at_ns - offset,
                sample.cpu_ns,
                sample.delayed_ns,
                sample.link_peer,
                sample.link_bytes,
                sample.link_ns,
                sample.resumable,
                sample.detours,
            )
        )

    def _share(self, name: str, launch: Any, offset: int, error: int) -> None:
        key = (launch.theirs.key, launch.theirs.sequence)
        if key not in self._executions:
            record = self._native.record(launch.number)
            if record is None or not labels.synchronises(record.label):
                return
            own = Arrival(launch.own.launched_ns, launch.own.idle_ns)
            self._executions[key] = (record.what, {self._own: own})
        theirs = launch.theirs
        self._executions[key][1][name] = Arrival(theirs.launched_ns - offset, theirs.idle_ns, error)
