"""A native handle that can be closed: afterwards nothing of that epoch of the job reaches the engine."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from jaxring.errors import JoinError

if TYPE_CHECKING:
    from collections.abc import Callable


class ClosableNative:
    """Has the functions of `jaxring.world.native.Native`. Once it is closed, each call raises JoinError.

    A function that takes ownership of a descriptor gets it as the keyword `fd`, so that a refused call closes it.
    """

    def __init__(self, native: Any) -> None:
        self._native = native
        self._changed = threading.Condition()
        self._running = 0
        self._closed = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._native, name)

        def call(*args: Any, **named: Any) -> Any:
            with self._changed:
                closed = self._closed
                self._running += not closed
            if closed:
                if "fd" in named:
                    with contextlib.suppress(OSError):
                        os.close(named["fd"])
                raise JoinError("This World is closed: the job has been rebuilt since.")
            try:
                return function(*args, **named)
            finally:
                with self._changed:
                    self._running -= 1
                    self._changed.notify_all()

        return call

    def close(self, deadline: float) -> None:
        """Refuse further calls and wait for those that are running.

        Raises JoinError where one is still running at `deadline` (time.monotonic seconds).
        """
        with self._changed:
            self._closed = True
            if not self._changed.wait_for(lambda: self._running == 0, max(0.0, deadline - time.monotonic())):
                raise JoinError("A link was still being made when the time to close this World was over: try again.")
