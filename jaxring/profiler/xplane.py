"""Adds a plane to a profile in XLA's XSpace format (xplane.proto).

An XSpace is a protobuf message, and serialized messages that follow each other merge: planes are appended by appending
an XSpace that holds only them.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from typing import TYPE_CHECKING

import jax

from jaxring._protobuf import Message
from jaxring.profiler.spans import track

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

    from jaxring.profiler.spans import Span

# XProf's trace viewer shows planes of this prefix.
PLANE = "/device:CUSTOM:jaxring"


@contextlib.contextmanager
def opened(path: pathlib.Path) -> Iterator[jax.profiler.ProfileData]:
    """The profile in a file, to be read inside the context."""
    with warnings.catch_warnings():
        # jaxlib 0.11.2 ends the process where Python's warning about one of its types is made an error.
        warnings.simplefilter("ignore", DeprecationWarning)
        yield jax.profiler.ProfileData.from_file(str(path))


def start_time_ns(path: pathlib.Path) -> int:
    """When the profile began, in ns since 1970; its events count from there."""
    with opened(path) as profile:
        for plane in profile.planes:
            for name, value in plane.stats:
                if name == "profile_start_time":
                    return int(value)
    raise ValueError(f"{path} does not say when the profile began")


def append(path: pathlib.Path, ours: list[Span]) -> None:
    """Adds a plane with the spans, whose times count from the profile's start; the file stays as it was on an error."""
    added = bytes(Message.of((1, _plane(ours))))
    size = path.stat().st_size
    try:
        with path.open("ab") as file:
            file.write(added)
    except OSError:
        os.truncate(path, size)  # half of a message would make all of it unreadable
        raise


def _plane(ours: list[Span]) -> Message:
    events = {name: i for i, name in enumerate(dict.fromkeys(span.name for span in ours), 1)}
    stats = {name: i for i, name in enumerate(dict.fromkeys(k for span in ours for k in span.arguments), 1)}
    lines: dict[int, list[tuple[int, int | str | Message]]] = {
        line: [(1, line + 1), (2, track(line))] for line in sorted({span.line for span in ours})
    }
    for span in ours:
        lines[span.line].append((4, _event(span, events, stats)))
    return Message.of(
        (2, PLANE),
        *((3, Message.of(*fields)) for fields in lines.values()),
        *((4, _entry(i, name)) for name, i in events.items()),
        *((5, _entry(i, name)) for name, i in stats.items()),
    )


def _event(span: Span, events: dict[str, int], stats: dict[str, int]) -> Message:
    arguments = [
        Message.of((1, stats[name]), (4 if isinstance(value, int) else 5, value))
        for name, value in span.arguments.items()
    ]
    return Message.of(
        (1, events[span.name]),
        (2, max(0, span.begin_ns) * 1000),
        (3, (span.end_ns - span.begin_ns) * 1000),
        *((4, argument) for argument in arguments),
    )


def _entry(key: int, name: str) -> Message:
    """A map's entry from a number to metadata with that id and this name."""
    return Message.of((1, key), (2, Message.of((1, key), (2, name))))
