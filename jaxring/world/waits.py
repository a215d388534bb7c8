"""Describes what the threads of a process wait for while they join other processes, and can end these waits.

The description becomes part of the error of a collective whose deadline passes meanwhile: only the threads that plan
know why there is no plan yet.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from typing import TYPE_CHECKING

from jaxring.errors import JoinError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MOST = 4  # waits that a description names


def was_ended(error: BaseException) -> bool:
    """Whether an exception was raised, also by way of others, since `Waits.end` has ended its thread's wait."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, InterruptedError):
        found = found.__cause__
    return found is not None


class Wait:
    """One thread's wait, from `Waits.waiting`."""

    def __init__(self, what: str, changed: Callable[[], None]) -> None:
        self._what, self._changed = what, changed
        self._trouble = ""
        self._ended = ""

    def note(self, trouble: str) -> None:
        """Record why the wait is not over yet."""
        if trouble != self._trouble:
            self._trouble = trouble
            self._changed()

    def end(self, why: str) -> None:
        """The next `check` raises."""
        self._ended = why

    def check(self) -> None:
        """Raises JoinError once `end` was called. The waiting thread calls this at least once a second."""
        if self._ended:
            raise JoinError(self._ended) from InterruptedError(self._ended)

    def __str__(self) -> str:
        return f"{self._what} ({self._trouble})" if self._trouble else self._what


class Waits:
    """All waits of a process. ``tell`` gets each new description, "" when nothing waits. Thread-safe."""

    def __init__(self, tell: Callable[[str], None] = lambda _: None) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waits: dict[int, Wait] = {}

    @contextlib.contextmanager
    def waiting(self, what: str) -> Iterator[Wait]:
        """Records that the calling thread waits for ``what``, for example "process 1 on b to answer"."""
        wait, number = Wait(what, self._changed), next(self._numbers)
        with self._lock:
            self._waits[number] = wait
        self._changed()
        try:
            yield wait
        finally:
            with self._lock:
                del self._waits[number]
            self._changed()

    def end(self, why: str) -> None:
        """Have all present waits raise JoinError with this text. Later ones are not affected."""
        with self._lock:
            for wait in self._waits.values():
                wait.end(why)

    def _changed(self) -> None:
        # `tell` is called under the lock, so that the last description it gets is the latest one.
        with self._lock:
            named = [str(wait) for wait in list(self._waits.values())[:_MOST]]
            more = len(self._waits) - len(named)
            self._tell("; ".join(named) + (f"; and {more} more" if more else ""))
