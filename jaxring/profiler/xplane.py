"""Adds a plane to a profile in XLA's XSpace format (xplane.proto).

An XSpace is a protobuf message, and serialized messages that follow each other merge: planes are appended by appending
an XSpace that holds only them. The few fields in use are written here, without a protobuf library.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from typing import TYPE_CHECKING

import jax

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
    added = _message(1, _plane(ours))
    size = path.stat().st_size
    try:
        with path.open("ab") as file:
            file.write(added)
    except OSError:
        os.truncate(path, size)  # half of a message would make all of it unreadable
        raise


def _plane(ours: list[Span]) -> bytes:
    events = {name: i for i, name in enumerate(dict.fromkeys(span.name for span in ours), 1)}
    stats = {name: i for i, name in enumerate(dict.fromkeys(k for span in ours for k in span.arguments), 1)}
    lines = []
    for line in sorted({span.line for span in ours}):
        body = _integer(1, line + 1) + _text(2, track(line))
        for span in ours:
            if span.line == line:
                body += _message(4, _event(span, events, stats))
        lines.append(body)
    return b"".join(
        [
            _text(2, PLANE),
            *(_message(3, line) for line in lines),
            *(_message(4, _entry(i, name)) for name, i in events.items()),
            *(_message(5, _entry(i, name)) for name, i in stats.items()),
        ]
    )


def _event(span: Span, events: dict[str, int], stats: dict[str, int]) -> bytes:
    body = _integer(1, events[span.name])
    body += _integer(2, max(0, span.begin_ns) * 1000) + _integer(3, (span.end_ns - span.begin_ns) * 1000)
    for name, value in span.arguments.items():
        shown = _integer(4, value) if isinstance(value, int) else _text(5, value)
        body += _message(4, _integer(1, stats[name]) + shown)
    return body


def _entry(key: int, name: str) -> bytes:
    """A map's entry from a number to metadata with that id and this name."""
    return _integer(1, key) + _message(2, _integer(1, key) + _text(2, name))


def _varint(value: int) -> bytes:
    digits: list[int] = []
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def _integer(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _message(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _text(field: int, value: str) -> bytes:
    return _message(field, value.encode())
