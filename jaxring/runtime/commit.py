"""One decision of all members on each step: whether its results count.

Each process publishes its vote, and the first process that proposes a decision sets it in the store, for good. So there
is one decision, whichever process is lost meanwhile. The first member waits for the votes, the others for the decision;
where that takes long each of them looks at what is there itself, and proposes what follows from it. Keys, below
`jaxring/commit/E/N` for the Nth step of epoch E: `vote/P`, why process P refuses (empty: it does not); `decision`, why
the step does not count (empty: it counts).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from jaxring.errors import JaxringError, JoinError
from jaxring.world import wire
from jaxring.world.membership import named
from jaxring.world.store import propose

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jaxring.world.membership import Membership
    from jaxring.world.store import Store

_MAX_BYTES = 1 << 16
_MAX_TEXT = 1 << 10
# How long a process waits before it looks itself for votes that are missing.
_SLICE_S = 0.2


class Commits:
    """This process's part in the decisions of one epoch. Not for several threads at once."""

    def __init__(self, store: Store, process: int, token: str, membership: Membership) -> None:
        """``token`` names this start of the process. JaxringError where another start of it takes part already."""
        if (
            membership.epoch == 0
            and propose(store, f"jaxring/commit/start/{process}", token.encode()) != token.encode()
        ):
            raise JaxringError(
                f"jaxring.commit(): process {process} has been started again. Call jaxring.rebuild() before."
            )
        self.store, self.membership = store, membership
        self._process = process
        self._step = 0
        self._kept: list[int] = []  # steps whose keys are still in the store

    def decide(
        self, refusal: str, timeout_s: float, ended: Callable[[], Iterable[int]], halted: Callable[[], str]
    ) -> str:
        """Votes on the next step, and returns why it does not count, or "" where it counts: the same in each process.

        ``refusal`` is why this process refuses, or "". ``ended`` lists the processes that have ended, as far as this
        one knows, and ``halted`` says why the job has been ended, or "". JoinError where the store is lost.
        """
        members, step = self.membership.processes, self._step
        self._step += 1
        self._kept.append(step)
        self.store.set(f"{self._folder(step)}/vote/{self._process}", _encode(refusal))
        why = self._propose(step, refusal) if refusal else self._await(step, timeout_s, ended, halted)
        if not why and self._process == members[0]:
            # All have voted on this step, so all have read the decisions on those before.
            for old in self._kept[:-1]:
                self.store.delete(self._folder(old))
            self._kept = [step]
        return why

    def _await(self, step: int, timeout_s: float, ended: Callable[[], Iterable[int]], halted: Callable[[], str]) -> str:
        members, folder = self.membership.processes, self._folder(step)
        counts = self._process == members[0]
        awaited = [f"{folder}/vote/{p}" for p in members[1:]] if counts else [f"{folder}/decision"]
        deadline = time.monotonic() + timeout_s
        found = ""
        while awaited and not found:
            until = min(deadline, time.monotonic() + _SLICE_S)
            try:
                found = _why(self.store.get(awaited[0], max(0.0, until - time.monotonic())))
                del awaited[0]
                continue
            except JoinError:
                if time.monotonic() < until:
                    raise  # the store is lost
            late = f" within {timeout_s:g} s" if time.monotonic() >= deadline else ""
            # `ended` and `halted` are read before the votes: the vote of a process that has ended since then counts.
            lost, trouble = set(ended()), halted()
            there = {key: _why(raw) for key, raw in self.store.list(f"{folder}/").items()}
            if "decision" in there:
                return there["decision"]
            votes = {int(key.removeprefix("vote/")): why for key, why in there.items()}
            outcome = _outcome(members, votes, lost, trouble, late)
            if outcome is not None:
                return self._propose(step, outcome)
        return self._propose(step, found) if counts else found

    def _propose(self, step: int, why: str) -> str:
        return _why(propose(self.store, f"{self._folder(step)}/decision", _encode(why)))

    def _folder(self, step: int) -> str:
        return f"jaxring/commit/{self.membership.epoch}/{step}"


def _outcome(members: tuple[int, ...], votes: dict[int, str], lost: set[int], trouble: str, late: str) -> str | None:
    """What follows from these votes, or None while others may come. ``late`` is the time that has passed, or ""."""
    refusals = [why for why in votes.values() if why]
    if refusals:
        return refusals[0]
    missing = [p for p in members if p not in votes]
    if not missing:
        return ""
    for p in missing:
        if p in lost:
            return f"process {p} has ended before it voted"
    if trouble:
        return trouble
    return f"{named(missing)} did not call jaxring.commit(){late}" if late else None


def _encode(why: str) -> bytes:
    # A user's reason for jaxring.abort() may have several lines.
    return wire.encode({"why": " ".join(why.split())[:_MAX_TEXT]})


def _why(raw: bytes) -> str:
    try:
        return wire.text(wire.decode(raw, _MAX_BYTES)["why"], "why", _MAX_TEXT)
    except (ValueError, KeyError, TypeError) as error:
        raise JoinError(
            f"A vote on a step cannot be read ({error}). Have all processes use the same version of jaxring."
        ) from error
