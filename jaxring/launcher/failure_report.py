"""The report that a process of `jaxring run` writes to the launcher as soon as an exception ends its script, to a pipe.

The process itself may exit much later, because JAX's shutdown waits for the other processes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import sysconfig
import time
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

# A line is written in one piece, since it is shorter than PIPE_BUF (4096 bytes).
_MAX_TEXT = 300
_MAX_NAME = 100
INTERRUPTED = 130
# Errors of these packages may be the echo of another process's failure.
_RUNTIMES = ("jax", "jaxlib", "jaxring")
_STATUS = re.compile("[A-Z_]{7,}: ")


@dataclasses.dataclass(frozen=True)
class Report:
    """An exception that ended a script. ``when`` is in seconds of the host's monotonic clock.

    ``kind`` is the exception's type, "" for `sys.exit(number)`; ``code`` is the exit code that follows. ``echo`` says
    that the exception, or one that it was raised from, is JAX's or jaxring's, so another process may be its cause.
    """

    when: float
    code: int
    kind: str
    message: str
    where: str
    echo: bool

    def __str__(self) -> str:
        what = f"{self.kind}: {self.message}" if self.message else self.kind
        return f"{what or f'exit code {self.code}'}{f' ({self.where})' if self.where else ''}"


def describe(error: BaseException) -> Report | None:
    """The report of an exception that leaves the script; None for an end in good order."""
    code, kind, message = 1, _printable(type(error).__name__, _MAX_NAME), _line(error)
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            code, kind, message = (error.code or 0) & 0xFF, "", ""
        if code == 0:
            return None
    elif isinstance(error, KeyboardInterrupt):
        code = INTERRUPTED
    # Ctrl-C in native code may come without a place in the script; what was being handled then has one.
    all_of_them = list(chain(error))
    mine = (_where(one, mine=True) for one in all_of_them)
    where = next(filter(None, mine), "") or next(filter(None, map(_where, all_of_them)), "")
    return Report(time.monotonic(), code, kind, message, where, any(map(_is_runtimes, all_of_them)))


def encode(report: Report) -> bytes:
    """One line."""
    return json.dumps(dataclasses.asdict(report), ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def decode(line: bytes) -> Report | None:
    """The report in such a line, None where there is none: a script may write anything into the pipe."""
    try:
        found = json.loads(line)
        report = Report(**found)
    except (ValueError, TypeError, RecursionError):
        return None
    types = {"when": float, "code": int, "kind": str, "message": str, "where": str, "echo": bool}
    return report if all(type(found[name]) is kind for name, kind in types.items()) else None


def send(descriptor: int, error: BaseException) -> None:
    """Write the report of `error`, if there is one. A launcher that is gone needs none."""
    report = describe(error)
    if report is not None and descriptor >= 0:
        with contextlib.suppress(OSError):
            os.write(descriptor, encode(report))


def chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and those that it was raised from, or while handling."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        one = pending.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            pending += [one.__cause__, one.__context__]


def _is_runtimes(error: BaseException) -> bool:
    # A status of XLA's may come as an exception of Python's, and begins with the status's name.
    return type(error).__module__.partition(".")[0] in _RUNTIMES or bool(_STATUS.match(_line(error)))


def _line(error: BaseException) -> str:
    """The first line of the exception's text."""
    try:
        text = str(error)
    except Exception:  # its own __str__ may fail
        return "?"
    return _printable((text.strip().splitlines() or [""])[0], _MAX_TEXT)


def _printable(text: str, longest: int) -> str:
    shown = "".join(c if c.isprintable() else "?" for c in text[:longest])
    return shown if len(text) <= longest else shown + "..."


def _where(error: BaseException, mine: bool = False) -> str:
    """FILE:LINE of the innermost frame in the user's own code, else, but not with ``mine``, in any; "" without one."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return _place(error.filename, error.lineno)
    found = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [(name, line) for name, line in found if not _is_librarys(name)] or found[-1:] * (not mine)
    return _place(*own[-1]) if own else ""


def _place(file: str, line: int | None) -> str:
    return f"{_printable(pathlib.Path(file).name, _MAX_NAME)}:{line or 0}"


def _is_librarys(name: str) -> bool:
    paths = sysconfig.get_paths()
    roots = [paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    roots.append(str(pathlib.Path(__file__).parents[1]))
    return name.startswith("<") or any(name.startswith(root + os.sep) for root in roots)


def stripped(trace: TracebackType | None, files: set[str]) -> TracebackType | None:
    """The traceback without the frames at its beginning that lie in `files`."""
    while trace is not None and trace.tb_frame.f_code.co_filename in files:
        trace = trace.tb_next
    return trace
