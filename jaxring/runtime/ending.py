"""What this process reports to the others at its end: the exit code where it is known, or the uncaught exception."""

from __future__ import annotations

import sys

_MOST = 500  # characters of an exception's text

_code: int | None = None
_reported_by_launcher = False


def exits(code: object) -> None:
    """The process is about to end by `SystemExit(code)`, or without an exception (None): its exit code is known.

    Only the code that catches the exception knows this; `jaxring run` does so and calls this.
    """
    global _code
    # As Python does: an integer is the code, anything else is printed and makes it 1.
    _code = 0 if code is None else int(code) & 0xFF if isinstance(code, int) else 1


def launcher_reports_interrupt() -> None:
    """Records that the launcher reports the KeyboardInterrupt that ends this process, in one line for all processes."""
    global _reported_by_launcher
    _reported_by_launcher = True


def is_reported_by_launcher() -> bool:
    """Whether the launcher reports it."""
    return _reported_by_launcher


def uncaught(hint: str) -> str:
    """Such as " after an uncaught ValueError: why"; "" where the process ends without one.

    ``hint`` is the sentence about the flight record in this process's errors. It is removed: it is useless to others.
    """
    kind = getattr(sys, "last_type", None)
    if kind is None:
        return ""
    # It becomes one sentence within the errors of the others.
    text = " ".join(str(sys.last_value).replace(hint, "").split()).rstrip(" .")
    if len(text) > _MOST:
        text = text[:_MOST].rstrip(" .") + " ..."
    return f" after an uncaught {kind.__name__}" + (f": {text}" if text else "")


def orderly() -> str:
    """The description of an end without an exception: " (exit code 3)" where the code is known."""
    return " without an uncaught exception" if _code is None else f" (exit code {_code})"
