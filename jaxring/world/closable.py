"""A native handle that can be closed: afterwards nothing of that epoch of the job reaches the engine."""

from __future__ import annotations

import collections
import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from jaxring.errors import JoinError

if TYPE_CHECKING:
    from collections.abc import Callable


class ClosableNative:
    """Has the functions of `jaxring.world.native.Native`. Once it is closed, those that `close` does not spare raise
    JoinError.

    A function that takes ownership of a descriptor gets it as the keyword `fd`, so that a refused call closes it.
    """

    def __init__(self, native: Any) -> None:
        self._native = native
        self._changed = threading.Condition()
        self._running: collections.Counter[str] = collections.Counter()
        self._closed = False
        self._spared: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._native, name)

        def call(*args: Any, **named: Any) -> Any:
            with self._changed:
                closed = self._refuses(name)
                self._running[name] += not closed
            if closed:
                if "fd" in named:
                    with contextlib.suppress(OSError):
                        os.close(named["fd"])
                raise JoinError("This World is closed: the job has been rebuilt since.")
            try:
                return function(*args, **named)
            finally:
                with self._changed:
                    self._running[name] -= 1
                    self._changed.notify_all()

        return call

    def _refuses(self, name: str) -> bool:
        return self._closed and not name.startswith(self._spared)

    def close(self, deadline: float, spare: tuple[str, ...] = ()) -> None:
        """Refuse further calls and wait for those that are running.

        Functions whose names begin with one of `spare` are left as they are: another call closes them.
        Raises JoinError where one of the others is still running at `deadline` (time.monotonic seconds).
        """

        def ended() -> bool:
            return not any(count and self._refuses(name) for name, count in self._running.items())

        with self._changed:
            self._closed, self._spared = True, spare
            if not self._changed.wait_for(ended, max(0.0, deadline - time.monotonic())):
                raise JoinError(
                    "A link was still being made or moved when the time to close this World was over: try again."
                )
