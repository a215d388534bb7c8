"""What this process tells the others of its end: its exit code where that is known, or the exception that ends it."""

from __future__ import annotations

import sys

_MOST = 500  # characters of an exception's text

_code: int | None = None


def exits(code: object) -> None:
    """The process is about to end by `SystemExit(code)`, or without an exception (None): its exit code is known.

    Python tells nobody but the one who catches the exception: `jaxring run` does.
    """
    global _code
    # As Python does: an integer is the code, anything else is printed and makes it 1.
    _code = 0 if code is None else int(code) & 0xFF if isinstance(code, int) else 1


def uncaught(hint: str) -> str:
    """Such as " after an uncaught ValueError: why"; "" where the process ends without one.

    ``hint``: what errors of this process say of its own flight record, which is of no use to the others.
    """
    kind = getattr(sys, "last_type", None)
    if kind is None:
        return ""
    # One sentence in those that the others make of it.
    text = " ".join(str(sys.last_value).replace(hint, "").split()).rstrip(" .")
    if len(text) > _MOST:
        text = text[:_MOST].rstrip(" .") + " ..."
    return f" after an uncaught {kind.__name__}" + (f": {text}" if text else "")


def orderly() -> str:
    """How a process ends that no exception ends: " (exit code 3)" where that is known."""
    return " without an uncaught exception" if _code is None else f" (exit code {_code})"
