"""The decisions made for each call site, and their reasons."""

from __future__ import annotations

import dataclasses
import json
import threading
import time

from jaxring.settings.sizes import shown

_lock = threading.Lock()
_decisions: list[Decision] = []
_notes: dict[str, int] = {}
# What has been noted since the process began, so that nobody is warned of it twice.
_noted: set[str] = set()


def called(collective: str, op: str | None, epilogue: str, compress: str = "") -> str:
    """A call in words, up to its dtype, such as "all_reduce(sum)" or "all_reduce(sum) with epilogue scale, of"."""
    what = f"{collective}({op})" if op else collective
    if compress:
        return f"{what} compressed to {compress}, of"
    return f"{what} with epilogue {epilogue}, of" if epilogue else what


@dataclasses.dataclass(frozen=True)
class Decision:
    """One plan: a call site's collective among one group of ranks.

    ``nbytes``: input bytes per rank. ``transports``: how this process's ranks reach the others of the group.
    ``candidates``: ("algorithm/protocol", us), cheapest first: predicted, or measured where all of them are.
    ``prediction``: what the chosen one is predicted to take, what limits it, and its share of the speed of light.
    ``order``: the order of hosts in its rings and where it is from, "" where that is the order of ranks.
    ``epilogue``: the functions that its schedule applies to complete values, "" where there are none.
    ``compress``: the format of its messages, "" where they hold values.
    ``planned_at``: when it was made, in seconds since 1970.
    """

    collective: str
    op: str | None
    dtype: str
    nbytes: int
    axes: str
    site: str
    ranks: int
    processes: int
    algorithm: str
    protocol: str
    channels: int
    transports: tuple[str, ...]
    reason: str
    candidates: tuple[tuple[str, float], ...]
    prediction: str = ""
    order: str = ""
    epilogue: str = ""
    compress: str = ""
    planned_at: float = dataclasses.field(default_factory=time.time, compare=False)

    def __str__(self) -> str:
        what = self.called()
        ways = "+".join(self.transports)
        return (
            f"{what} {self.dtype} {shown(self.nbytes)} over {self.axes} at {self.site}: "
            f"{self.algorithm}, protocol {self.protocol}, transport {ways}, {self.channels} channel(s), "
            f"{self.ranks} ranks in {self.processes} process(es): {self.why()}"
        )

    def called(self) -> str:
        """The call in words, up to its dtype."""
        return called(self.collective, self.op, self.epilogue, self.compress)

    def why(self) -> str:
        """The reason for the choice, and what is predicted of it."""
        return "; ".join(filter(None, (self.reason, self.prediction, self.order)))

    def label(self) -> str:
        """The JSON in the engine's records of this plan's operations: all but the time, the reasons and prices."""
        fields = dataclasses.asdict(self)
        for name in ("reason", "candidates", "prediction", "order", "planned_at"):
            del fields[name]
        for name in ("epilogue", "compress"):
            if not fields[name]:
                del fields[name]
        return json.dumps(fields, separators=(",", ":"))


def record(decision: Decision) -> None:
    """Records a decision; called by the planning thread."""
    with _lock:
        _decisions.append(decision)


def note(text: str) -> bool:
    """Records a call that `jaxring.install` did not replace, or that JAXRING_CHECKSUM=oracle does not check.

    Returns whether ``text`` is new.
    """
    with _lock:
        _notes[text] = _notes.get(text, 0) + 1
        new = text not in _noted
        _noted.add(text)
        return new


def notes() -> dict[str, int]:
    """The recorded texts, and how often each was recorded."""
    with _lock:
        return dict(_notes)


def plans() -> tuple[Decision, ...]:
    """Every decision so far in this process, or since ``explain(clear=True)``, as records.

    Returns:
        `jaxring.runtime.Decision` records, in the order in which call sites were first reached: ``algorithm``,
        ``protocol``, ``channels``, ``transports``, ``nbytes`` (input bytes per rank), ``site``, ``reason``,
        ``planned_at`` (seconds since 1970) and others.
    """
    with _lock:
        return tuple(_decisions)


def recorded(clear: bool = False) -> tuple[tuple[Decision, ...], dict[str, int]]:
    """`plans` and `notes` of one moment. ``clear`` forgets them. Calls that are planned already are not planned, nor
    recorded, again."""
    with _lock:  # both, so that what is recorded meanwhile is listed now or by the next call
        found = tuple(_decisions), dict(_notes)
        if clear:
            _decisions.clear()
            _notes.clear()
        return found
