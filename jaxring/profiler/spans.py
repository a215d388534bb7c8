"""The engine's records as spans on lines, from which a track in a trace is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from jaxring.plan import labels

if TYPE_CHECKING:
    from collections.abc import Iterable

# What `Decision.label` writes, besides "op", which may be none.
_KINDS: dict[str, type] = dict.fromkeys(("collective", "dtype", "axes", "site", "algorithm", "protocol"), str)
_KINDS |= dict.fromkeys(("nbytes", "ranks", "processes", "channels"), int) | {"transports": list}


class Span(NamedTuple):
    """An operation from launch to end, in ns. Spans of one ``line`` do not overlap."""

    name: str
    begin_ns: int
    end_ns: int
    line: int
    arguments: dict[str, str | int]


class Recorded(Protocol):
    """What a span is made of, as the engine and flight records have it: times in ns, state "running" or another."""

    @property
    def number(self) -> int: ...
    @property
    def sequence(self) -> int: ...
    @property
    def label(self) -> str: ...
    @property
    def arrived(self) -> int: ...
    @property
    def launched(self) -> int: ...
    @property
    def ended(self) -> int: ...
    @property
    def state(self) -> str: ...


def spans(records: Iterable[Recorded], now_ns: int) -> list[Span]:
    """Spans in order of their beginning; those still running end ``now_ns``."""
    result: list[Span] = []
    free: list[int] = []  # when each line's last span ends
    for record in sorted(records, key=lambda record: record.launched):
        end = max(record.launched, now_ns) if record.state == "running" else record.ended
        line = next((i for i, until in enumerate(free) if until <= record.launched), len(free))
        free[line:] = [end, *free[line + 1 :]]
        name, arguments = _describe(labels.parse(record.label))
        arguments |= {"execution": record.sequence, "operation": record.number, "state": record.state}
        arguments["waited_us"] = (record.launched - record.arrived) // 1000
        result.append(Span(name, record.launched, end, line, arguments))
    return result


def track(line: int) -> str:
    """The name of a line: each one has its own."""
    return "operations" if line == 0 else f"operations {line + 1}"


def _describe(plan: dict[str, Any]) -> tuple[str, dict[str, str | int]]:
    """An event's name and the arguments that its plan gives."""
    known = all(type(plan.get(key)) is kind for key, kind in _KINDS.items())
    if not known or type(plan.get("op")) not in (str, type(None)) or {*map(type, plan["transports"])} - {str}:
        return "operation", {}
    what = f"{plan['collective']} {plan['op']}" if plan.get("op") else plan["collective"]
    name = f"{what} {plan['nbytes']} B over {plan['axes']}: {plan['algorithm']}/{plan['protocol']}"
    named = {"op": plan.get("op") or "", "bytes": plan["nbytes"], "transports": "+".join(plan["transports"])}
    kept = ("collective", "dtype", "axes", "site", "ranks", "processes", "algorithm", "protocol", "channels")
    return name, {**{key: plan[key] for key in kept}, **named}
