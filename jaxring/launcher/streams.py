"""Reads the pipes of a child of `jaxring run`: its output, and its report to the launcher."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
from typing import TYPE_CHECKING, BinaryIO, Protocol, TextIO

from jaxring.errors import JaxringError
from jaxring.launcher import failure_report

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from io import FileIO

TAIL_BYTES = 8192
_LONG_LINE_BYTES = 1 << 20
# Cyan, green, yellow, magenta, blue, and these bright: red is left to errors.
_COLOURS = (36, 32, 33, 35, 34, 96, 92, 93, 95, 94)


def label(rank: int, stream: TextIO) -> bytes:
    """What stands before a process's lines: in a colour of its own in a terminal, unless NO_COLOR is set."""
    text = f"[{rank}]"
    if stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
        text = f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{text}\x1b[0m"
    return f"{text} ".encode()


class Sink(Protocol):
    """Takes what is read from a pipe."""

    def feed(self, data: bytes) -> None:
        """Take bytes that were read from the pipe."""

    def end(self) -> None:
        """The pipe is at its end."""


class Log:
    """A file in ``folder`` that has all output of process ``rank``, both streams; what is there is kept with ``again``.

    Raises JaxringError where it cannot be made, unless with ``again``. The job goes on without a log that cannot be
    written later, as on a full disk: ``say`` is called once with a sentence about it.
    """

    def __init__(self, folder: str, rank: int, again: bool, say: Callable[[str], None]) -> None:
        self._rank, self._say, self._streams = rank, say, 2
        self._file: FileIO | None = None
        path = pathlib.Path(folder) / f"process_{rank}.log"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab" if again else "wb", buffering=0)
        except OSError as error:
            if not again:
                raise JaxringError(
                    f"Cannot write the log of process {rank}, {path}: {error.strerror}. Choose another --log-dir."
                ) from error
            self._give_up(error)

    def write(self, data: bytes) -> None:
        """Add output."""
        rest = memoryview(data)
        try:
            while self._file is not None and rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self._give_up(error)

    def end(self) -> None:
        """One of the two streams is at its end."""
        self._streams -= 1
        if not self._streams:
            self._close()

    def _give_up(self, error: OSError) -> None:
        self._say(f"cannot write the log of process {self._rank}: {error.strerror}; it ends here")
        self._close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()


@dataclasses.dataclass
class Stream:
    """One output of one child. `sink` None keeps the last TAIL_BYTES instead of forwarding. `log` has all of it."""

    prefix: bytes
    sink: BinaryIO | None
    log: Log | None = None
    pending: bytearray = dataclasses.field(default_factory=bytearray)

    def feed(self, data: bytes) -> None:
        """Take output: whole lines go out with the prefix, a carriage return ends one too, for progress bars."""
        if self.log is not None:
            self.log.write(data)
        self.pending += data
        if self.sink is None:
            del self.pending[:-TAIL_BYTES]
            return
        lines = bytes(self.pending).splitlines(keepends=True)
        # What has no end yet waits for it, unless it is so long that it may never come.
        unfinished = lines and not lines[-1].endswith((b"\n", b"\r")) and len(lines[-1]) < _LONG_LINE_BYTES
        self.pending = bytearray(lines.pop() if unfinished else b"")
        self._write(lines)

    def end(self) -> None:
        """Write what is left, unless it is kept for `finish`."""
        if self.log is not None:
            self.log.end()
        if self.sink is not None:
            self.finish()

    def finish(self, to: BinaryIO | None = None) -> None:
        """Write what is left, to `to` if given."""
        self.sink = to or self.sink
        if self.sink is not None and self.pending:
            if not self.pending.endswith((b"\n", b"\r")):
                self.pending += b"\n"
            self._write([bytes(line) for line in self.pending.splitlines(keepends=True)])
        self.pending.clear()

    def _write(self, lines: Sequence[bytes]) -> None:
        if lines and self.sink is not None:
            # The reader of our output may be gone; the job goes on.
            with contextlib.suppress(BrokenPipeError):
                self.sink.write(b"".join(self.prefix + line for line in lines))
                self.sink.flush()


@dataclasses.dataclass
class Reports:
    """The pipe by which a child reports the exception that ends its script; calls `then` with the report."""

    then: Callable[[failure_report.Report], None]
    pending: bytearray = dataclasses.field(default_factory=bytearray)

    def feed(self, data: bytes) -> None:
        """Only the first line counts."""
        if b"\n" not in self.pending:
            self.pending += data
            line, end, _ = bytes(self.pending).partition(b"\n")
            found = failure_report.decode(line) if end else None
            if found is not None:
                self.then(found)
            del self.pending[_LONG_LINE_BYTES:]

    def end(self) -> None:
        """Half of a report is none."""
