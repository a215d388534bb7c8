"""A terminal's whole screen, drawn again and again, with keys to scroll and to end: that of `jaxring top`."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import termios
import time
import tty
from typing import TYPE_CHECKING, Any

from jaxring import _command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_KEY = re.compile(r"\x1b(?:\[|O)([A-H]|[1-8]~)|(.)", re.DOTALL)
_UP, _DOWN, _PAGE_UP, _PAGE_DOWN = {"A", "k"}, {"B", "j"}, {"5~", "b"}, {"6~", " "}
_HOME, _END, _QUIT = {"H", "1~", "7~", "g"}, {"F", "4~", "8~", "G"}, {"q", "Q"}
_STOP, _HELP = "\x1a", "q ends"
_SCROLLS = "arrows and pages scroll"


def possible() -> bool:
    """Whether stdout is a terminal whose screen can be drawn again."""
    from rich.console import Console

    return sys.stdout.isatty() and not Console().is_dumb_terminal


@contextlib.contextmanager
def opened() -> Iterator[Screen]:
    """Takes the terminal's second screen, without a cursor, and its keys, and leaves all as it was, also at Ctrl-C,
    SIGTERM and SIGHUP, which raise KeyboardInterrupt; then prints to stderr what was said. For the main thread."""
    made = Screen()
    with _command.ended_as_by_interrupt():
        try:
            made.take()
            yield made
        finally:
            made.leave()
            for sentence in made.said:
                print(sentence, file=sys.stderr)


class Screen:
    """What `opened` gives. Keys are taken if stdin is a terminal.

    ``said``: sentences, which stand below what is shown.
    """

    def __init__(self) -> None:
        from rich.console import Console

        self.said: list[str] = []
        self._console = Console()
        self._parts: Sequence[Any] = ()
        self._first = 0  # the line that is at the top
        self._modes: list[Any] | None = None  # those of stdin, while keys are taken

    def take(self) -> None:
        """Takes the terminal."""
        with contextlib.suppress(OSError, ValueError, termios.error):  # stdin is closed, or no terminal
            stdin = sys.stdin.fileno()
            self._modes = termios.tcgetattr(stdin)
            tty.setcbreak(stdin)
            # A key, too: as a signal it could come while the screen is written to.
            modes = termios.tcgetattr(stdin)
            modes[6][termios.VSUSP] = b"\0"
            termios.tcsetattr(stdin, termios.TCSADRAIN, modes)
        self._console.set_alt_screen(True)
        self._console.show_cursor(False)

    def leave(self) -> None:
        """Gives the terminal back."""
        if self._modes is not None:
            with contextlib.suppress(termios.error):  # it has gone
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, self._modes)
            self._modes = None
        with contextlib.suppress(OSError):
            self._console.show_cursor(True)
            self._console.set_alt_screen(False)

    def show(self, *parts: Any) -> None:
        """Draws what rich can draw, one below the other."""
        self._parts = parts
        self._draw()

    def say(self, sentence: str) -> None:
        """Adds a sentence below what is shown."""
        self.said.append(sentence)
        self._draw()

    def wait(self, seconds: float) -> bool:
        """Passes the time and does what keys ask for. False at once where one asks to end."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if self._modes is None:
                time.sleep(left)
            elif select.select([sys.stdin], [], [], left)[0]:
                typed = os.read(sys.stdin.fileno(), 1024).decode(errors="replace")
                if not typed or not all(self._does(found[1] or found[2]) for found in _KEY.finditer(typed)):
                    return False
                self._draw()
        return True

    def _stop(self) -> None:
        """Ctrl-Z: the shell gets its terminal as it was, and the screen is there again when the command goes on."""
        self.leave()
        os.killpg(0, signal.SIGTSTP)
        self.take()

    def _does(self, key: str) -> bool:
        if key == _STOP:
            self._stop()
        page = max(1, self._console.height - 1)
        moves = {**dict.fromkeys(_UP, -1), **dict.fromkeys(_DOWN, 1)}
        moves |= {**dict.fromkeys(_PAGE_UP, -page), **dict.fromkeys(_PAGE_DOWN, page)}
        moves |= {**dict.fromkeys(_HOME, -self._first), **dict.fromkeys(_END, sys.maxsize)}
        self._first = max(0, self._first + moves.get(key, 0))
        return key not in _QUIT

    def _draw(self) -> None:
        from rich.console import Group
        from rich.text import Text

        console = self._console
        room = max(1, console.height - 1)
        lines = console.render_lines(Group(*self._parts, *map(Text, self.said)))
        self._first = min(self._first, max(0, len(lines) - room))
        shown = lines[self._first : self._first + room]
        status = _HELP if self._modes is not None else ""
        if len(lines) > room:
            of = f"lines {self._first + 1} to {self._first + len(shown)} of {len(lines)}"
            status = "; ".join(filter(None, (of, status and _SCROLLS, status)))
        below = Group(*[Text()] * (room - len(shown)), Text(status, style="reverse", no_wrap=True, overflow="crop"))
        console.update_screen_lines([*shown, *console.render_lines(below)])
