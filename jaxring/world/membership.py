"""Which processes take part, and how they agree on it again after processes were lost or have come back.

Each agreement begins an epoch of the job. The first process that proposes a decision sets it in the store, for good. So
there is one decision, whatever the processes know of each other, and a process that was late or left out reads it
there. Where some call rebuild() and others shrink(), the decision is an error without members; a process that had not
called by then gets that error from its next call. Keys: `jaxring/ready/G/P`: process P wants epoch G;
`jaxring/decision/G`: the members of epoch G, or the error.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from typing import TYPE_CHECKING, Any

from jaxring.errors import JoinError
from jaxring.world import wire
from jaxring.world.identity import MAX_PROCESSES
from jaxring.world.store import propose

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from jaxring.world.store import Store

_DECISIONS = "jaxring/decision/"
_MAX_BYTES = 1 << 24
_POLL_S = 0.02
_SLICE_S = 0.3
# A report that a process has ended may be wrong: for so long the process may still call.
_GRACE_S = 0.3
# How much longer than its own timeout a process waits for the deciding process, whose timeout began later.
_SLACK_S = 10.0
REBUILD, SHRINK, SUSPEND = "rebuild", "shrink", "suspend"
# As SHRINK, before the members begin another job of jax.distributed together with new processes.
RESIZE = "resize"


@dataclasses.dataclass(frozen=True)
class Membership:
    """The members of a job: ``processes``, out of those numbered below ``count``.

    ``epoch`` is the number of agreements so far; a job begins with epoch 0.
    """

    epoch: int
    count: int
    processes: tuple[int, ...]

    @property
    def generation(self) -> int:
        """The former name of ``epoch``, which it keeps for one release."""
        warnings.warn("Membership.generation is deprecated: use Membership.epoch.", DeprecationWarning, stacklevel=2)
        return self.epoch

    @property
    def lost(self) -> tuple[int, ...]:
        """The processes that are not members."""
        return tuple(p for p in range(self.count) if p not in self.processes)


def first(count: int) -> Membership:
    """The members of a job at its beginning: all processes."""
    return Membership(0, count, tuple(range(count)))


def agree(
    store: Store,
    process: int,
    token: str,
    fresh: bool,
    current: Membership,
    kind: str,
    timeout_s: float,
    gone: Callable[[], list[int]],
) -> Membership:
    """The members of the next epoch, the same in each of them: all processes (REBUILD), those that call (SHRINK,
    RESIZE), or the same as now (SUSPEND).

    ``token`` names this start of the process; ``fresh`` says that it has not taken part before. ``gone`` lists the
    processes that have ended, as far as this one knows. Raises JoinError where a process did not call or called for the
    other kind, or where this one was left out.
    """
    began = time.monotonic()
    while True:
        epoch = current.epoch + 1
        decided = _decisions(store)
        while epoch in decided and not _holds(decided[epoch], process, token):
            if kind != REBUILD and decided[epoch]["members"]:
                raise _left_out(process, epoch, decided[epoch])
            if decided[epoch]["differ"] and not fresh and process not in _ready(store, epoch):
                break
            epoch += 1
        decision = decided.get(epoch)
        # Written also where the decision is made already: a process that has called in an epoch gets its error once.
        wish = {"kind": kind, "token": token, "fresh": fresh, "gone": gone()}
        store.replace(f"jaxring/ready/{epoch}/{process}", wire.encode(wish))
        if decision is None:
            decision = _await(store, process, epoch, current, kind, began, timeout_s, gone)
        if _holds(decision, process, token):
            return Membership(epoch, current.count, tuple(sorted(decision["members"])))
        if decision["error"]:
            raise JoinError(decision["error"])
        if kind != REBUILD:
            raise _left_out(process, epoch, decision)
        # The others have called shrink(). This process wants to come back, so it waits for the next epoch.


def waiting(store: Store, current: Membership) -> tuple[int, ...]:
    """Processes that are no members and wait in `agree` to come back."""
    decided = _decisions(store)
    epoch = current.epoch + 1
    while epoch in decided:
        epoch += 1
    return tuple(sorted(p for p in _ready(store, epoch) if p not in current.processes))


def returned(store: Store, agreed: Membership) -> tuple[int, ...]:
    """The members that had not taken part before they called for this epoch."""
    wishes = _ready(store, agreed.epoch)
    return tuple(p for p in agreed.processes if p in wishes and wishes[p]["fresh"])


def gone_on(store: Store, process: int, agreed: Membership) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The other members that have called again since: those that have given up this epoch, or have all entered it, and
    those that have ended and were started again."""
    wishes, decision = _ready(store, agreed.epoch + 1), _decisions(store).get(agreed.epoch)
    again = [p for p in agreed.processes if p != process and p in wishes]
    started = tuple(p for p in again if decision is not None and not _holds(decision, p, wishes[p]["token"]))
    return tuple(p for p in again if p not in started), started


def has_begun(store: Store, process: int) -> bool:
    """Whether the job has had another start of this process, or has been rebuilt already."""
    return bool(store.list(_DECISIONS)) or str(process) in store.list("jaxring/world/0/process/")


def _await(
    store: Store,
    process: int,
    epoch: int,
    current: Membership,
    kind: str,
    began: float,
    timeout_s: float,
    gone: Callable[[], list[int]],
) -> dict[str, Any]:
    key = f"{_DECISIONS}{epoch}"
    possible = range(current.count) if kind == REBUILD else current.processes
    since: dict[int, float] = {}
    while True:
        now = time.monotonic()
        for p in gone():
            since.setdefault(p, now)
        leads = process == min(p for p in possible if p not in since or p == process)
        if not leads:
            try:
                return _decision(store.get(key, _SLICE_S))
            except JoinError as error:
                if now - began > timeout_s + _SLACK_S:
                    raise JoinError(f"No process has decided on the members of epoch {epoch}: {error}") from error
                continue
        late = now - began > timeout_s
        outcome = _outcome(kind, current, _ready(store, epoch), since, now, late)
        if outcome is not None:
            return _decision(propose(store, key, wire.encode(outcome)))
        found = _decisions(store).get(epoch)
        if found is not None:
            return found
        time.sleep(_POLL_S)


def _outcome(
    kind: str, current: Membership, ready: dict[int, dict[str, Any]], since: dict[int, float], now: float, late: bool
) -> dict[str, Any] | None:
    """The deciding process's decision, or None while it has to wait."""
    others = sorted(p for p, wish in ready.items() if wish["kind"] != kind and not wish["fresh"])
    if others:
        other = ready[others[0]]["kind"]
        return _failed(
            f"{named(others).capitalize()} called {call(other)} where others called {call(kind)}: all must call one.",
            True,
        )
    if kind in (REBUILD, SUSPEND):
        wanted = range(current.count) if kind == REBUILD else current.processes
        missing = [p for p in wanted if p not in ready]
        if missing and late:
            return _failed(
                f"{named(missing).capitalize()} did not call {call(kind)}. Start them again, or go on without them: "
                "jaxring.shrink()."
            )
        return None if missing else _members({p: ready[p] for p in wanted})
    for wish in ready.values():
        for p in wish["gone"]:
            since.setdefault(p, now)
    coming = {p: wish for p, wish in ready.items() if p in current.processes and wish["kind"] == kind}
    # Who has called for the other kind was started again (others fail above), and waits for the next epoch.
    expected = [p for p in current.processes if p not in ready and now - since.get(p, now) <= _GRACE_S]
    return None if expected and not late else _members(coming)


def call(kind: str) -> str:
    """What a process calls for a change of that kind."""
    return "rebuild(size=...)" if kind == RESIZE else f"{kind}()"


def _left_out(process: int, epoch: int, decision: dict[str, Any]) -> JoinError:
    return JoinError(
        f"The others have gone on without process {process} (epoch {epoch}: {named(decision['members'])}). Call "
        "jaxring.rebuild() to come back."
    )


def _members(coming: dict[int, dict[str, Any]]) -> dict[str, Any]:
    return {"members": {str(p): wish["token"] for p, wish in coming.items()}, "error": "", "differ": False}


def _failed(text: str, differ: bool = False) -> dict[str, Any]:
    return {"members": {}, "error": text, "differ": differ}


def _holds(decision: dict[str, Any], process: int, token: str) -> bool:
    return bool(decision["members"].get(process) == token)


def named(processes: Collection[int]) -> str:
    """Such as "process 1", "processes 1, 2"."""
    return f"process{'es' * (len(processes) != 1)} {', '.join(map(str, sorted(processes)))}"


def _decisions(store: Store) -> dict[int, dict[str, Any]]:
    return {int(key): _decision(value) for key, value in store.list(_DECISIONS).items()}


def _decision(raw: bytes) -> dict[str, Any]:
    try:
        value = wire.decode(raw, _MAX_BYTES)
        members = {
            wire.integer(int(p), "process", 0, MAX_PROCESSES): wire.text(token, "token", 64)
            for p, token in value["members"].items()
        }
        error = wire.text(value["error"], "error", 1 << 16)
        return {"members": members, "error": error, "differ": value["differ"] is True}
    except (ValueError, KeyError, AttributeError) as error:
        raise JoinError(
            f"A decision on the members cannot be read ({error}). Have all processes use the same version of jaxring."
        ) from error


def _ready(store: Store, epoch: int) -> dict[int, dict[str, Any]]:
    ready = {}
    for key, raw in store.list(f"jaxring/ready/{epoch}/").items():
        try:
            wish = wire.decode(raw, _MAX_BYTES)
            ready[int(key)] = {
                "kind": wire.text(wish["kind"], "kind", 16),
                "token": wire.text(wish["token"], "token", 64),
                "fresh": wish["fresh"] is True,
                "gone": [wire.integer(p, "process", 0, MAX_PROCESSES) for p in wish["gone"]],
            }
        except (ValueError, KeyError, TypeError) as error:
            raise JoinError(
                f"The request of process {key} cannot be read ({error}). Have all processes use the same version of "
                "jaxring."
            ) from error
    return ready
