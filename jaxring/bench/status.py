"""The progress of long work, in a line of the terminal."""

from __future__ import annotations

import sys
import time
from typing import Self

from jaxring.bench.table import width_of

_CLEAR = "\r\x1b[K"


class Status:
    """A line at the bottom of the terminal with what is being done; nothing where stderr is no terminal."""

    def __init__(self) -> None:
        self._stream = sys.stderr
        self._width = width_of(self._stream)
        self._begun = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def say(self, text: str) -> None:
        """Show this instead."""
        if self._width:
            line = f"{text} ({time.monotonic() - self._begun:.0f} s)"
            print(f"{_CLEAR}{line[: self._width - 1]}", end="", file=self._stream, flush=True)

    def clear(self) -> None:
        """Make room for a line of the output."""
        if self._width:
            print(_CLEAR, end="", file=self._stream, flush=True)
