"""Adds a track to a trace in the JSON format that Perfetto and chrome://tracing read."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pathlib

    from jaxring.profiler.spans import Span


def events(pid: int, process: str, ours: list[Span]) -> list[dict[str, Any]]:
    """A process of that name with the spans."""
    found: list[dict[str, Any]] = [
        {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": process}},
        *(
            {"ph": "M", "pid": pid, "tid": line, "name": "thread_name", "args": {"name": "operations"}}
            for line in sorted({span.line for span in ours})
        ),
    ]
    for span in ours:
        times = {"ts": span.begin_ns / 1000, "dur": (span.end_ns - span.begin_ns) / 1000}
        found.append({"ph": "X", "pid": pid, "tid": span.line, "name": span.name, **times, "args": span.arguments})
    return found


def append(path: pathlib.Path, ours: list[Span]) -> None:
    """Adds a process "jaxring" with the spans, whose times count from the profile's start."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        content: dict[str, Any] = json.load(file)
    theirs = content["traceEvents"]
    pid = 1 + max((event["pid"] for event in theirs if "pid" in event), default=0)
    # JAX's list ends with an empty event.
    content["traceEvents"] = [event for event in theirs if event] + events(pid, "jaxring", ours)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        json.dump(content, file)
