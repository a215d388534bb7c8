"""Checks that the processes of a collective run the same program, when the collective is first used.

When a process plans a call, it sends a control message to the processes that the plan links it with: the call's key and
a digest of the list of its program's collectives. The call's first operations wait in the engine (`ProgramLatch`) until
the peers have sent the same. There are two errors, which name the first difference of the two lists:

* The call is in both programs, but the rest of the programs differs.
* Two processes wait for each other, each in a program that the other has never lowered. XLA begins a program over
  several devices only when the previous one has ended, also where each process has one device. So neither process can
  ever begin the other's program. Threads may launch programs in any order. This is therefore an error only for programs
  of the main threads, and only after CROSSED_S; other operations reach their deadline.

Operations fail only when both sides have reported the difference. Lists are not compared where a process has none: a
deserialised program has no list, only calls.

A process that cannot connect to one that only receives from it can reach it only through the store: it writes there
that it has no plan for the call.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import json
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol

from jaxring.errors import JoinError
from jaxring.runtime import programs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jaxring.runtime.programs import Listing
    from jaxring.world.store import Store

logger = logging.getLogger("jaxring.runtime")

# How long two processes wait for each other in programs that differ before that is an error.
CROSSED_S = 2.0
# How long a process's report of a difference is valid. The process repeats it.
_OBJECTION_S = 5.0
_INVALID_ARGUMENT, _UNAVAILABLE = 3, 14
# How long a call waits for another process's message before it reads the store, and between two reads.
_READ_EVERY_S = 5.0
_FAILED = "jaxring/failed/"
_STORE_S = 5.0
_MOST_DIGESTS = 8
_MOST_WHAT = 500  # characters, of four bytes at most: a control message has room for 3072 bytes


class Native(Protocol):
    """The engine's functions that this module uses."""

    def send_control_message(self, process: int, text: str) -> None: ...
    def in_flight(self, key: int) -> bool: ...
    def fail_plan(self, key: int, code: int, message: str) -> None: ...


class ProgramLatch(Protocol):
    """Holds the first operations of one plan until enough processes are confirmed."""

    def confirm(self, process: int) -> None: ...


@dataclasses.dataclass
class Use:
    """A call that this process plans: the ``listings`` of its programs, latest first; a rank's name of each process."""

    key: int
    what: str
    listings: list[Listing]
    names: Mapping[int, str]
    latches: list[ProgramLatch] = dataclasses.field(default_factory=list)
    missing: set[int] = dataclasses.field(default_factory=set)
    told: set[int] = dataclasses.field(default_factory=set)
    since: float = 0.0

    @functools.cached_property
    def digests(self) -> frozenset[str]:
        found = frozenset(each.digest for each in self.listings)
        return found if len(found) <= _MOST_DIGESTS else frozenset()

    @property
    def on_main_thread(self) -> bool:
        return all(each.on_main_thread for each in self.listings)


@dataclasses.dataclass(frozen=True)
class _Theirs:
    """A call that another process has planned. ``digests`` are those of its programs, the latest first."""

    key: int
    digests: tuple[str, ...]
    on_main_thread: bool
    what: str
    since: float

    def agrees(self, use: Use) -> bool:
        if self.key != use.key:
            return False
        return not self.digests or not use.digests or not use.digests.isdisjoint(self.digests)


class Agreement:
    """What this process and the others have told each other of their programs.

    ``store`` is used where programs differ, and where another process's message is late.
    """

    def __init__(
        self, native: Native, store: Callable[[], Store], process: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._native, self._store, self._process, self._clock = native, store, process, clock
        self._lock = threading.Lock()
        self._waiting: dict[int, Use] = {}
        self._planned: set[int] = set()
        # The processes that have sent the same for a call. Where only this process compiles a program again, it plans
        # the call again, and the others do not repeat their messages.
        self._agreed: dict[int, set[int]] = collections.defaultdict(set)
        self._received: dict[int, dict[int, _Theirs]] = {}  # calls that this process has not planned, by process
        # When a process last reported that programs differ, with its call and ours.
        self._objecting: dict[int, tuple[float, int, int]] = {}
        self._published: set[str] = set()
        self._unplanned: dict[int, int] = {}  # how often a call of this process got no plan
        self._read_at = clock()
        self._found: dict[int, dict[str, bytes]] = {}  # what the store held for each call

    def begin(self, use: Use, processes: set[int], latch: Callable[[list[int]], ProgramLatch] | None) -> None:
        """A call is about to run for the first time; this process is linked with ``processes`` for it.

        ``latch`` makes the latch that holds it back until these processes have sent the same.
        """
        with self._lock:
            self._planned.add(use.key)
            use.since = self._clock()
            for process in use.names:
                theirs = self._received.get(process, {}).get(use.key)
                if theirs is not None and theirs.agrees(use):
                    del self._received[process][use.key]
                    self._agreed[use.key].add(process)
            use.missing = processes - self._agreed[use.key]
            if use.missing:
                former = self._waiting.get(use.key)
                if former is not None:  # of another site of this call
                    use.latches += former.latches
                self._waiting[use.key] = use
                if latch is not None:
                    use.latches.append(latch(sorted(use.missing)))
            for process in processes:
                self._tell(process, use)

    def failed(self, key: int, why: str) -> None:
        """This process cannot reach a peer, so it has no plan for the call. The store tells the peers."""
        self._unplanned[key] = times = self._unplanned.get(key, 0) + 1
        self._report_unplanned(key, {"times": times, "why": why})

    def planned(self, key: int) -> None:
        """This process has a plan for the call now."""
        if key in self._unplanned:
            self._report_unplanned(key, {"times": self._unplanned[key], "why": ""})

    def _report_unplanned(self, key: int, report: dict[str, Any]) -> None:
        with contextlib.suppress(JoinError):  # without the report, the peers' operations end at their deadlines
            self._store().replace(f"{_FAILED}{key}/{self._process}", json.dumps(report).encode())

    def _read_reports(self, now: float) -> None:
        """Fails the calls in flight for which another process has reported that it has no plan."""
        with self._lock:
            late = [use.key for use in self._waiting.values() if use.missing and now - use.since > _READ_EVERY_S]
        late = [key for key in late if self._native.in_flight(key)]
        if not late or now - self._read_at < _READ_EVERY_S:
            return
        self._read_at = now
        for key in late:
            with contextlib.suppress(JoinError, ValueError, KeyError):
                found = self._store().list(f"{_FAILED}{key}/")
                before = self._found.get(key, {})
                self._found[key] = found
                # A report counts once: the process tries again at the call's next execution.
                why = [json.loads(report)["why"] for process, report in found.items() if report != before.get(process)]
                if text := next(filter(None, why), None):
                    self._native.fail_plan(key, _UNAVAILABLE, str(text))

    def receive(self, process: int, text: str) -> None:
        """Takes in a control message of ``process``."""
        try:
            said = json.loads(text)
            if "differs" in said:
                objection = (self._clock(), int(said["differs"]), int(said["from"]))
                with self._lock:
                    self._objecting[process] = objection
                return
            digests = tuple(str(digest) for digest in said["digests"])
            theirs = _Theirs(int(said["key"]), digests, bool(said["main"]), str(said["what"]), self._clock())
        except (ValueError, TypeError, KeyError) as error:
            logger.warning("process %d sent a control message that cannot be read: %s", process, error)
            return
        with self._lock:
            use = self._waiting.get(theirs.key)
            if use is not None and theirs.agrees(use):
                use.missing.discard(process)
                self._agreed[use.key].add(process)
                for latch in use.latches:
                    latch.confirm(process)
                if not use.missing:
                    del self._waiting[use.key]
                return
            if use is None and theirs.key in self._planned:
                return  # every process that this call waited for has agreed
            self._received.setdefault(process, {})[theirs.key] = theirs
            for use in self._waiting.values():
                # That process may wait for this one without knowing which calls this one is in.
                if process in use.names:
                    self._tell(process, use)

    def settle(self) -> None:
        """Finds programs that differ and fails their operations. The planning thread calls this regularly."""
        now = self._clock()
        self._read_reports(now)
        with self._lock:
            found = [(process, *pair) for process in self._received if (pair := self._difference(process, now))]
        for process, use, theirs in found:
            self._publish(use)
            self._native.send_control_message(process, json.dumps({"differs": str(use.key), "from": str(theirs.key)}))
            with self._lock:
                said_at, key, ours = self._objecting.get(process, (0.0, 0, 0))
                objected = self._received[process].get(key)
                same = {other.key for other in self._waiting.values() if other.digests & use.digests}
            if objected is None or ours not in same or now - said_at > _OBJECTION_S:
                continue
            if key != ours and not self._may_differ(objected, now):
                continue
            text = self._explain(process, use, objected)
            logger.error("%s", text)
            for each in same:
                self._native.fail_plan(each, _INVALID_ARGUMENT, text)

    def _difference(self, process: int, now: float) -> tuple[Use, _Theirs] | None:
        """A call of each side that cannot be in the same program, if this process waits for the other one."""
        received = self._received[process]
        for key in received.keys() & self._waiting.keys():
            if process in self._waiting[key].names and self._native.in_flight(key):
                return self._waiting[key], received[key]
        for use in self._waiting.values():
            if not (use.digests and use.on_main_thread and process in use.names and now - use.since > CROSSED_S):
                continue
            if not self._native.in_flight(use.key):
                continue
            # The latest one, because calls that failed earlier are still listed.
            theirs = next((each for each in reversed(received.values()) if self._may_differ(each, now)), None)
            return None if theirs is None else (use, theirs)
        return None

    @staticmethod
    def _may_differ(theirs: _Theirs, now: float) -> bool:
        crossed = bool(theirs.digests) and theirs.on_main_thread and now - theirs.since > CROSSED_S
        return crossed and not programs.known(frozenset(theirs.digests))

    def _tell(self, process: int, use: Use) -> None:
        if process in use.told:
            return
        use.told.add(process)
        told = {
            "key": str(use.key),
            "digests": [each.digest for each in use.listings] if use.digests else [],
            "main": use.on_main_thread,
            "what": use.what[:_MOST_WHAT],
        }
        self._native.send_control_message(process, json.dumps(told, ensure_ascii=False))

    def _publish(self, use: Use) -> None:
        for each in use.listings:
            if each.digest in self._published:
                continue
            self._published.add(each.digest)
            text = json.dumps({"name": each.name, "entries": each.entries})
            with contextlib.suppress(JoinError):
                self._store().set(f"jaxring/programs/{self._process}/{each.digest}", text.encode())

    def _explain(self, process: int, use: Use, theirs: _Theirs) -> str:
        head = f"{use.what}: the processes run different programs. "
        hint = " Have all processes launch the same programs, with the same shapes, in the same order."
        own, other = use.names[self._process], use.names[process]
        try:
            raw = self._store().get(f"jaxring/programs/{process}/{theirs.digests[0]}", _STORE_S)
            there: dict[str, Any] = json.loads(raw)
        except (JoinError, ValueError):
            return f"{head}{own} is in {use.what}, {other} in {theirs.what}.{hint}"
        here = use.listings[0]
        ours, others = here.entries, there["entries"]
        first = next((i for i, (a, b) in enumerate(zip(ours, others, strict=False)) if a != b), None)
        if first is None:
            first = min(len(ours), len(others))

        def side(who: str, name: str, entries: list[str]) -> str:
            if first >= len(entries):
                return f"{who} runs '{name}', which has no more than {len(entries)}"
            return f"{who} runs '{name}', where it is {entries[first]}"

        return (
            f"{head}They differ from collective {first + 1} on: {side(own, here.name, ours)}; "
            f"{side(other, there['name'], others)}.{hint}"
        )
