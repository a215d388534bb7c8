"""Adds a track to a trace in the JSON format that Perfetto and chrome://tracing read."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pathlib

    from jaxring.profiler.spans import Span


def append(path: pathlib.Path, ours: list[Span]) -> None:
    """Adds a process "jaxring" with the spans, whose times count from the profile's start."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        content: dict[str, Any] = json.load(file)
    events = content["traceEvents"]
    pid = 1 + max((event["pid"] for event in events if "pid" in event), default=0)
    # JAX's list ends with an empty event.
    events[:] = [event for event in events if event]
    events.append({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": "jaxring"}})
    for line in sorted({span.line for span in ours}):
        events.append({"ph": "M", "pid": pid, "tid": line, "name": "thread_name", "args": {"name": "operations"}})
    for span in ours:
        times = {"ts": span.begin_ns / 1000, "dur": (span.end_ns - span.begin_ns) / 1000}
        events.append({"ph": "X", "pid": pid, "tid": span.line, "name": span.name, **times, "args": span.arguments})
    with gzip.open(path, "wt", encoding="utf-8") as file:
        json.dump(content, file)
