"""A World's way to the native engine, which can be closed: then nothing of that generation of the job reaches it."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from jaxring.errors import JoinError

if TYPE_CHECKING:
    from collections.abc import Callable

# Where each function has the descriptor that it takes, also when it raises.
_DESCRIPTOR = {"tcp_attach": 2, "control": 1, "plugin_finish": 3, "verbs_finish": 3}


class Gate:
    """Has the functions of `jaxring.world.native.Native`. Once closed they raise JoinError."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self._changed = threading.Condition()
        self._inside = 0
        self._closed = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._native, name)

        def through(*args: Any) -> Any:
            with self._changed:
                closed = self._closed
                self._inside += not closed
            if closed:
                if name in _DESCRIPTOR:
                    with contextlib.suppress(OSError):
                        os.close(args[_DESCRIPTOR[name]])
                raise JoinError("This World is closed: the job has been rebuilt since.")
            try:
                return function(*args)
            finally:
                with self._changed:
                    self._inside -= 1
                    self._changed.notify_all()

        return through

    def close(self, deadline: float) -> None:
        """Let nobody in any more, and wait for those inside. JoinError where they are not done by `deadline`."""
        with self._changed:
            self._closed = True
            if not self._changed.wait_for(lambda: self._inside == 0, max(0.0, deadline - time.monotonic())):
                raise JoinError("A link was being made and has not come to an end: try again.")
