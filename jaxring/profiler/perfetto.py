"""Adds a track to a trace in the JSON format that Perfetto and chrome://tracing read."""

from __future__ import annotations

import gzip
import json
import os
from typing import TYPE_CHECKING, Any

from jaxring.profiler.spans import track

if TYPE_CHECKING:
    import pathlib

    from jaxring.profiler.spans import Span


def events(pid: int, process: str, ours: list[Span], of: str = "") -> list[dict[str, Any]]:
    """A process of that name with the spans. ``of`` follows the names of its tracks."""
    found: list[dict[str, Any]] = [
        {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": process}},
        *(
            {"ph": "M", "pid": pid, "tid": line, "name": "thread_name", "args": {"name": track(line) + of}}
            for line in sorted({span.line for span in ours})
        ),
    ]
    for span in ours:
        times = {"ts": span.begin_ns / 1000, "dur": (span.end_ns - span.begin_ns) / 1000}
        found.append({"ph": "X", "pid": pid, "tid": span.line, "name": span.name, **times, "args": span.arguments})
    return found


def append(path: pathlib.Path, ours: list[Span]) -> None:
    """Adds a process "jaxring" with the spans, whose times count from the profile's start.

    The file is exchanged for a new one in one step: whatever goes wrong before leaves it as it was.
    """
    with gzip.open(path, "rt", encoding="utf-8") as file:
        content: dict[str, Any] = json.load(file)
    theirs = content["traceEvents"]
    pid = 1 + max((event["pid"] for event in theirs if "pid" in event), default=0)
    # JAX's list ends with an empty event.
    content["traceEvents"] = [event for event in theirs if event] + events(pid, "jaxring", ours)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with gzip.open(new, "wt", encoding="utf-8") as file:
            json.dump(content, file)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
